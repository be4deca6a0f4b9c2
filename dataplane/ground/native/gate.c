/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "gate.h"

#include "../gate.h"

IB_KEYS_CHECK(ib_gate_keys_check, ib_gate_check)

ib_u32 ib_gate_pass(const struct ib_keys *keys, enum ib_gate_side side, ib_u8 *packet,
                    ib_u32 len_bytes) {
    ib_u32 reason = ib_gate_check(packet, packet + len_bytes, len_bytes, IB_PARTITIONS_MAX);
    if (reason == IB_R_none)
        reason = ib_gate_verify(packet, side == IB_GATE_KEYED ? keys : NULL, side);
    if (reason != IB_R_none)
        return reason;
    return ib_gate_retag(packet, side == IB_GATE_KEYED ? NULL : keys);
}
