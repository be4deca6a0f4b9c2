/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msg.h - struct ib_msg, the header in host order, and the two functions between it and the wire.
 */
#ifndef INBAND_MSG_H
#define INBAND_MSG_H

#include "wire.h"
#include "verdict.h"

#define IB_INLINE static inline __attribute__((always_inline))

/* Hints: what packets of a healthy cluster do not do pays for the registers that run short. */
#define IB_RARE(condition) __builtin_expect(!!(condition), 0)

/* The compiler forgets what it knows of the variable: it can neither turn arithmetic on it into
 * branches nor move a check away from its use. The kernel's verifier needs both. */
#define IB_HIDE(variable) __asm__ volatile("" : "+r"(variable))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define IB_NET16(x) __builtin_bswap16(x)
#define IB_NET32(x) __builtin_bswap32(x)
#define IB_NET64(x) __builtin_bswap64(x)
#else
#define IB_NET16(x) (x)
#define IB_NET32(x) (x)
#define IB_NET64(x) (x)
#endif

/*
 * A packet buffer gives no better alignment than 2 (the header follows 42 bytes of Ethernet, IPv4
 * and UDP). These types say so to a compiler that cares (UBSan, ARM). BPF loads whole words from
 * packets at any address where the kernel says the machine can, and a weaker type would make clang
 * load byte by byte.
 */
#ifdef __bpf__
typedef ib_u16 ib_wire16;
typedef ib_u32 ib_wire32;
typedef ib_u64 ib_wire64;
#else
typedef ib_u16 __attribute__((aligned(1), may_alias)) ib_wire16;
typedef ib_u32 __attribute__((aligned(1), may_alias)) ib_wire32;
typedef ib_u64 __attribute__((aligned(1), may_alias)) ib_wire64;
#endif

/* The header in host order. */
struct ib_msg {
    ib_u64 instance;
    ib_u64 floor;
    ib_u64 round;
    ib_u64 vround;
    ib_u64 client_id;
    ib_u64 client_seq;
    ib_u64 client_low;
    ib_u64 digest;
    ib_u32 epoch;
    ib_u32 checksum;
    ib_u16 flags;
    ib_u16 partition;
    ib_u16 node;
    ib_u16 value_len_bytes;
    ib_u16 key_id; /* only written: of the key that tags the packet (auth.h), 0: none */
    ib_u8 type;
};

/* A field of the header `in` (a struct of wire.h or flair_wire.h) at `p`. */
#define IB_AT(bits, p, in, field) ((ib_wire##bits *)((p) + __builtin_offsetof(struct in, field)))
#define IB_GET16(p, field) IB_NET16(*(const ib_wire16 *)IB_AT(16, p, ib_header, field))
#define IB_GET32(p, field) IB_NET32(*(const ib_wire32 *)IB_AT(32, p, ib_header, field))
#define IB_RAW64(p, field) (*(const ib_wire64 *)IB_AT(64, p, ib_header, field))
#define IB_GET64(p, field) IB_NET64(IB_RAW64(p, field))
#define IB_PUT16(p, field, v) (*IB_AT(16, p, ib_header, field) = IB_NET16(v))
#define IB_PUT32(p, field, v) (*IB_AT(32, p, ib_header, field) = IB_NET32(v))
#define IB_PUT64(p, field, v) (*IB_AT(64, p, ib_header, field) = IB_NET64(v))

/*
 * The header's first fields come and go as words of 8 bytes: a load and a byte swap each. From the
 * highest bits: magic 32, version 8, type 8, flags 16; partition, node, value_len_bytes, key_id 16
 * each; epoch, checksum 32 each.
 */
#define IB_WORD_KIND(data) IB_GET64(data, magic)
#define IB_WORD_SIZES(data) IB_GET64(data, partition)
#define IB_WORD_EPOCH(data) IB_GET64(data, epoch)

_Static_assert(__builtin_offsetof(struct ib_header, flags) == 6 &&
                   __builtin_offsetof(struct ib_header, partition) == 8 &&
                   __builtin_offsetof(struct ib_header, key_id) == 14 &&
                   __builtin_offsetof(struct ib_header, epoch) == 16 &&
                   __builtin_offsetof(struct ib_header, checksum) == 20,
               "the words above");

/* The message types of one protocol, and what is particular about them: bitmaps by `1 << type`. */
struct ib_family {
    ib_u8 type_first;
    ib_u8 type_last;
    ib_u64 padded;      /* may be longer than what they hold */
    ib_u64 from_client; /* may name no sender: node 0 */
};

/*
 * Requests that are answered with a value the asker does not have are padded to full size, because
 * an answer is the request rewritten and a packet program cannot always make a packet longer.
 */
#define IB_PAXOS_FAMILY                                                                            \
    ((struct ib_family){IB_REQUEST, IB_ALIVE, 1ULL << IB_PHASE1A | 1ULL << IB_LEARN, 0})

/*
 * Is this a packet of the family? `end` bounds what may be read; `payload_len_bytes` is the UDP
 * payload's length, already known to lie within `end`. Returns IB_R_none, or the reason to drop.
 */
IB_INLINE unsigned int ib_check_of(const ib_u8 *data, const ib_u8 *end, ib_u32 payload_len_bytes,
                                   ib_u32 partitions, const struct ib_family family) {
    if (payload_len_bytes < IB_HEADER_LEN_BYTES || data + IB_HEADER_LEN_BYTES > end)
        return IB_R_bad_truncated;
    ib_u64 kind = IB_WORD_KIND(data), sizes = IB_WORD_SIZES(data);
    if (kind >> 32 != IB_MAGIC)
        return IB_R_bad_magic;
    ib_u8 version = (ib_u8)(kind >> 24), type = (ib_u8)(kind >> 16);
    if (version < IB_VERSION_MIN || version > IB_VERSION)
        return IB_R_bad_version;
    if (type < family.type_first || type > family.type_last)
        return IB_R_bad_type;
    ib_u32 value_len_bytes = (ib_u16)(sizes >> 16);
    ib_u32 claimed = IB_HEADER_LEN_BYTES + value_len_bytes;
    if (value_len_bytes > IB_VALUE_LEN_MAX_BYTES || claimed > payload_len_bytes)
        return IB_R_bad_length;
    if (claimed != payload_len_bytes && !(family.padded >> type & 1))
        return IB_R_bad_length;
    if (sizes >> 48 >= partitions)
        return IB_R_bad_partition;
    ib_u16 node = (ib_u16)(sizes >> 32);
    if (node >= IB_NODES_MAX || (node == 0 && !(family.from_client >> type & 1)))
        return IB_R_bad_node;
    return IB_R_none;
}

/* Is this a packet of Paxos, about an instance and in a round that there can be? */
IB_INLINE unsigned int ib_check(const ib_u8 *data, const ib_u8 *end, ib_u32 payload_len_bytes,
                                ib_u32 partitions) {
    unsigned int reason = ib_check_of(data, end, payload_len_bytes, partitions, IB_PAXOS_FAMILY);
    if (reason != IB_R_none || data + IB_HEADER_LEN_BYTES > end)
        return reason;
    if (IB_RARE((IB_GET64(data, instance) | IB_GET64(data, floor)) >> IB_INSTANCE_BITS))
        return IB_R_bad_instance;
    if (IB_RARE((IB_GET64(data, round) | IB_GET64(data, vround)) >> IB_ROUND_BITS))
        return IB_R_bad_round;
    return IB_R_none;
}

/* Read the header at `data`, which ib_check has passed, into `m`. */
IB_INLINE void ib_read(const ib_u8 *data, struct ib_msg *m) {
    ib_u64 kind = IB_WORD_KIND(data), sizes = IB_WORD_SIZES(data);
    m->type = (ib_u8)(kind >> 16);
    m->flags = (ib_u16)kind;
    m->partition = (ib_u16)(sizes >> 48);
    m->node = (ib_u16)(sizes >> 32);
    m->value_len_bytes = (ib_u16)(sizes >> 16);
    ib_u64 epoch = IB_WORD_EPOCH(data);
    m->epoch = (ib_u32)(epoch >> 32);
    m->checksum = (ib_u32)epoch;
    m->instance = IB_GET64(data, instance);
    m->floor = IB_GET64(data, floor);
    m->round = IB_GET64(data, round);
    m->vround = IB_GET64(data, vround);
    m->client_id = IB_GET64(data, client_id);
    m->client_seq = IB_GET64(data, client_seq);
    m->client_low = IB_GET64(data, client_low);
    m->digest = IB_GET64(data, digest);
}

/* Both. On the packet path of XDP they are apart: dispatch checks, the role's program reads. */
IB_INLINE unsigned int ib_parse(const ib_u8 *data, const ib_u8 *end, ib_u32 payload_len_bytes,
                                ib_u32 partitions, struct ib_msg *m) {
    unsigned int reason = ib_check(data, end, payload_len_bytes, partitions);
    if (reason == IB_R_none)
        ib_read(data, m);
    return reason;
}

/* The first word of a header. */
IB_INLINE void ib_emit_kind(ib_u8 *data, ib_u8 type, ib_u16 flags) {
    IB_PUT64(data, magic,
             (ib_u64)IB_MAGIC << 32 | (ib_u64)IB_VERSION << 24 | (ib_u64)type << 16 | flags);
}

/* Write into the header at `data` what a role may change of a message whose value stays. */
IB_INLINE void ib_emit_same_value(ib_u8 *data, const struct ib_msg *m) {
    ib_emit_kind(data, m->type, m->flags);
    IB_PUT64(data, partition,
             (ib_u64)m->partition << 48 | (ib_u64)m->node << 32 | (ib_u64)m->value_len_bytes << 16 |
                 m->key_id);
    IB_PUT64(data, epoch, (ib_u64)m->epoch << 32 | m->checksum);
    IB_PUT64(data, instance, m->instance);
    IB_PUT64(data, floor, m->floor);
    IB_PUT64(data, round, m->round);
    IB_PUT64(data, vround, m->vround);
    IB_PUT64(data, tag, (ib_u64)0);
}

/* Write `m` as the header at `data`, which has IB_HEADER_LEN_BYTES of room. */
IB_INLINE void ib_emit(ib_u8 *data, const struct ib_msg *m) {
    ib_emit_same_value(data, m);
    IB_PUT64(data, client_id, m->client_id);
    IB_PUT64(data, client_seq, m->client_seq);
    IB_PUT64(data, client_low, m->client_low);
    IB_PUT64(data, digest, m->digest);
}

IB_INLINE struct ib_result ib_say(unsigned int verdict, unsigned int reason) {
    struct ib_result result = {verdict, reason};
    return result;
}

#endif
