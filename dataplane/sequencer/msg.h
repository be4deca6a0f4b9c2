/* SPDX-License-Identifier: Apache-2.0 */
/* msg.h - the sequencer's header in host order, and the way between it and the wire. */
#ifndef INBAND_SEQUENCER_MSG_H
#define INBAND_SEQUENCER_MSG_H

#include "reasons.h"
#include "wire.h"

#define IB_SEQUENCER_FAMILY                                                                        \
    ((struct ib_family){IB_SEQUENCER_NEXT, IB_SEQUENCER_NUMBER, 0, 1ULL << IB_SEQUENCER_NEXT})

struct ib_sequencer_msg {
    ib_u64 incarnation;
    ib_u64 number;
    ib_u64 count;
    ib_u16 log;
    ib_u16 node;
    ib_u16 value_len_bytes;
    ib_u16 key_id;
    ib_u8 type;
};

#define IB_SEQUENCER_GET64(p, field)                                                               \
    IB_NET64(*(const ib_wire64 *)IB_AT(64, p, ib_sequencer_header, field))
#define IB_SEQUENCER_PUT64(p, field, v) (*IB_AT(64, p, ib_sequencer_header, field) = IB_NET64(v))

IB_INLINE unsigned int ib_sequencer_check(const ib_u8 *data, const ib_u8 *end,
                                          ib_u32 payload_len_bytes, ib_u32 logs) {
    return ib_frame_check(data, end, payload_len_bytes, logs, IB_SEQUENCER_FAMILY);
}

IB_INLINE void ib_sequencer_read_header(const ib_u8 *data, struct ib_sequencer_msg *m) {
    ib_u64 kind = IB_WORD_KIND(data), sizes = IB_WORD_SIZES(data);
    m->type = (ib_u8)(kind >> 16);
    m->log = (ib_u16)(sizes >> 48);
    m->node = (ib_u16)(sizes >> 32);
    m->value_len_bytes = (ib_u16)(sizes >> 16);
    m->count = IB_SEQUENCER_GET64(data, count);
}

/* Write what the sequencer changes: all but the client's own fields. */
IB_INLINE void ib_sequencer_emit(ib_u8 *data, const struct ib_sequencer_msg *m) {
    ib_emit_kind(data, m->type, 0);
    IB_PUT64(data, partition,
             (ib_u64)m->log << 48 | (ib_u64)m->node << 32 | (ib_u64)m->value_len_bytes << 16 |
                 m->key_id);
    IB_SEQUENCER_PUT64(data, incarnation, m->incarnation);
    IB_SEQUENCER_PUT64(data, number, m->number);
    IB_PUT64(data, tag, (ib_u64)0);
}

#endif
