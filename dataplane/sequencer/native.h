/* SPDX-License-Identifier: Apache-2.0 */
/* native.h - the native build: the soft switch, the simulator and the vectors call it. */
#ifndef INBAND_SEQUENCER_NATIVE_H
#define INBAND_SEQUENCER_NATIVE_H

#include "../ground/auth.h"
#include "registers.h"

/* The memory belongs to the caller and outlives every call; it may be shared by threads. */
struct ib_sequencer_switch {
    ib_u32 node;
    ib_u32 logs;
    ib_u64 incarnation;
    struct ib_sequencer_log *log; /* [logs] */
    ib_u64 *counters;             /* [IB_REASONS_MAX] */
};

/* Handle one UDP payload. With IB_REPLY the packet to send is in the buffer. Thread-safe. */
struct ib_result ib_sequencer_handle(const struct ib_sequencer_switch *sw, ib_u8 *buffer,
                                     ib_u32 *len_bytes, const struct ib_arrival *arrival);

/* The reason to drop a packet, or IB_R_none: is it whole, and its tag right? */
ib_u32 ib_sequencer_keys_check(const struct ib_keys *keys, const ib_u8 *packet, ib_u32 len_bytes,
                               ib_u32 logs);

const char *ib_sequencer_reason_name(unsigned int reason);

#endif
