/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msg.h - struct ib_paxos_msg, the header in host order, and its conversion from and to the wire.
 */
#ifndef INBAND_PAXOS_MSG_H
#define INBAND_PAXOS_MSG_H

#include "../ground/message.h"
#include "wire.h"
#include "reasons.h"

/* The header in host order. */
struct ib_paxos_msg {
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
    ib_u16 key_id; /* only written: id of the key that tags the packet (auth.h), 0: none */
    ib_u8 type;
};

#define IB_PAXOS_RAW64(p, field) (*(const ib_wire64 *)IB_AT(64, p, ib_paxos_header, field))
#define IB_PAXOS_GET64(p, field) IB_NET64(IB_PAXOS_RAW64(p, field))
#define IB_PAXOS_PUT64(p, field, v) (*IB_AT(64, p, ib_paxos_header, field) = IB_NET64(v))

/* Accessed as one word of 8 bytes: epoch and checksum, 32 bits each. */
_Static_assert(__builtin_offsetof(struct ib_paxos_header, epoch) == 16 &&
                   __builtin_offsetof(struct ib_paxos_header, checksum) == 20,
               "the word above");

/*
 * Requests whose answers may contain a value that the requester does not have are padded to full
 * size: the answer is the rewritten request, and a packet program cannot always lengthen a packet.
 */
#define IB_PAXOS_FAMILY                                                                            \
    ((struct ib_family){IB_PAXOS_REQUEST, IB_PAXOS_ALIVE,                                          \
                        1ULL << IB_PAXOS_PHASE1A | 1ULL << IB_PAXOS_LEARN, 0})

/* Checks that this is a Paxos packet, with possible instance and round numbers. */
IB_INLINE unsigned int ib_paxos_check(const ib_u8 *data, const ib_u8 *end, ib_u32 payload_len_bytes,
                                      ib_u32 partitions) {
    unsigned int reason = ib_frame_check(data, end, payload_len_bytes, partitions, IB_PAXOS_FAMILY);
    if (reason != IB_R_none || data + IB_HEADER_LEN_BYTES > end)
        return reason;
    if (IB_RARE((IB_PAXOS_GET64(data, instance) | IB_PAXOS_GET64(data, floor)) >> IB_INSTANCE_BITS))
        return IB_R_bad_instance;
    if (IB_RARE((IB_PAXOS_GET64(data, round) | IB_PAXOS_GET64(data, vround)) >> IB_ROUND_BITS))
        return IB_R_bad_round;
    return IB_R_none;
}

/* Reads the header at `data` into `m`. ib_paxos_check must have accepted it. */
IB_INLINE void ib_paxos_read_header(const ib_u8 *data, struct ib_paxos_msg *m) {
    ib_u64 kind = IB_WORD_KIND(data), sizes = IB_WORD_SIZES(data);
    IB_READ_FRAME(m, kind, sizes, partition);
    ib_u64 epoch = IB_PAXOS_GET64(data, epoch);
    m->epoch = (ib_u32)(epoch >> 32);
    m->checksum = (ib_u32)epoch;
    m->instance = IB_PAXOS_GET64(data, instance);
    m->floor = IB_PAXOS_GET64(data, floor);
    m->round = IB_PAXOS_GET64(data, round);
    m->vround = IB_PAXOS_GET64(data, vround);
    m->client_id = IB_PAXOS_GET64(data, client_id);
    m->client_seq = IB_PAXOS_GET64(data, client_seq);
    m->client_low = IB_PAXOS_GET64(data, client_low);
    m->digest = IB_PAXOS_GET64(data, digest);
}

/* Both. In XDP they are separate: dispatch checks, and the role's program reads. */
IB_INLINE unsigned int ib_paxos_parse(const ib_u8 *data, const ib_u8 *end, ib_u32 payload_len_bytes,
                                      ib_u32 partitions, struct ib_paxos_msg *m) {
    unsigned int reason = ib_paxos_check(data, end, payload_len_bytes, partitions);
    if (reason == IB_R_none)
        ib_paxos_read_header(data, m);
    return reason;
}

/* Writes the fields that a role may change, of a message whose value stays, to the header at
 * `data`. */
IB_INLINE void ib_paxos_emit_same_value(ib_u8 *data, const struct ib_paxos_msg *m) {
    ib_emit_kind(data, m->type, m->flags);
    IB_EMIT_SIZES(data, m, partition);
    IB_PAXOS_PUT64(data, epoch, (ib_u64)m->epoch << 32 | m->checksum);
    IB_PAXOS_PUT64(data, instance, m->instance);
    IB_PAXOS_PUT64(data, floor, m->floor);
    IB_PAXOS_PUT64(data, round, m->round);
    IB_PAXOS_PUT64(data, vround, m->vround);
    IB_PUT64(data, tag, (ib_u64)0);
}

/* Writes `m` as the header at `data`, which has room for IB_HEADER_LEN_BYTES. */
IB_INLINE void ib_paxos_emit(ib_u8 *data, const struct ib_paxos_msg *m) {
    ib_paxos_emit_same_value(data, m);
    IB_PAXOS_PUT64(data, client_id, m->client_id);
    IB_PAXOS_PUT64(data, client_seq, m->client_seq);
    IB_PAXOS_PUT64(data, client_low, m->client_low);
    IB_PAXOS_PUT64(data, digest, m->digest);
}

#endif
