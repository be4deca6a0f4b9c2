/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native.h - the native build of the Falcon role: the soft switch, the simulator and the vectors
 * call it.
 */
#ifndef INBAND_FALCON_NATIVE_H
#define INBAND_FALCON_NATIVE_H

#include "../ground/native/role.h"
#include "registers.h"

/*
 * A scheduler. The memory belongs to the caller and outlives every call; it may be shared by
 * threads: all access is by the atomic steps of falcon/shell.h.
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

/* A verdict, why, and with IB_TO_EXECUTOR where to (host order). */
struct ib_falcon_result {
    ib_u32 verdict;
    ib_u32 reason;
    ib_u32 to_address;
    ib_u32 to_port;
};

/*
 * Handle one UDP payload of *len_bytes at `buffer`, which has room for a full one. With IB_REPLY
 * and IB_TO_EXECUTOR the packet to send is in the buffer and *len_bytes its length. Thread-safe.
 * Allocates nothing, never waits.
 */
struct ib_falcon_result ib_falcon_switch_handle(const struct ib_falcon_switch *sw, ib_u8 *buffer,
                                                ib_u32 *len_bytes,
                                                const struct ib_falcon_arrival *arrival);

IB_NATIVE_CHECK(falcon);

/* The queues of a set. */
ib_u32 ib_falcon_queues_of(ib_u32 policy);

#endif
