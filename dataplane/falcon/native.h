/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native.h - the native build of the Falcon role, called by the soft switch, the simulator and the
 * vectors.
 */
#ifndef INBAND_FALCON_NATIVE_H
#define INBAND_FALCON_NATIVE_H

#include "../ground/native/role.h"
#include "registers.h"

/*
 * A scheduler. The memory belongs to the caller and must outlive every call. Threads may share it:
 * all access is by the atomic operations of falcon/shell.h.
 */
struct ib_falcon_switch {
    ib_u32 node; /* this host's node id */
    ib_u32 sets;
    struct ib_falcon_config config;
    struct ib_falcon_set *regs;           /* [sets] */
    struct ib_falcon_slot *slots;         /* [sets * queues << slots_log2] */
    struct ib_falcon_group *groups;       /* [sets * groups] */
    struct ib_falcon_executor *executors; /* [sets * workers * IB_FALCON_EXECUTORS] */
    ib_u64 *counters;                     /* [IB_REASONS_MAX] */
};

/* A verdict, its reason and, with IB_TO_EXECUTOR, the destination (host order). */
struct ib_falcon_result {
    ib_u32 verdict;
    ib_u32 reason;
    ib_u32 to_address;
    ib_u32 to_port;
};

/*
 * Handles one UDP payload of *len_bytes at `buffer`, which has room for a packet of maximum size.
 * With IB_REPLY and IB_TO_EXECUTOR, the buffer then contains the packet to send, and *len_bytes is
 * its length. Thread-safe. Never allocates or blocks.
 */
struct ib_falcon_result ib_falcon_switch_handle(const struct ib_falcon_switch *sw, ib_u8 *buffer,
                                                ib_u32 *len_bytes,
                                                const struct ib_falcon_arrival *arrival);

IB_NATIVE_CHECK(falcon);

/* The number of queues per set. */
ib_u32 ib_falcon_queues_of(ib_u32 policy);

#endif
