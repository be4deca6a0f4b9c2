/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.h - the text of memcached's requests and replies in scratch memory, on every backend.
 */
#ifndef INBAND_BOX_TEXT_H
#define INBAND_BOX_TEXT_H

#include "table.h"
#include "wire.h"

#if defined(__clang__)
#define IB_BOX_UNROLL _Pragma("clang loop unroll(full)")
#else
#define IB_BOX_UNROLL
#endif

enum ib_box_gets {
    IB_BOX_GET_FRAME_BYTES = 8,    /* memcached's header: request, sequence, datagrams, reserved */
    IB_BOX_GET_COMMAND_BYTES = 12, /* with "get " */
    IB_BOX_GET_END_BYTES = 2,
    IB_BOX_GET_REQUEST_MAX_BYTES =
        IB_BOX_GET_COMMAND_BYTES + IB_BOX_KEY_LEN_MAX_BYTES + IB_BOX_GET_END_BYTES,
    IB_BOX_GET_REPLY_MAX_BYTES = 1400, /* as in memcached */
    IB_BOX_GET_TRIES_MAX = 4,
    IB_BOX_GET_ITEMS_MAX = 8, /* looked at in one bucket */
    IB_BOX_GET_CHUNKS_MAX = 6,
    IB_BOX_GET_SUM_PART_BYTES = 512, /* that bpf_csum_diff takes at once */
    IB_BOX_GET_FRAME_MIN_BYTES = 60, /* Ethernet's, without its checksum */
    IB_BOX_GET_HEADROOM_BYTES = 200, /* of XDP_PACKET_HEADROOM, without the kernel's own use */

    IB_BOX_GET_DIGITS_MAX = 10,
    IB_BOX_GET_REQUEST_MASK = 2047, /* a SET's may be long */
    IB_BOX_GET_REPLY_MASK = 2047,
    IB_BOX_GET_TEXT_MASK = 63, /* the reply's text besides its key */

    IB_BOX_SET_HEADERS_BYTES = 48, /* Ethernet, IP and UDP, in whole words */

    IB_BOX_FIRST_BYTES = (IB_BOX_CHUNK_WORDS - IB_BOX_ITEM_WORDS) * 8,
    IB_BOX_MORE_BYTES = (IB_BOX_CHUNK_WORDS - IB_BOX_NEXT_WORDS) * 8,
};

_Static_assert(IB_BOX_FIRST_BYTES + (IB_BOX_GET_CHUNKS_MAX - 1) * IB_BOX_MORE_BYTES >=
                   IB_BOX_GET_REPLY_MAX_BYTES - 16 - IB_BOX_GET_END_BYTES - 5,
               "the longest reply's key and value");

/* A SET on its way (sets.h). */
struct ib_box_set {
    ib_u8 headers[IB_BOX_SET_HEADERS_BYTES]; /* in the kernel: as they arrived */
    ib_u64 words;                            /* that have ended */
    ib_u64 number;
    ib_u32 request_len_bytes;
    ib_u32 word_end[4]; /* in the line, without "set " */
    ib_u32 record_len_bytes;
    ib_u32 grown_bytes;
};

/* The buffers have room for three words behind every position that can be masked. */
struct ib_box_get_scratch {
    ib_u8 request[IB_BOX_GET_REQUEST_MASK + 1 + 24];
    ib_u8 reply[IB_BOX_GET_REPLY_MASK + 1 + IB_BOX_RECORD_LEN_MAX_BYTES];
    ib_u32 key_len_bytes;
    ib_u32 reply_len_bytes;
    ib_u64 hash;
    struct ib_box_set set; /* sets.h */
};

/* A position for the verifier, which otherwise forgets what is known about it. */
#define IB_BOX_GET_AT(at_bytes, mask)                                                              \
    ({                                                                                             \
        ib_u64 masked = (at_bytes);                                                                \
        IB_HIDE(masked);                                                                           \
        masked &= (mask);                                                                          \
    })
#define IB_BOX_IN_REQUEST(s, at_bytes)                                                             \
    ((s)->request + IB_BOX_GET_AT(at_bytes, IB_BOX_GET_REQUEST_MASK))
#define IB_BOX_IN_REPLY(s, at_bytes) ((s)->reply + IB_BOX_GET_AT(at_bytes, IB_BOX_GET_REPLY_MASK))
#define IB_BOX_WORD64(p) (*(ib_wire64 *)(p))
#define IB_BOX_WORD32(p) (*(ib_wire32 *)(p))
#define IB_BOX_WORD16(p) (*(ib_wire16 *)(p))

/* 1 if number > limit, without a branch: paths through several of those would multiply. */
IB_INLINE ib_u32 ib_box_is_above(ib_u32 number, ib_u32 limit) {
    ib_u64 difference = (ib_u64)limit - number;
    IB_HIDE(difference);
    return (ib_u32)(difference >> 63);
}

/* Whether the request is one datagram of one. */
IB_INLINE int ib_box_is_whole(const struct ib_box_get_scratch *s) {
    return IB_BOX_WORD64(s->request) >> 16 == 1ULL << 24;
}

#endif
