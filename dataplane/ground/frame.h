/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.h - the only definition of what the packets of all systems have in common.
 *
 * Ethernet / IPv4 / UDP / header / value. All headers have the same length. The first 16 bytes and
 * the tag at the end are laid out as in struct ib_header for every system; the fields in between
 * are the system's own (its wire.h). All fields are naturally aligned within the header and in
 * network byte order.
 */
#ifndef INBAND_GROUND_FRAME_H
#define INBAND_GROUND_FRAME_H

#include "verdict.h"

typedef unsigned char ib_u8;
typedef unsigned short ib_u16;
typedef unsigned int ib_u32;
typedef unsigned long long ib_u64;

/* Limits and constants of the frame. */
enum ib_limits {
    IB_MAGIC = 0x494e4244, /* "INBD" */
    IB_VERSION = 2,        /* the version we send */
    IB_VERSION_MIN = 2, /* the oldest we accept: 1 had neither checksum nor, without a key, tag */

    IB_HEADER_LEN_BYTES = 96,
    IB_MTU_BYTES = 1500,
    IB_VALUE_LEN_MAX_BYTES = IB_MTU_BYTES - 20 - 8 - IB_HEADER_LEN_BYTES, /* 1376 */

    IB_PARTITIONS_MAX = 1024,
    IB_NODES_MAX = 255, /* node ids are 1..=254 */
    IB_TYPES_MAX = 64,  /* of all systems; struct ib_family has a bit for each */
};

/* The frame of a header. */
struct ib_header {
    ib_u32 magic;
    ib_u8 version;
    ib_u8 type; /* each system has its own range */
    ib_u16 flags;
    ib_u16 partition;       /* or the system's equivalent of partitions */
    ib_u16 node;            /* sender, 1..=254 */
    ib_u16 value_len_bytes; /* bytes of value after the header */
    ib_u16 key_id;          /* authentication key, 0: none */
    ib_u8 own[72];          /* the system's fields */
    ib_u64 tag;             /* over everything before it; without a key, a checksum (auth.h) */
};

_Static_assert(sizeof(struct ib_header) == IB_HEADER_LEN_BYTES, "the header has a fixed size");

/* The header `own` of a system has `field` at the same place as the frame's `there`. */
#define IB_LIES_AS(own, field, there)                                                              \
    _Static_assert(__builtin_offsetof(struct own, field) ==                                        \
                           __builtin_offsetof(struct ib_header, there) &&                          \
                       sizeof(((struct own *)0)->field) == sizeof(((struct ib_header *)0)->there), \
                   #field " lies where struct ib_header has " #there)

/* A system's header has the frame's layout. `partition_field` is its name for `partition`. */
#define IB_IS_FRAME(own, partition_field)                                                          \
    _Static_assert(sizeof(struct own) == IB_HEADER_LEN_BYTES, "as long as ib_header");             \
    IB_LIES_AS(own, magic, magic);                                                                 \
    IB_LIES_AS(own, version, version);                                                             \
    IB_LIES_AS(own, type, type);                                                                   \
    IB_LIES_AS(own, flags, flags);                                                                 \
    IB_LIES_AS(own, partition_field, partition);                                                   \
    IB_LIES_AS(own, node, node);                                                                   \
    IB_LIES_AS(own, value_len_bytes, value_len_bytes);                                             \
    IB_LIES_AS(own, key_id, key_id);                                                               \
    IB_LIES_AS(own, tag, tag)

#define IB_INLINE static inline __attribute__((always_inline))

/* Hints: registers are short, so spill them on paths that packets of a healthy cluster do not
 * take. */
#define IB_RARE(condition) __builtin_expect(!!(condition), 0)

/* Makes the compiler forget the variable's value range, so that it neither turns arithmetic on it
 * into branches nor moves a check away from its use. The kernel's verifier requires both. */
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
 * A packet buffer is aligned to only 2 bytes (the header follows 42 bytes of Ethernet, IPv4 and
 * UDP). These types tell compilers that depend on alignment (UBSan, ARM). BPF loads whole words
 * from packets at any address if the kernel says that the machine can; a less aligned type would
 * make clang load byte by byte.
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

/* A field of the header at `p`. `in` is the header's struct: one of a system's wire.h, or
 * ib_header. */
#define IB_AT(bits, p, in, field) ((ib_wire##bits *)((p) + __builtin_offsetof(struct in, field)))
#define IB_GET16(p, field) IB_NET16(*(const ib_wire16 *)IB_AT(16, p, ib_header, field))
#define IB_GET64(p, field) IB_NET64(*(const ib_wire64 *)IB_AT(64, p, ib_header, field))
#define IB_PUT16(p, field, v) (*IB_AT(16, p, ib_header, field) = IB_NET16(v))
#define IB_PUT64(p, field, v) (*IB_AT(64, p, ib_header, field) = IB_NET64(v))

/*
 * The frame's first fields are read and written as words of 8 bytes, with a load and a byte swap
 * each. From the highest bits: magic 32, version 8, type 8, flags 16; then partition, node,
 * value_len_bytes, key_id, 16 each.
 */
#define IB_WORD_KIND(data) IB_GET64(data, magic)
#define IB_WORD_SIZES(data) IB_GET64(data, partition)

_Static_assert(__builtin_offsetof(struct ib_header, flags) == 6 &&
                   __builtin_offsetof(struct ib_header, partition) == 8 &&
                   __builtin_offsetof(struct ib_header, key_id) == 14 &&
                   __builtin_offsetof(struct ib_header, own) == 16,
               "the words above");

/* The message types of a system, and their properties as bitmaps of `1 << type`. */
struct ib_family {
    ib_u8 type_first;
    ib_u8 type_last;
    ib_u64 padded;      /* may be longer than their contents */
    ib_u64 from_client; /* may have no sender: node 0 */
};

/*
 * Checks that this is a packet of the family. Nothing at or beyond `end` is read;
 * `payload_len_bytes` is the length of the UDP payload and already known to lie within `end`.
 * Returns IB_R_none or the reason to drop.
 */
IB_INLINE unsigned int ib_frame_check(const ib_u8 *data, const ib_u8 *end, ib_u32 payload_len_bytes,
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

/* Writes the first word of a header. */
IB_INLINE void ib_emit_kind(ib_u8 *data, ib_u8 type, ib_u16 flags) {
    IB_PUT64(data, magic,
             (ib_u64)IB_MAGIC << 32 | (ib_u64)IB_VERSION << 24 | (ib_u64)type << 16 | flags);
}

/* The input of a role besides the packet. */
struct ib_arrival {
    ib_u64 now_ns; /* the role's own clock */
    ib_u32 random;
    ib_u32 from_address; /* the sender's address, host order */
    ib_u16 from_port;
};

IB_INLINE struct ib_result ib_verdict(unsigned int verdict, unsigned int reason) {
    struct ib_result result = {verdict, reason};
    return result;
}

#endif
