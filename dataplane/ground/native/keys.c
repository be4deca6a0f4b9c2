/* SPDX-License-Identifier: Apache-2.0 */
#include "keys.h"

void ib_keys_sign(const struct ib_keys *keys, ib_u8 *packet) {
    ib_u16 id = keys ? (ib_u16)keys->active : 0;
    IB_PUT16(packet, key_id, id);
    ib_sign(packet, keys, id);
}

ib_u32 ib_checksum_of(const ib_u8 *value, ib_u32 len_bytes) {
    return ib_value_checksum(value, value + len_bytes, len_bytes);
}

ib_u64 ib_siphash(ib_u64 k0, ib_u64 k1, const ib_u8 *bytes, ib_u64 len_bytes) {
    struct ib_sip s = ib_sip_begin(k0, k1);
    ib_u64 at = 0;
    for (; at + 8 <= len_bytes; at += 8)
        ib_sip_word(&s, IB_LE64(*(const ib_wire64 *)(bytes + at)));
    ib_u64 last = len_bytes << 56;
    for (ib_u32 shift = 0; at < len_bytes; at++, shift += 8)
        last |= (ib_u64)bytes[at] << shift;
    return ib_sip_end(&s, last);
}

IB_REASON_NAMES(ib_ground_reason_name, 0, IB_GROUND_REASONS)
