/* SPDX-License-Identifier: Apache-2.0 */
/* native.h - the native build, called by the soft roles, the simulator and the vectors. */
#ifndef INBAND_MEMORY_NATIVE_H
#define INBAND_MEMORY_NATIVE_H

#include "../ground/auth.h"
#include "msg.h"
#include "registers.h"

/* The memory of both belongs to the caller and must outlive every call. Threads may share it: all
 * access is by the atomic operations of shell.h. */
struct ib_memory_soft_switch {
    ib_u32 node;
    ib_u32 servers; /* nodes 1 to this */
    ib_u32 sessions;
    ib_u32 slots;
    ib_u64 chunks;
    ib_u32 block_shift; /* a block has 2^this chunks */
    ib_u32 reserved;
    struct ib_memory_switch *registers;
    struct ib_memory_block *block;
    struct ib_memory_session *session; /* [sessions] */
    struct ib_memory_slot *slot;       /* [slots] */
    ib_u64 *counters;                  /* [IB_REASONS_MAX] */
};

struct ib_memory_soft_server {
    ib_u32 node;
    ib_u32 reserved;
    ib_u64 chunks;
    struct ib_memory_server *registers;
    struct ib_memory_chunk *chunk; /* [chunks] */
    ib_u64 *counters;              /* [IB_REASONS_MAX] */
};

/*
 * Handles one UDP payload of *len_bytes at `buffer`, which has room for a packet of maximum size.
 * Unless the verdict is IB_DROP or IB_PASS, the buffer then contains the packet to send, and
 * *len_bytes is its length. Thread-safe. Never allocates or blocks. `client` is the sender; with
 * IB_MEMORY_TO_CLIENT, the destination.
 */
struct ib_result ib_memory_switch_handle(const struct ib_memory_soft_switch *sw, ib_u8 *buffer,
                                         ib_u32 *len_bytes, struct ib_memory_client *client);
struct ib_result ib_memory_server_handle(const struct ib_memory_soft_server *server, ib_u8 *buffer,
                                         ib_u32 *len_bytes);

/* Returns the reason to drop a packet (incomplete, or an invalid tag), or IB_R_none. */
ib_u32 ib_memory_keys_check(const struct ib_keys *keys, const ib_u8 *packet, ib_u32 len_bytes,
                            ib_u32 spaces);

const char *ib_memory_reason_name(unsigned int reason);

#endif
