/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checksum.h - sums against accidental damage, used with and without a key: of the value, for
 * systems that carry one in the header; and of the header, as the tag of packets without a key.
 *
 * A step is a bijection of the lane and of the word, so damage to one word of a header always
 * changes its sum. None of this prevents forgery; keys do (auth.h).
 *
 * UDP's own checksum does not help an XDP program: a packet created on this machine may carry an
 * unfinished one, which does not survive a redirect.
 */
#ifndef INBAND_GROUND_CHECKSUM_H
#define INBAND_GROUND_CHECKSUM_H

#include "frame.h"

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define IB_LE64(x) (x)
#define IB_LE32(x) (x)
#define IB_LE16(x) (x)
#else
#define IB_LE64(x) __builtin_bswap64(x)
#define IB_LE32(x) __builtin_bswap32(x)
#define IB_LE16(x) __builtin_bswap16(x)
#endif

#define IB_SUM_MULTIPLIER 0x9e3779b97f4a7c15ULL
/* Initial values of the lanes. They differ, so that exchanged words change the sum. */
#define IB_SUM_START(lane) (IB_SUM_MULTIPLIER * (2 * (lane) + 1))
#define IB_SUM_STRIPE_BYTES 32 /* four lanes, which a processor computes in parallel */

/* Do not unroll loops: the value's loop would become a thousand instructions. */
#if defined(__clang__)
#define IB_LOOP _Pragma("clang loop unroll(disable)")
#else
#define IB_LOOP
#endif

/* Hidden from clang, which would compute an address behind `end`; the verifier rejects that. */
IB_INLINE int ib_is_within(const ib_u8 *at, ib_u32 len_bytes, const ib_u8 *end) {
    const ib_u8 *behind = at + len_bytes;
#ifdef __bpf__
    IB_HIDE(behind);
    IB_HIDE(end);
#endif
    return behind <= end;
}

IB_INLINE ib_u64 ib_sum_step(ib_u64 lane, ib_u64 word) {
    lane = (lane ^ word) * IB_SUM_MULTIPLIER;
    return lane ^ lane >> 32;
}

IB_INLINE ib_u64 ib_sum_word(const ib_u8 *at) {
    return IB_LE64(*(const ib_wire64 *)at);
}

IB_INLINE ib_u64 ib_sum_end(ib_u64 a, ib_u64 b, ib_u64 c, ib_u64 d) {
    return ib_sum_step(ib_sum_step(a, b), ib_sum_step(c, d));
}

/*
 * The checksum of the `len_bytes` at `value`; 0 if there are none or they extend beyond `end`. 0 is
 * safe, because the result is compared with a valid sum.
 */
IB_INLINE ib_u32 ib_value_checksum(const ib_u8 *value, const ib_u8 *end, ib_u32 len_bytes) {
    ib_u64 a = IB_SUM_START(0) ^ len_bytes, b = IB_SUM_START(1), c = IB_SUM_START(2),
           d = IB_SUM_START(3), last = 0;
    const ib_u8 *at = value;
    ib_u32 left = len_bytes;
    if (len_bytes == 0 || len_bytes > IB_VALUE_LEN_MAX_BYTES)
        return 0;
    IB_LOOP
    for (ib_u32 i = 0; i < IB_VALUE_LEN_MAX_BYTES / IB_SUM_STRIPE_BYTES; i++) {
        if (left < IB_SUM_STRIPE_BYTES)
            break;
        if (!ib_is_within(at, IB_SUM_STRIPE_BYTES, end))
            return 0;
        a = ib_sum_step(a, ib_sum_word(at));
        b = ib_sum_step(b, ib_sum_word(at + 8));
        c = ib_sum_step(c, ib_sum_word(at + 16));
        d = ib_sum_step(d, ib_sum_word(at + 24));
        at += IB_SUM_STRIPE_BYTES;
        left -= IB_SUM_STRIPE_BYTES;
    }
    IB_LOOP
    for (ib_u32 i = 0; i < IB_SUM_STRIPE_BYTES / 8 - 1; i++) {
        if (left < 8)
            break;
        if (!ib_is_within(at, 8, end))
            return 0;
        b = ib_sum_step(b, ib_sum_word(at));
        at += 8;
        left -= 8;
    }
    if (left & 4) {
        if (!ib_is_within(at, 4, end))
            return 0;
        last = IB_LE32(*(const ib_wire32 *)at);
        at += 4;
    }
    if (left & 2) {
        if (!ib_is_within(at, 2, end))
            return 0;
        last = last << 16 | IB_LE16(*(const ib_wire16 *)at);
        at += 2;
    }
    if (left & 1) {
        if (!ib_is_within(at, 1, end))
            return 0;
        last = last << 8 | *at;
    }
    ib_u64 sum = ib_sum_end(ib_sum_step(a, last), b, c, d);
    return (ib_u32)(sum ^ sum >> 32);
}

/* The tag of a header without a key: covers the preceding 88 bytes, 11 words. */
IB_INLINE ib_u64 ib_header_checksum(const ib_u8 *data) {
    ib_u64 a = IB_SUM_START(0), b = IB_SUM_START(1), c = IB_SUM_START(2), d = IB_SUM_START(3);
    a = ib_sum_step(a, ib_sum_word(data));
    b = ib_sum_step(b, ib_sum_word(data + 8));
    c = ib_sum_step(c, ib_sum_word(data + 16));
    d = ib_sum_step(d, ib_sum_word(data + 24));
    a = ib_sum_step(a, ib_sum_word(data + 32));
    b = ib_sum_step(b, ib_sum_word(data + 40));
    c = ib_sum_step(c, ib_sum_word(data + 48));
    d = ib_sum_step(d, ib_sum_word(data + 56));
    a = ib_sum_step(a, ib_sum_word(data + 64));
    b = ib_sum_step(b, ib_sum_word(data + 72));
    c = ib_sum_step(c, ib_sum_word(data + 80));
    return ib_sum_end(a, b, c, d);
}

_Static_assert(__builtin_offsetof(struct ib_header, tag) == 88, "the tag is of all before it");

#endif
