/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message.h - conversion between the wire and a message, which is a header in host order.
 *
 * A system whose own fields are 64-bit words needs only IB_MESSAGE. Other systems define struct
 * ib_<system>_msg and its two functions themselves (msg.h), and use the macros for the frame's
 * part.
 */
#ifndef INBAND_GROUND_MESSAGE_H
#define INBAND_GROUND_MESSAGE_H

#include "frame.h"

/* The frame's part of a message. `at` is the system's name for `partition`. */
#define IB_READ_FRAME(m, kind, sizes, at)                                                          \
    do {                                                                                           \
        (m)->type = (ib_u8)((kind) >> 16);                                                         \
        (m)->flags = (ib_u16)(kind);                                                               \
        (m)->at = (ib_u16)((sizes) >> 48);                                                         \
        (m)->node = (ib_u16)((sizes) >> 32);                                                       \
        (m)->value_len_bytes = (ib_u16)((sizes) >> 16);                                            \
    } while (0)

#define IB_EMIT_SIZES(data, m, at)                                                                 \
    IB_PUT64(data, partition,                                                                      \
             (ib_u64)(m)->at << 48 | (ib_u64)(m)->node << 32 |                                     \
                 (ib_u64)(m)->value_len_bytes << 16 | (m)->key_id)

#define IB_MESSAGE_WORD(name) ib_u64 name;
#define IB_MESSAGE_ONE(name) +1
#define IB_MESSAGE_READ(name) m->name = IB_NET64(*word++);
#define IB_MESSAGE_EMIT(name) *word++ = IB_NET64(m->name);

/*
 * Defines the header on the wire, struct ib_<system>_header; the message, struct ib_<system>_msg;
 * and the functions between them, including the check of a packet of the FAMILY. WRITTEN(X),
 * READ(X) and KEPT(X) list the own fields in wire order, each as X(name): those that the role
 * writes, those that it reads, and those that it leaves to the client.
 */
#define IB_MESSAGE(system, at, FAMILY, WRITTEN, READ, KEPT)                                        \
    struct ib_##system##_header {                                                                  \
        ib_u32 magic;                                                                              \
        ib_u8 version;                                                                             \
        ib_u8 type;                                                                                \
        ib_u16 flags;                                                                              \
        ib_u16 at;                                                                                 \
        ib_u16 node;                                                                               \
        ib_u16 value_len_bytes;                                                                    \
        ib_u16 key_id;                                                                             \
        WRITTEN(IB_MESSAGE_WORD)                                                                   \
        READ(IB_MESSAGE_WORD)                                                                      \
        KEPT(IB_MESSAGE_WORD)                                                                      \
        ib_u64 reserved[9 - (WRITTEN(IB_MESSAGE_ONE) READ(IB_MESSAGE_ONE) KEPT(IB_MESSAGE_ONE))];  \
        ib_u64 tag;                                                                                \
    };                                                                                             \
    IB_IS_FRAME(ib_##system##_header, at);                                                         \
                                                                                                   \
    struct ib_##system##_msg {                                                                     \
        WRITTEN(IB_MESSAGE_WORD)                                                                   \
        READ(IB_MESSAGE_WORD)                                                                      \
        ib_u16 at;                                                                                 \
        ib_u16 node;                                                                               \
        ib_u16 value_len_bytes;                                                                    \
        ib_u16 flags;  /* only read */                                                             \
        ib_u16 key_id; /* only written */                                                          \
        ib_u8 type;                                                                                \
    };                                                                                             \
                                                                                                   \
    /* As ib_frame_check: IB_R_none, or the reason to drop. */                                     \
    IB_INLINE unsigned int ib_##system##_check(const ib_u8 *data, const ib_u8 *end,                \
                                               ib_u32 payload_len_bytes, ib_u32 partitions) {      \
        return ib_frame_check(data, end, payload_len_bytes, partitions, FAMILY);                   \
    }                                                                                              \
                                                                                                   \
    IB_INLINE void ib_##system##_read_header(const ib_u8 *data, struct ib_##system##_msg *m) {     \
        const ib_wire64 *word =                                                                    \
            (const ib_wire64 *)IB_AT(64, data, ib_header, own) + 0 WRITTEN(IB_MESSAGE_ONE);        \
        ib_u64 kind = IB_WORD_KIND(data), sizes = IB_WORD_SIZES(data);                             \
        IB_READ_FRAME(m, kind, sizes, at);                                                         \
        READ(IB_MESSAGE_READ)                                                                      \
    }                                                                                              \
                                                                                                   \
    IB_INLINE void ib_##system##_emit(ib_u8 *data, const struct ib_##system##_msg *m) {            \
        ib_wire64 *word = IB_AT(64, data, ib_header, own);                                         \
        ib_emit_kind(data, m->type, 0);                                                            \
        IB_EMIT_SIZES(data, m, at);                                                                \
        WRITTEN(IB_MESSAGE_EMIT)                                                                   \
        IB_PUT64(data, tag, (ib_u64)0);                                                            \
    }                                                                                              \
    _Static_assert(1, "the definition ends with a semicolon")

#endif
