/* SPDX-License-Identifier: Apache-2.0 */
/*
 * siphash.h - SipHash-2-4 (Aumasson, Bernstein 2012): a keyed 64-bit hash designed for short
 * inputs.
 */
#ifndef INBAND_GROUND_SIPHASH_H
#define INBAND_GROUND_SIPHASH_H

#include "checksum.h"

struct ib_sip {
    ib_u64 v0, v1, v2, v3;
};

#define IB_ROTATE(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))

IB_INLINE void ib_sip_round(struct ib_sip *s) {
    s->v0 += s->v1;
    s->v2 += s->v3;
    s->v1 = IB_ROTATE(s->v1, 13) ^ s->v0;
    s->v3 = IB_ROTATE(s->v3, 16) ^ s->v2;
    s->v0 = IB_ROTATE(s->v0, 32);
    s->v2 += s->v1;
    s->v0 += s->v3;
    s->v1 = IB_ROTATE(s->v1, 17) ^ s->v2;
    s->v3 = IB_ROTATE(s->v3, 21) ^ s->v0;
    s->v2 = IB_ROTATE(s->v2, 32);
}

IB_INLINE struct ib_sip ib_sip_begin(ib_u64 k0, ib_u64 k1) {
    struct ib_sip s = {k0 ^ 0x736f6d6570736575ULL, k1 ^ 0x646f72616e646f6dULL,
                       k0 ^ 0x6c7967656e657261ULL, k1 ^ 0x7465646279746573ULL};
    return s;
}

/* The next 8 bytes, as a little-endian number. */
IB_INLINE void ib_sip_word(struct ib_sip *s, ib_u64 word) {
    s->v3 ^= word;
    ib_sip_round(s);
    ib_sip_round(s);
    s->v0 ^= word;
}

/* `last`: the length modulo 256 in the highest byte, and below it the bytes after the last whole
 * word. */
IB_INLINE ib_u64 ib_sip_end(struct ib_sip *s, ib_u64 last) {
    ib_sip_word(s, last);
    s->v2 ^= 0xff;
    ib_sip_round(s);
    ib_sip_round(s);
    ib_sip_round(s);
    ib_sip_round(s);
    return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

#endif
