/* SPDX-License-Identifier: Apache-2.0 */
/* native.h - the native build: the soft switch, the simulator and the vectors call it. */
#ifndef INBAND_NETPAXOS_NATIVE_H
#define INBAND_NETPAXOS_NATIVE_H

#include "../ground/auth.h"
#include "msg.h"
#include "registers.h"

/* The memory belongs to the caller and outlives every call; it may be shared by threads. */
struct ib_netpaxos_soft {
    ib_u32 node;
    ib_u32 serializes; /* 1: a serializer, 0: a minion */
    ib_u64 incarnation;
    struct ib_netpaxos_switch *registers;
    ib_u64 *counters; /* [IB_REASONS_MAX] */
};

/*
 * Handle one UDP payload of *len_bytes at `buffer`. With IB_NETPAXOS_TO_GROUP the packet to send is
 * in the buffer, of the same length. Thread-safe. Allocates nothing, never waits.
 */
struct ib_result ib_netpaxos_handle(const struct ib_netpaxos_soft *sw, ib_u8 *buffer,
                                    ib_u32 *len_bytes, const struct ib_arrival *arrival);

/* The reason to drop a packet, or IB_R_none: is it whole, and its tag right? */
ib_u32 ib_netpaxos_keys_check(const struct ib_keys *keys, const ib_u8 *packet, ib_u32 len_bytes,
                              ib_u32 logs);

const char *ib_netpaxos_reason_name(unsigned int reason);

#endif
