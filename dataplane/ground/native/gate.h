/* SPDX-License-Identifier: Apache-2.0 */
/* gate.h - the gate on packets in memory, with the same code as in the kernel. */
#ifndef INBAND_GROUND_NATIVE_GATE_H
#define INBAND_GROUND_NATIVE_GATE_H

#include "../auth.h"

/* The check of a packet of any system, as IB_NATIVE_CHECK declares it. */
ib_u32 ib_gate_keys_check(const struct ib_keys *keys, const ib_u8 *packet, ib_u32 len_bytes,
                          ib_u32 partitions);

/*
 * Passes the packet of len_bytes at `packet` from the keyed segment, whose keys these are, to the
 * keyless one, or back. Returns IB_R_tag_removed or IB_R_tag_made, or the reason to drop it.
 */
ib_u32 ib_gate_pass(const struct ib_keys *keys, ib_u32 is_keyed_side, ib_u8 *packet,
                    ib_u32 len_bytes);

#endif
