/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auth.h - the tag of a packet: SipHash-2-4 under a key of the cluster, over the header up to the
 * tag. The header contains the value's digest, which every consumer of the value checks. Without a
 * key (`keys` is NULL) the tag is a checksum, which detects only accidental damage.
 *
 * The tag is checked after ib_frame_check and before any register is accessed. It is made again for
 * the header that leaves.
 */
#ifndef INBAND_GROUND_AUTH_H
#define INBAND_GROUND_AUTH_H

#include "siphash.h"

enum ib_auth_limits {
    IB_KEYS_MAX = 4, /* a power of two */
    IB_TAGGED_LEN_BYTES = 88,
};

_Static_assert(__builtin_offsetof(struct ib_header, tag) == IB_TAGGED_LEN_BYTES,
               "the tag covers all that is before it");

struct ib_key {
    ib_u64 id; /* 0: this slot has no key */
    ib_u64 k0; /* the key's bytes 0 to 7 as a little-endian number */
    ib_u64 k1; /* bytes 8 to 15 */
};

/*
 * The accepted keys, and the one that signs. The key of id n is at index n % IB_KEYS_MAX, so no
 * search is needed. This is a map value that the host replaces while packets are being handled: a
 * slot may be reused only when no packet carries the old key's id any more.
 */
struct ib_keys {
    ib_u64 active; /* id of the key that signs */
    struct ib_key key[IB_KEYS_MAX];
};

IB_INLINE ib_u64 ib_tag(const ib_u8 *data, const struct ib_key *key) {
    struct ib_sip s = ib_sip_begin(key->k0, key->k1);
    for (ib_u32 at = 0; at < IB_TAGGED_LEN_BYTES; at += 8)
        ib_sip_word(&s, IB_LE64(*(const ib_wire64 *)(data + at)));
    return ib_sip_end(&s, (ib_u64)IB_TAGGED_LEN_BYTES << 56);
}

/* Returns the reason to drop the whole packet at `data`, or IB_R_none. */
IB_INLINE unsigned int ib_verify(const ib_u8 *data, const struct ib_keys *keys) {
    ib_u64 id = (ib_u16)IB_WORD_SIZES(data);
    if (!keys) {
        if (IB_RARE(id != 0))
            return IB_R_bad_key;
        return IB_RARE(ib_header_checksum(data) != IB_GET64(data, tag)) ? IB_R_bad_tag : IB_R_none;
    }
    const struct ib_key *key = &keys->key[id & (IB_KEYS_MAX - 1)];
    if (IB_RARE(id == 0 || key->id != id))
        return IB_R_bad_key;
    if (IB_RARE(ib_tag(data, key) != IB_GET64(data, tag)))
        return IB_R_bad_tag;
    return IB_R_none;
}

/*
 * Defines `function` of a native build: returns the reason to drop the packet of `len_bytes`,
 * according to the system's own `check` and the tag (without keys, the checksum).
 */
#define IB_KEYS_CHECK(function, check)                                                             \
    ib_u32 function(const struct ib_keys *keys, const ib_u8 *packet, ib_u32 len_bytes,             \
                    ib_u32 partitions) {                                                           \
        ib_u32 reason = check(packet, packet + len_bytes, len_bytes, partitions);                  \
        return reason == IB_R_none ? ib_verify(packet, keys) : reason;                             \
    }

/* Writes the tag of the header at `data`, whose key_id is `id` (0 without keys). */
IB_INLINE void ib_sign(ib_u8 *data, const struct ib_keys *keys, ib_u16 id) {
    ib_u64 tag = keys ? ib_tag(data, &keys->key[id & (IB_KEYS_MAX - 1)]) : ib_header_checksum(data);
    IB_PUT64(data, tag, tag);
}

#endif
