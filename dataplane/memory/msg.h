/* SPDX-License-Identifier: Apache-2.0 */
/* msg.h - a memory packet's header in host order, and its conversion from and to the wire. */
#ifndef INBAND_MEMORY_MSG_H
#define INBAND_MEMORY_MSG_H

#include "reasons.h"
#include "wire.h"

#define IB_MEMORY_FAMILY                                                                           \
    ((struct ib_family){IB_MEMORY_HELLO, IB_MEMORY_EPOCH,                                          \
                        1ULL << IB_MEMORY_READ_REQUEST | 1ULL << IB_MEMORY_READ |                  \
                            1ULL << IB_MEMORY_ACK,                                                 \
                        1ULL << IB_MEMORY_HELLO | 1ULL << IB_MEMORY_READ_REQUEST |                 \
                            1ULL << IB_MEMORY_WRITE_REQUEST})

/* Types whose packets are about lines, and the subsets with lines and with timestamps. */
#define IB_MEMORY_WITH_LINES                                                                       \
    (1U << IB_MEMORY_WRITE_REQUEST | 1U << IB_MEMORY_WRITE | IB_MEMORY_WITH_TIMESTAMPS)
#define IB_MEMORY_WITH_TIMESTAMPS                                                                  \
    (1U << IB_MEMORY_READ_REPLY | 1U << IB_MEMORY_READ_ANSWER | 1U << IB_MEMORY_WRITE_BACK)
#define IB_MEMORY_ABOUT_LINES                                                                      \
    (1U << IB_MEMORY_READ_REQUEST | 1U << IB_MEMORY_READ | IB_MEMORY_WITH_LINES)

struct ib_memory_msg {
    ib_u64 epoch;
    ib_u64 session;
    ib_u64 request;
    ib_u64 chunk;
    ib_u64 timestamp;
    ib_u32 lines;
    ib_u32 digest;
    ib_u32 slot;
    ib_u32 phase;
    ib_u16 flags;
    ib_u16 node;
    ib_u16 value_len_bytes;
    ib_u16 room_len_bytes; /* after the header; more than the value if that is padded */
    ib_u16 key_id;         /* only written */
    ib_u8 type;
};

#define IB_MEMORY_GET64(p, field)                                                                  \
    IB_NET64(*(const ib_wire64 *)IB_AT(64, p, ib_memory_header, field))
#define IB_MEMORY_PUT64(p, field, v) (*IB_AT(64, p, ib_memory_header, field) = IB_NET64(v))

/* Accessed as words of 8 bytes, with the first field in the high half: lines, digest; slot,
 * phase. */
_Static_assert(__builtin_offsetof(struct ib_memory_header, lines) % 8 == 0 &&
                   __builtin_offsetof(struct ib_memory_header, digest) ==
                       __builtin_offsetof(struct ib_memory_header, lines) + 4 &&
                   __builtin_offsetof(struct ib_memory_header, slot) % 8 == 0 &&
                   __builtin_offsetof(struct ib_memory_header, phase) ==
                       __builtin_offsetof(struct ib_memory_header, slot) + 4,
               "the words above");

IB_INLINE ib_u32 ib_memory_count_bits(ib_u32 bits) {
    return (ib_u32)__builtin_popcount(bits);
}

/* Whether a packet's epoch is so far ahead of the known one that it proves nothing. */
IB_INLINE int ib_memory_is_ahead(ib_u64 epoch, ib_u64 known) {
    return epoch > known + IB_MEMORY_EPOCH_AHEAD_MAX;
}

/* Length of the value of a packet of this type with this many lines. */
IB_INLINE ib_u32 ib_memory_value_len_bytes(ib_u8 type, ib_u32 lines) {
    if (!(IB_MEMORY_WITH_LINES >> type & 1))
        return 0;
    ib_u32 each = IB_MEMORY_WITH_TIMESTAMPS >> type & 1
                      ? IB_MEMORY_TIMESTAMP_LEN_BYTES + IB_MEMORY_LINE_LEN_BYTES
                      : IB_MEMORY_LINE_LEN_BYTES;
    return lines * each;
}

/* Like ib_frame_check: returns IB_R_none, or the reason to drop. */
IB_INLINE unsigned int ib_memory_check(const ib_u8 *data, const ib_u8 *end,
                                       ib_u32 payload_len_bytes, ib_u32 spaces) {
    unsigned int reason = ib_frame_check(data, end, payload_len_bytes, spaces, IB_MEMORY_FAMILY);
    if (reason != IB_R_none || data + IB_HEADER_LEN_BYTES > end)
        return reason;
    if (payload_len_bytes > IB_HEADER_LEN_BYTES + IB_MEMORY_VALUE_LEN_MAX_BYTES)
        return IB_R_bad_length;
    if (IB_MEMORY_GET64(data, epoch) > IB_MEMORY_EPOCH_MAX)
        return IB_R_memory_bad_epoch;
    ib_u8 type = (ib_u8)(IB_WORD_KIND(data) >> 16);
    ib_u32 value_len_bytes = (ib_u16)(IB_WORD_SIZES(data) >> 16);
    ib_u32 lines = (ib_u32)(IB_MEMORY_GET64(data, lines) >> 32);
    if (!(IB_MEMORY_ABOUT_LINES >> type & 1))
        return value_len_bytes ? IB_R_bad_length : IB_R_none;
    if (lines == 0 || lines > IB_MEMORY_LINES_ALL ||
        value_len_bytes != ib_memory_value_len_bytes(type, ib_memory_count_bits(lines)))
        return IB_R_memory_bad_lines;
    return IB_R_none;
}

/* Reads the header at `data`. ib_memory_check must have accepted it. */
IB_INLINE void ib_memory_read_header(const ib_u8 *data, ib_u32 payload_len_bytes,
                                     struct ib_memory_msg *m) {
    ib_u64 kind = IB_WORD_KIND(data), sizes = IB_WORD_SIZES(data);
    ib_u64 lines = IB_MEMORY_GET64(data, lines), slot = IB_MEMORY_GET64(data, slot);
    m->type = (ib_u8)(kind >> 16);
    m->flags = (ib_u16)kind;
    m->node = (ib_u16)(sizes >> 32);
    m->value_len_bytes = (ib_u16)(sizes >> 16);
    m->room_len_bytes = (ib_u16)(payload_len_bytes - IB_HEADER_LEN_BYTES);
    m->epoch = IB_MEMORY_GET64(data, epoch);
    m->session = IB_MEMORY_GET64(data, session);
    m->request = IB_MEMORY_GET64(data, request);
    m->chunk = IB_MEMORY_GET64(data, chunk);
    m->timestamp = IB_MEMORY_GET64(data, timestamp);
    m->lines = (ib_u32)(lines >> 32);
    m->digest = (ib_u32)lines;
    m->slot = (ib_u32)(slot >> 32);
    m->phase = (ib_u32)slot;
}

/* Writes the fields that roles change: all but session, request and chunk. */
IB_INLINE void ib_memory_emit(ib_u8 *data, const struct ib_memory_msg *m) {
    ib_emit_kind(data, m->type, m->flags);
    IB_PUT64(data, partition, (ib_u64)m->node << 32 | (ib_u64)m->value_len_bytes << 16 | m->key_id);
    IB_MEMORY_PUT64(data, epoch, m->epoch);
    IB_MEMORY_PUT64(data, timestamp, m->timestamp);
    IB_MEMORY_PUT64(data, lines, (ib_u64)m->lines << 32 | m->digest);
    IB_MEMORY_PUT64(data, slot, (ib_u64)m->slot << 32 | m->phase);
    IB_PUT64(data, tag, (ib_u64)0);
}

#endif
