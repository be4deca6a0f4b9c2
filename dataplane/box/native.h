/* SPDX-License-Identifier: Apache-2.0 */
/* native.h - the native build: the soft role, the node's process, the simulator and the vectors
 * call it. */
#ifndef INBAND_BOX_NATIVE_H
#define INBAND_BOX_NATIVE_H

#include "../ground/auth.h"
#include "msg.h"
#include "registers.h"

/* The memory belongs to the caller and outlives every call: memory of the process, or the mapped
 * registers of the program in the kernel. Threads may share it. */
struct ib_box_soft {
    ib_u32 node;
    ib_u32 reserved;
    ib_u64 capacity; /* a power of two */
    struct ib_box_node *registers;
    struct ib_box_record *record; /* [capacity] */
    ib_u64 *counters;             /* [IB_REASONS_MAX] */
};

/*
 * Handle one UDP payload of *len_bytes at `buffer`, which has room for a full one. Unless the
 * verdict is IB_DROP or IB_PASS, the packet to send is in the buffer and *len_bytes its length.
 * Thread-safe. Allocates nothing, never waits.
 */
struct ib_result ib_box_handle(const struct ib_box_soft *soft, ib_u8 *buffer, ib_u32 *len_bytes,
                               const struct ib_arrival *arrival);

/*
 * The node is idle, in the epoch of the PROPOSE at `packet`: take its record as a follower does.
 * Returns the reason that says what became of it. Waits for the node.
 */
ib_u32 ib_box_put(const struct ib_box_soft *soft, const ib_u8 *packet, ib_u32 len_bytes);

/* We lead, and our own log is durable up to zxid. Not 0: `committed` has advanced. Waits. */
ib_u32 ib_box_ack_own(const struct ib_box_soft *soft, ib_u64 zxid);

/* The reason to drop a packet, or IB_R_none: is it whole, and its tag right? */
ib_u32 ib_box_keys_check(const struct ib_keys *keys, const ib_u8 *packet, ib_u32 len_bytes,
                         ib_u32 groups);

const char *ib_box_reason_name(unsigned int reason);

#endif
