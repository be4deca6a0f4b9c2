/* SPDX-License-Identifier: Apache-2.0 */
/* native.h - the native build, called by the soft switch, the simulator and the vectors. */
#ifndef INBAND_NETPAXOS_NATIVE_H
#define INBAND_NETPAXOS_NATIVE_H

#include "../ground/auth.h"
#include "msg.h"
#include "registers.h"

/* The memory belongs to the caller and must outlive every call. Threads may share it. */
struct ib_netpaxos_soft {
    ib_u32 node;
    ib_u32 serializes; /* 1: a serializer, 0: a minion */
    ib_u64 incarnation;
    struct ib_netpaxos_switch *registers;
    ib_u64 *counters; /* [IB_REASONS_MAX] */
};

/*
 * Handles one UDP payload of *len_bytes at `buffer`. With IB_NETPAXOS_TO_GROUP the buffer then
 * contains the packet to send, of the same length. Thread-safe. Never allocates or blocks.
 */
struct ib_result ib_netpaxos_handle(const struct ib_netpaxos_soft *sw, ib_u8 *buffer,
                                    ib_u32 *len_bytes, const struct ib_arrival *arrival);

/* Returns the reason to drop a packet (incomplete, or an invalid tag), or IB_R_none. */
ib_u32 ib_netpaxos_keys_check(const struct ib_keys *keys, const ib_u8 *packet, ib_u32 len_bytes,
                              ib_u32 logs);

const char *ib_netpaxos_reason_name(unsigned int reason);

#endif
