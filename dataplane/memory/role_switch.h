/* SPDX-License-Identifier: Apache-2.0 */
/*
 * role_switch.h - the switch: the ABD protocol for one request at a time, in the request's slot.
 * Pure; the shell locks the slot, numbers writes, and moves timestamps and lines.
 *
 * A phase asks all servers and ends with a majority of answers. Answers are counted in bitmaps, so
 * a duplicate counts once. Answers of another phase do not count.
 */
#ifndef INBAND_MEMORY_ROLE_SWITCH_H
#define INBAND_MEMORY_ROLE_SWITCH_H

#include "msg.h"
#include "registers.h"

/* A copy of the switch's registers. */
struct ib_memory_view {
    ib_u64 epoch;
    ib_u64 deposed;
    ib_u32 majority;
};

IB_INLINE int ib_memory_is_active(const struct ib_memory_view *v) {
    return v->epoch != 0 && v->epoch >= v->deposed;
}

IB_INLINE ib_u32 ib_memory_kind(const struct ib_memory_slot *s) {
    return s->phase & ((1U << IB_MEMORY_PHASE_BITS) - 1);
}

/* The timestamp after `last`; 0 if the epoch's timestamps are used up, or `last` is of a later
 * epoch. */
IB_INLINE ib_u64 ib_memory_next_timestamp(ib_u64 last, ib_u64 epoch) {
    ib_u64 before = epoch << IB_MEMORY_COUNT_BITS;
    ib_u64 next = (last > before ? last : before) + 1;
    return next >> IB_MEMORY_COUNT_BITS == epoch ? next : 0;
}

/* Whether the block has used seven eighths of its epoch's timestamps. */
IB_INLINE int ib_memory_is_nearly_used_up(ib_u64 timestamp) {
    return (timestamp >> (IB_MEMORY_COUNT_BITS - 3) & 7) == 7;
}

IB_INLINE void ib_memory_begin_phase(const struct ib_memory_view *v, struct ib_memory_slot *s,
                                     ib_u32 kind) {
    s->phase = ((s->phase >> IB_MEMORY_PHASE_BITS) + 1) << IB_MEMORY_PHASE_BITS | kind;
    s->epoch = v->epoch;
    s->answered = 0;
}

/* READ keeps the length of the request, because the answer will need the room. */
IB_INLINE void ib_memory_set_type(struct ib_memory_msg *m, ib_u8 type) {
    m->type = type;
    m->flags = 0;
    m->value_len_bytes = (ib_u16)ib_memory_value_len_bytes(type, ib_memory_count_bits(m->lines));
    if (m->value_len_bytes == 0)
        m->digest = 0;
    if (type != IB_MEMORY_READ)
        m->room_len_bytes = m->value_len_bytes;
}

IB_INLINE struct ib_result ib_memory_to_servers(struct ib_memory_msg *m,
                                                const struct ib_memory_slot *s, ib_u8 type,
                                                unsigned int reason) {
    ib_memory_set_type(m, type);
    m->epoch = s->epoch;
    m->timestamp = s->timestamp;
    m->phase = s->phase;
    return ib_verdict(IB_MEMORY_TO_SERVERS, reason);
}

IB_INLINE struct ib_result ib_memory_refuse(struct ib_memory_msg *m, const struct ib_memory_view *v,
                                            ib_u16 flags, unsigned int reason) {
    ib_memory_set_type(m, IB_MEMORY_REFUSED);
    m->flags = flags;
    m->epoch = v->epoch > v->deposed ? v->epoch : v->deposed;
    return ib_verdict(IB_REPLY, reason);
}

/* Whether the request replaces the one in the slot: an earlier one, or another session's. */
IB_INLINE int ib_memory_takes_slot(const struct ib_memory_msg *m, const struct ib_memory_slot *s) {
    return s->session != m->session || s->request < m->request;
}

/* READ_REQUEST and WRITE_REQUEST at an active switch. `timestamp` is for a write that takes the
 * slot; 0 if there is none left. */
IB_INLINE struct ib_result ib_memory_request(struct ib_memory_msg *m,
                                             const struct ib_memory_view *v,
                                             struct ib_memory_slot *s, ib_u64 timestamp) {
    int writes = m->type == IB_MEMORY_WRITE_REQUEST, takes = ib_memory_takes_slot(m, s);
    if (takes) {
        if (writes && timestamp == 0)
            return ib_verdict(IB_DROP, IB_R_memory_timestamps_used_up);
        s->session = m->session;
        s->request = m->request;
        s->chunk = m->chunk;
        s->lines = m->lines;
        s->digest = m->digest;
        s->timestamp = timestamp;
    } else if (s->request != m->request) {
        return ib_verdict(IB_DROP, IB_R_memory_old_request);
    } else if (s->chunk != m->chunk || s->lines != m->lines || s->digest != m->digest ||
               writes != (s->timestamp != 0)) {
        return ib_verdict(IB_DROP, IB_R_memory_other_request);
    }
    int continues = !takes && s->epoch == v->epoch;
    if (!writes) {
        /* A retransmission stays in the same phase: with a new phase each time, the read would
         * never complete if answers take longer than the client's timeout. */
        if (continues && ib_memory_kind(s) == IB_MEMORY_WRITING_BACK)
            return ib_memory_to_servers(m, s, IB_MEMORY_WRITE_BACK, IB_R_memory_write_back_again);
        if (!continues || ib_memory_kind(s) != IB_MEMORY_READING)
            ib_memory_begin_phase(v, s, IB_MEMORY_READING);
        return ib_memory_to_servers(m, s, IB_MEMORY_READ,
                                    takes ? IB_R_memory_read_begun : IB_R_memory_read_again);
    }
    if (!takes && ib_memory_kind(s) == IB_MEMORY_WRITTEN) {
        ib_memory_set_type(m, IB_MEMORY_WRITE_REPLY);
        m->epoch = s->epoch;
        m->timestamp = s->timestamp;
        return ib_verdict(IB_REPLY, IB_R_memory_write_done_again);
    }
    /* A retransmission keeps its timestamp: with a new one it could overwrite a write that has
     * completed in the meantime. */
    if (!continues)
        ib_memory_begin_phase(v, s, IB_MEMORY_WRITING);
    return ib_memory_to_servers(m, s, IB_MEMORY_WRITE,
                                takes ? IB_R_memory_write_begun : IB_R_memory_write_again);
}

/* READ_ANSWER and ACK: returns IB_R_none, or the reason why the answer does not count. */
IB_INLINE unsigned int ib_memory_does_not_count(const struct ib_memory_msg *m,
                                                const struct ib_memory_view *v,
                                                const struct ib_memory_slot *s) {
    ib_u32 kind = ib_memory_kind(s);
    int waits = m->type == IB_MEMORY_READ_ANSWER
                    ? kind == IB_MEMORY_READING
                    : kind == IB_MEMORY_WRITING || kind == IB_MEMORY_WRITING_BACK;
    if (!waits || s->session != m->session || s->request != m->request || s->phase != m->phase ||
        s->epoch != m->epoch || s->epoch != v->epoch || s->chunk != m->chunk ||
        s->lines != m->lines)
        return IB_R_memory_answer_late;
    return s->answered >> (m->node - 1) & 1 ? IB_R_memory_answer_repeated : IB_R_none;
}

/* Notes the server's answer. Returns whether a majority has answered. */
IB_INLINE int ib_memory_answered(const struct ib_memory_msg *m, const struct ib_memory_view *v,
                                 struct ib_memory_slot *s) {
    s->answered |= 1U << (m->node - 1);
    return ib_memory_count_bits(s->answered) >= v->majority;
}

/* Merges the n-th line of an answer. Returns whether it is newer than those before. */
IB_INLINE int ib_memory_merge_line(struct ib_memory_slot *s, ib_u32 n, ib_u16 node) {
    ib_u8 holder = (ib_u8)(1U << (node - 1));
    ib_u64 incoming = IB_NET64(s->incoming[n]), version = IB_NET64(s->version[n]);
    if (incoming > version) {
        s->version[n] = s->incoming[n];
        s->holders[n] = holder;
        return 1;
    }
    if (incoming == version)
        s->holders[n] |= holder;
    return 0;
}

/* Turns the packet into the answer to the slot's client. */
IB_INLINE struct ib_result ib_memory_to_client(struct ib_memory_msg *m, struct ib_memory_slot *s,
                                               ib_u8 type, ib_u32 kind, unsigned int reason) {
    s->phase = (s->phase >> IB_MEMORY_PHASE_BITS) << IB_MEMORY_PHASE_BITS | kind;
    ib_memory_set_type(m, type);
    m->timestamp = s->timestamp;
    return ib_verdict(IB_MEMORY_TO_CLIENT, reason);
}

/* A majority has answered READ. `agrees`: each line's version is held by a majority. If not, no
 * read may return it until a majority holds it. */
IB_INLINE struct ib_result ib_memory_have_read(struct ib_memory_msg *m,
                                               const struct ib_memory_view *v,
                                               struct ib_memory_slot *s, int agrees) {
    if (agrees)
        return ib_memory_to_client(m, s, IB_MEMORY_READ_REPLY, IB_MEMORY_HAS_READ,
                                   IB_R_memory_read_done);
    ib_memory_begin_phase(v, s, IB_MEMORY_WRITING_BACK);
    return ib_memory_to_servers(m, s, IB_MEMORY_WRITE_BACK, IB_R_memory_read_write_back);
}

/* An ACK that counts. */
IB_INLINE struct ib_result ib_memory_ack(struct ib_memory_msg *m, const struct ib_memory_view *v,
                                         struct ib_memory_slot *s) {
    if (!ib_memory_answered(m, v, s))
        return ib_verdict(IB_DROP, IB_R_memory_ack_counted);
    if (ib_memory_kind(s) == IB_MEMORY_WRITING)
        return ib_memory_to_client(m, s, IB_MEMORY_WRITE_REPLY, IB_MEMORY_WRITTEN,
                                   IB_R_memory_write_done);
    return ib_memory_to_client(m, s, IB_MEMORY_READ_REPLY, IB_MEMORY_HAS_READ,
                               IB_R_memory_write_back_done);
}

#endif
