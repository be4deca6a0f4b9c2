/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.h - the gate between a segment whose packets have tags of a key (keyed) and one whose
 * packets have none (keyless), for roles that cannot compute such tags. It knows no system: it
 * checks what all packets have in common, and exchanges key id and tag.
 *
 * A switch without products changes packets but cannot make their checksum again. The tag of what
 * comes from its segment is not checked (IB_GATE_UNCHECKED).
 */
#ifndef INBAND_GROUND_GATE_H
#define INBAND_GROUND_GATE_H

#include "auth.h"

/* Where a packet comes from. */
enum ib_gate_side {
    IB_GATE_KEYED,
    IB_GATE_KEYLESS,
    IB_GATE_UNCHECKED, /* keyless, and the tag is not checked */
};

/* Of the program of one side. */
struct ib_gate_settings {
    ib_u64 side; /* enum ib_gate_side */
};

/* Whether a UDP payload of at least four bytes claims to be a packet of ours. */
IB_INLINE int ib_gate_concerns(const ib_u8 *payload) {
    return *(const ib_wire32 *)payload == IB_NET32(IB_MAGIC);
}

/* ib_frame_check for the packets of any system. */
IB_INLINE unsigned int ib_gate_check(const ib_u8 *data, const ib_u8 *end, ib_u32 payload_len_bytes,
                                     ib_u32 partitions) {
    const struct ib_family any = {
        .type_first = 1, .type_last = IB_TYPES_MAX - 1, .padded = ~0ULL, .from_client = ~0ULL};
    return ib_frame_check(data, end, payload_len_bytes, partitions, any);
}

/*
 * ib_verify for packets of this side; `keys` are its segment's. Without a tag to check, none may
 * claim a key either.
 */
IB_INLINE unsigned int ib_gate_verify(const ib_u8 *data, const struct ib_keys *keys,
                                      enum ib_gate_side side) {
    if (side == IB_GATE_UNCHECKED)
        return (ib_u16)IB_WORD_SIZES(data) != 0 ? IB_R_bad_key : IB_R_none;
    return ib_verify(data, keys);
}

/*
 * Gives the packet at `data`, which has been verified, the tag of the segment that it enters:
 * `keys` are that segment's, NULL for the keyless one. Returns the reason to count.
 */
IB_INLINE unsigned int ib_gate_retag(ib_u8 *data, const struct ib_keys *keys) {
    ib_u16 id = keys ? (ib_u16)keys->active : 0;
    IB_PUT16(data, key_id, id);
    ib_sign(data, keys, id);
    return keys ? IB_R_tag_made : IB_R_tag_removed;
}

#endif
