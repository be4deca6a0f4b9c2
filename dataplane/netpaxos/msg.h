/* SPDX-License-Identifier: Apache-2.0 */
/* msg.h - a NetPaxos packet's header in host order, and its conversion from and to the wire. */
#ifndef INBAND_NETPAXOS_MSG_H
#define INBAND_NETPAXOS_MSG_H

#include "reasons.h"
#include "wire.h"

#define IB_NETPAXOS_FAMILY                                                                         \
    ((struct ib_family){IB_NETPAXOS_REQUEST, IB_NETPAXOS_CONTROL, 0, 1ULL << IB_NETPAXOS_REQUEST})

struct ib_netpaxos_msg {
    ib_u64 incarnation;
    ib_u64 number;
    ib_u16 flags;
    ib_u16 node;
    ib_u16 value_len_bytes;
    ib_u16 key_id;
    ib_u8 type;
};

#define IB_NETPAXOS_GET64(p, field)                                                                \
    IB_NET64(*(const ib_wire64 *)IB_AT(64, p, ib_netpaxos_header, field))
#define IB_NETPAXOS_PUT64(p, field, v) (*IB_AT(64, p, ib_netpaxos_header, field) = IB_NET64(v))

IB_INLINE unsigned int ib_netpaxos_check(const ib_u8 *data, const ib_u8 *end,
                                         ib_u32 payload_len_bytes, ib_u32 logs) {
    return ib_frame_check(data, end, payload_len_bytes, logs, IB_NETPAXOS_FAMILY);
}

IB_INLINE void ib_netpaxos_read_header(const ib_u8 *data, struct ib_netpaxos_msg *m) {
    ib_u64 kind = IB_WORD_KIND(data), sizes = IB_WORD_SIZES(data);
    m->type = (ib_u8)(kind >> 16);
    m->flags = (ib_u16)kind;
    m->node = (ib_u16)(sizes >> 32);
    m->value_len_bytes = (ib_u16)(sizes >> 16);
    m->incarnation = IB_NETPAXOS_GET64(data, incarnation);
    m->number = IB_NETPAXOS_GET64(data, number);
}

/* Writes the fields that the roles change: all but the proposer's own. */
IB_INLINE void ib_netpaxos_emit(ib_u8 *data, const struct ib_netpaxos_msg *m) {
    ib_emit_kind(data, m->type, m->flags);
    IB_PUT64(data, partition, (ib_u64)m->node << 32 | (ib_u64)m->value_len_bytes << 16 | m->key_id);
    IB_NETPAXOS_PUT64(data, incarnation, m->incarnation);
    IB_NETPAXOS_PUT64(data, number, m->number);
    IB_PUT64(data, tag, (ib_u64)0);
}

#endif
