/* SPDX-License-Identifier: Apache-2.0 */
/* gate.h - the gate on packets in memory, with the same code as in the kernel. */
#ifndef INBAND_GROUND_NATIVE_GATE_H
#define INBAND_GROUND_NATIVE_GATE_H

#include "../gate.h"

/* The check of a packet of any system, as IB_NATIVE_CHECK declares it. */
ib_u32 ib_gate_keys_check(const struct ib_keys *keys, const ib_u8 *packet, ib_u32 len_bytes,
                          ib_u32 partitions);

/*
 * Passes the packet of len_bytes at `packet` from one segment to the other; `keys` are those of the
 * keyed one. Returns IB_R_tag_removed or IB_R_tag_made, or the reason to drop it.
 */
ib_u32 ib_gate_pass(const struct ib_keys *keys, enum ib_gate_side side, ib_u8 *packet,
                    ib_u32 len_bytes);

#endif
