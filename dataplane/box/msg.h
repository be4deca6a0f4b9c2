/* SPDX-License-Identifier: Apache-2.0 */
/* msg.h - a packet's header in host order, and its conversion from and to the wire. */
#ifndef INBAND_BOX_MSG_H
#define INBAND_BOX_MSG_H

#include "reasons.h"
#include "wire.h"

#define IB_BOX_FAMILY ((struct ib_family){IB_BOX_SUBMIT, IB_BOX_CONTROL, 0, 0})

/* Types whose value is that of a record. */
#define IB_BOX_WITH_RECORD (1ULL << IB_BOX_SUBMIT | 1ULL << IB_BOX_PROPOSE)
/* Types that belong to an epoch, which must not be 0. */
#define IB_BOX_WITH_EPOCH (1ULL << IB_BOX_PROPOSE | 1ULL << IB_BOX_ACK | 1ULL << IB_BOX_COMMIT)

struct ib_box_msg {
    ib_u64 epoch;
    ib_u64 zxid;
    ib_u64 record_epoch;
    ib_u64 committed;
    ib_u64 time_ms;
    ib_u64 round;
    ib_u64 origin_session;
    ib_u64 origin_seq;
    ib_u32 digest;
    ib_u16 origin;
    ib_u16 leader;
    ib_u16 flags;
    ib_u16 node;
    ib_u16 value_len_bytes;
    ib_u16 key_id; /* only written */
    ib_u8 type;
    ib_u8 is_own_set; /* SUBMIT: made by this role from a client's SET; never read from a packet */
};

#define IB_BOX_GET64(p, field) IB_NET64(*(const ib_wire64 *)IB_AT(64, p, ib_box_header, field))
#define IB_BOX_PUT64(p, field, v) (*IB_AT(64, p, ib_box_header, field) = IB_NET64(v))

/* Accessed as a word of 8 bytes, from the highest bits: digest 32, origin 16, leader 16. */
_Static_assert(__builtin_offsetof(struct ib_box_header, digest) == 80 &&
                   __builtin_offsetof(struct ib_box_header, origin) == 84 &&
                   __builtin_offsetof(struct ib_box_header, leader) == 86,
               "the word above");

/* Like ib_frame_check: returns IB_R_none, or the reason to drop. */
IB_INLINE unsigned int ib_box_check(const ib_u8 *data, const ib_u8 *end, ib_u32 payload_len_bytes,
                                    ib_u32 groups) {
    unsigned int reason = ib_frame_check(data, end, payload_len_bytes, groups, IB_BOX_FAMILY);
    if (reason != IB_R_none || data + IB_HEADER_LEN_BYTES > end)
        return reason;
    ib_u64 sizes = IB_WORD_SIZES(data);
    ib_u8 type = (ib_u8)(IB_WORD_KIND(data) >> 16);
    if ((ib_u16)(sizes >> 32) > IB_BOX_NODES_MAX)
        return IB_R_bad_node;
    ib_u32 value_len_bytes = (ib_u16)(sizes >> 16);
    if (IB_BOX_WITH_RECORD >> type & 1) {
        if (value_len_bytes > IB_BOX_RECORD_LEN_MAX_BYTES)
            return IB_R_box_bad_value;
    } else if (value_len_bytes && type != IB_BOX_CONTROL) {
        return IB_R_box_bad_value;
    }
    if (IB_BOX_WITH_EPOCH >> type & 1 && IB_BOX_GET64(data, epoch) == 0)
        return IB_R_box_no_epoch;
    return IB_R_none;
}

/* Reads the header at `data`. ib_box_check must have accepted it. */
IB_INLINE void ib_box_read_header(const ib_u8 *data, struct ib_box_msg *m) {
    ib_u64 kind = IB_WORD_KIND(data), sizes = IB_WORD_SIZES(data);
    ib_u64 digest = IB_BOX_GET64(data, digest);
    m->type = (ib_u8)(kind >> 16);
    m->flags = (ib_u16)kind;
    m->node = (ib_u16)(sizes >> 32);
    m->value_len_bytes = (ib_u16)(sizes >> 16);
    m->epoch = IB_BOX_GET64(data, epoch);
    m->zxid = IB_BOX_GET64(data, zxid);
    m->record_epoch = IB_BOX_GET64(data, record_epoch);
    m->committed = IB_BOX_GET64(data, committed);
    m->time_ms = IB_BOX_GET64(data, time_ms);
    m->round = IB_BOX_GET64(data, round);
    m->origin_session = IB_BOX_GET64(data, origin_session);
    m->origin_seq = IB_BOX_GET64(data, origin_seq);
    m->digest = (ib_u32)(digest >> 32);
    m->origin = (ib_u16)(digest >> 16);
    m->leader = (ib_u16)digest;
}

/* Writes session and sequence number of the origin, for a record that the role has made. */
IB_INLINE void ib_box_emit_origin(ib_u8 *data, const struct ib_box_msg *m) {
    IB_BOX_PUT64(data, origin_session, m->origin_session);
    IB_BOX_PUT64(data, origin_seq, m->origin_seq);
}

/* Writes the fields that the role changes: all but session and sequence number of the origin. */
IB_INLINE void ib_box_emit(ib_u8 *data, const struct ib_box_msg *m) {
    ib_emit_kind(data, m->type, m->flags);
    IB_PUT64(data, partition, (ib_u64)m->node << 32 | (ib_u64)m->value_len_bytes << 16 | m->key_id);
    IB_BOX_PUT64(data, epoch, m->epoch);
    IB_BOX_PUT64(data, zxid, m->zxid);
    IB_BOX_PUT64(data, record_epoch, m->record_epoch);
    IB_BOX_PUT64(data, committed, m->committed);
    IB_BOX_PUT64(data, time_ms, m->time_ms);
    IB_BOX_PUT64(data, round, m->round);
    IB_BOX_PUT64(data, digest, (ib_u64)m->digest << 32 | (ib_u64)m->origin << 16 | m->leader);
    IB_PUT64(data, tag, (ib_u64)0);
}

#endif
