/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flair/msg.h - struct ib_flair_msg, FLAIR's header in host order, and its conversion from and to
 * the wire.
 */
#ifndef INBAND_FLAIR_MSG_H
#define INBAND_FLAIR_MSG_H

#include "../ground/message.h"
#include "wire.h"
#include "reasons.h"

#define IB_FLAIR_FAMILY                                                                            \
    ((struct ib_family){IB_FLAIR_READ, IB_FLAIR_NACK, 0,                                           \
                        1ULL << IB_FLAIR_READ | 1ULL << IB_FLAIR_WRITE})

/* The header in host order. */
struct ib_flair_msg {
    ib_u64 session;
    ib_u64 seq;
    ib_u64 log_index;
    ib_u64 key_hash;
    ib_u64 client_id;
    ib_u64 client_seq;
    ib_u64 digest;
    ib_u32 term;
    ib_u32 client_address;
    ib_u16 client_port;
    ib_u16 flags;
    ib_u16 set;
    ib_u16 node;
    ib_u16 value_len_bytes;
    ib_u16 key_len_bytes;
    ib_u16 window;
    ib_u16 key_id; /* only written: id of the key that tags the packet (auth.h), 0: none */
    ib_u8 type;
    ib_u8 followers;
    ib_u8 replica;
};

#define IB_FLAIR_GET64(p, field) IB_NET64(*(const ib_wire64 *)IB_AT(64, p, ib_flair_header, field))
#define IB_FLAIR_PUT64(p, field, v) (*IB_AT(64, p, ib_flair_header, field) = IB_NET64(v))

/*
 * Accessed as words of 8 bytes, from the highest bits: term, client_address 32 each; client_port
 * 16, followers 8, replica 8, key_len_bytes 16, window 16.
 */
_Static_assert(__builtin_offsetof(struct ib_flair_header, term) == 16 &&
                   __builtin_offsetof(struct ib_flair_header, client_address) == 20 &&
                   __builtin_offsetof(struct ib_flair_header, client_port) == 72 &&
                   __builtin_offsetof(struct ib_flair_header, followers) == 74 &&
                   __builtin_offsetof(struct ib_flair_header, replica) == 75 &&
                   __builtin_offsetof(struct ib_flair_header, key_len_bytes) == 76 &&
                   __builtin_offsetof(struct ib_flair_header, window) == 78,
               "the words above");

/* Like ib_frame_check: returns IB_R_none, or the reason to drop. */
IB_INLINE unsigned int ib_flair_check(const ib_u8 *data, const ib_u8 *end, ib_u32 payload_len_bytes,
                                      ib_u32 sets) {
    unsigned int reason = ib_frame_check(data, end, payload_len_bytes, sets, IB_FLAIR_FAMILY);
    if (reason != IB_R_none || data + IB_HEADER_LEN_BYTES > end)
        return reason;
    ib_u64 sizes = IB_WORD_SIZES(data), places = IB_FLAIR_GET64(data, client_port);
    if ((ib_u16)(places >> 16) > (ib_u16)(sizes >> 16))
        return IB_R_bad_length; /* the key is longer than key and data together */
    if ((ib_u8)(places >> 32) >= IB_FLAIR_REPLICAS_MAX)
        return IB_R_flair_bad_replica;
    return IB_R_none;
}

/* Reads the header at `data` into `m`. ib_flair_check must have accepted it. */
IB_INLINE void ib_flair_read_header(const ib_u8 *data, struct ib_flair_msg *m) {
    ib_u64 kind = IB_WORD_KIND(data), sizes = IB_WORD_SIZES(data);
    ib_u64 term = IB_FLAIR_GET64(data, term), places = IB_FLAIR_GET64(data, client_port);
    IB_READ_FRAME(m, kind, sizes, set);
    m->term = (ib_u32)(term >> 32);
    m->client_address = (ib_u32)term;
    m->session = IB_FLAIR_GET64(data, session);
    m->seq = IB_FLAIR_GET64(data, seq);
    m->log_index = IB_FLAIR_GET64(data, log_index);
    m->key_hash = IB_FLAIR_GET64(data, key_hash);
    m->client_id = IB_FLAIR_GET64(data, client_id);
    m->client_seq = IB_FLAIR_GET64(data, client_seq);
    m->client_port = (ib_u16)(places >> 48);
    m->followers = (ib_u8)(places >> 40);
    m->replica = (ib_u8)(places >> 32);
    m->key_len_bytes = (ib_u16)(places >> 16);
    m->window = (ib_u16)places;
    m->digest = IB_FLAIR_GET64(data, digest);
}

/* Writes the fields that the switch may change to the header at `data`: all but key_hash,
 * client_id. */
IB_INLINE void ib_flair_emit(ib_u8 *data, const struct ib_flair_msg *m) {
    ib_emit_kind(data, m->type, m->flags);
    IB_EMIT_SIZES(data, m, set);
    IB_FLAIR_PUT64(data, term, (ib_u64)m->term << 32 | m->client_address);
    IB_FLAIR_PUT64(data, session, m->session);
    IB_FLAIR_PUT64(data, seq, m->seq);
    IB_FLAIR_PUT64(data, log_index, m->log_index);
    IB_FLAIR_PUT64(data, client_seq, m->client_seq);
    IB_FLAIR_PUT64(data, client_port,
                   (ib_u64)m->client_port << 48 | (ib_u64)m->followers << 40 |
                       (ib_u64)m->replica << 32 | (ib_u64)m->key_len_bytes << 16 | m->window);
    IB_FLAIR_PUT64(data, digest, m->digest);
    IB_FLAIR_PUT64(data, tag, (ib_u64)0);
}

/* Turns a reply into the read that it answers: keeps the key and removes the data. */
IB_INLINE void ib_flair_to_read(struct ib_flair_msg *m) {
    m->type = IB_FLAIR_READ;
    m->flags = 0;
    m->value_len_bytes = m->key_len_bytes;
    m->digest = IB_FLAIR_NO_DATA_DIGEST;
    m->followers = 0;
}

/* The group of a key, below `groups`: if that is a power of two, the highest bits of the hash. */
IB_INLINE ib_u32 ib_flair_group_of(ib_u64 key_hash, ib_u32 groups) {
    return (ib_u32)((key_hash >> 32) * groups >> 32);
}

#endif
