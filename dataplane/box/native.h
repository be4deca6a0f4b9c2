/* SPDX-License-Identifier: Apache-2.0 */
/* native.h - the native build, called by the soft role, the node's process, the simulator and the
 * vectors. */
#ifndef INBAND_BOX_NATIVE_H
#define INBAND_BOX_NATIVE_H

#include "../ground/auth.h"
#include "msg.h"
#include "registers.h"
#include "table.h"

/* The memory belongs to the caller and must outlive every call: memory of the process, or the
 * mapped registers of the program in the kernel. Threads may share it. */
struct ib_box_soft {
    ib_u32 node;
    ib_u32 reserved;
    ib_u64 capacity; /* a power of two */
    struct ib_box_node *registers;
    struct ib_box_record *record; /* [capacity] */
    struct ib_box_client *client; /* [capacity]; NULL: no client's SET comes to the role */
    ib_u64 *counters;             /* [IB_REASONS_MAX] */
};

/*
 * Handles one UDP payload of *len_bytes at `buffer`, which has room for a packet of maximum size.
 * Unless the verdict is IB_DROP or IB_PASS, the buffer then contains the packet to send, and
 * *len_bytes is its length. Thread-safe. Never allocates or blocks.
 */
struct ib_result ib_box_handle(const struct ib_box_soft *soft, ib_u8 *buffer, ib_u32 *len_bytes,
                               const struct ib_arrival *arrival);

/*
 * Handles a client's datagram of *len_bytes: if it is a SET that the role proposes, with the
 * verdict IB_BOX_TO_OTHERS, the buffer then contains the packet to send, and *len_bytes is its
 * length. Otherwise the datagram is for the process, and the reason says why. The request's id in
 * `client` is not read. Thread-safe. Never allocates or blocks.
 */
struct ib_result ib_box_set(const struct ib_box_soft *soft, const struct ib_box_client *client,
                            const ib_u8 *datagram, ib_u8 *buffer, ib_u32 *len_bytes,
                            const struct ib_arrival *arrival);

/*
 * For an idle node in the epoch of the PROPOSE at `packet`: takes its record as a follower does.
 * Returns the reason of the outcome. Waits for the node's lock.
 */
ib_u32 ib_box_put(const struct ib_box_soft *soft, const ib_u8 *packet, ib_u32 len_bytes);

/* For a leader whose own log is durable up to zxid. Returns nonzero if `committed` advanced. Waits
 * for the lock. */
ib_u32 ib_box_ack_own(const struct ib_box_soft *soft, ib_u64 zxid);

/* Returns the reason to drop a packet (incomplete, or an invalid tag), or IB_R_none. */
ib_u32 ib_box_keys_check(const struct ib_keys *keys, const ib_u8 *packet, ib_u32 len_bytes,
                         ib_u32 groups);

/* The hash of a key in a table (table.h). */
ib_u64 ib_box_hash(const struct ib_box_hash_key *hash_key, const ib_u8 *key, ib_u32 len_bytes);

const char *ib_box_reason_name(unsigned int reason);

#endif
