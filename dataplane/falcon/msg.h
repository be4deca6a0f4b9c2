/* SPDX-License-Identifier: Apache-2.0 */
/*
 * falcon/msg.h - struct ib_falcon_msg, Falcon's header in host order, and its conversion from and
 * to the wire.
 */
#ifndef INBAND_FALCON_MSG_H
#define INBAND_FALCON_MSG_H

#include "../ground/message.h"
#include "wire.h"
#include "reasons.h"

#define IB_FALCON_FAMILY                                                                           \
    ((struct ib_family){IB_FALCON_SUBMIT, IB_FALCON_HOST, 0,                                       \
                        1ULL << IB_FALCON_SUBMIT | 1ULL << IB_FALCON_PULL |                        \
                            1ULL << IB_FALCON_HOST})

/* The header in host order, with whole words first to avoid padding. */
struct ib_falcon_msg {
    ib_u64 incarnation;
    ib_u64 pull_seq;
    ib_u64 taken;
    ib_u64 submit_seq;
    ib_u64 digest;
    ib_u32 user;
    ib_u32 job;
    ib_u32 client_address;
    ib_u32 executor;
    ib_u32 worker_incarnation;
    ib_u32 tail;
    ib_u32 head;
    ib_u32 to_address; /* not on the wire: address of the executor to send to */
    ib_u16 to_port;
    ib_u16 client_port;
    ib_u16 flags;
    ib_u16 set;
    ib_u16 node;
    ib_u16 value_len_bytes;
    ib_u16 key_id; /* only written: id of the key that tags the packet (auth.h), 0: none */
    ib_u8 type;
    ib_u8 count;
    ib_u8 queue;
    ib_u8 reserved[7];
};

/* The input that accompanies a packet. */
struct ib_falcon_arrival {
    ib_u64 now_ns;       /* the scheduler's own clock; used only by LOCALITY */
    ib_u32 from_address; /* the sender's address, host order */
    ib_u16 from_port;
};

#define IB_FALCON_GET64(p, field)                                                                  \
    IB_NET64(*(const ib_wire64 *)IB_AT(64, p, ib_falcon_header, field))
#define IB_FALCON_PUT64(p, field, v) (*IB_AT(64, p, ib_falcon_header, field) = IB_NET64(v))

/*
 * Accessed as words of 8 bytes, from the highest bits: user, job 32 each; client_address 32,
 * client_port 16, count 8, queue 8; executor, worker_incarnation 32 each; tail, head 32 each.
 */
_Static_assert(__builtin_offsetof(struct ib_falcon_header, user) == 24 &&
                   __builtin_offsetof(struct ib_falcon_header, client_address) == 32 &&
                   __builtin_offsetof(struct ib_falcon_header, count) == 38 &&
                   __builtin_offsetof(struct ib_falcon_header, executor) == 40 &&
                   __builtin_offsetof(struct ib_falcon_header, tail) == 72,
               "the words above");

/* A task as words of 8 bytes in network order, the format in which slots and records store it. */
enum ib_falcon_task_words {
    IB_FALCON_WHOSE = 0, /* user, job 32 each */
    IB_FALCON_WHICH = 1, /* task, client_address 32 each */
    IB_FALCON_WHERE = 2, /* client_port 16, priority, resource 8, worker 16, attempt, length 8 */
    IB_FALCON_DIGEST = 3,
    IB_FALCON_TASK_WORDS = IB_FALCON_TASK_LEN_BYTES / 8,
};

_Static_assert(__builtin_offsetof(struct ib_falcon_task, task) == 8 &&
                   __builtin_offsetof(struct ib_falcon_task, client_port) == 16 &&
                   __builtin_offsetof(struct ib_falcon_task, priority) == 18 &&
                   __builtin_offsetof(struct ib_falcon_task, resource) == 19 &&
                   __builtin_offsetof(struct ib_falcon_task, worker) == 20 &&
                   __builtin_offsetof(struct ib_falcon_task, desc_len_bytes) == 23 &&
                   __builtin_offsetof(struct ib_falcon_task, digest) == 24,
               "the words above");

/* Word `n` of the task at `p` in a packet, in host order. */
#define IB_FALCON_TASK_WORD(p, n) IB_NET64(((const ib_wire64 *)(p))[n])

/* Like ib_frame_check: returns IB_R_none, or the reason to drop. */
IB_INLINE unsigned int ib_falcon_check(const ib_u8 *data, const ib_u8 *end,
                                       ib_u32 payload_len_bytes, ib_u32 sets) {
    unsigned int reason = ib_frame_check(data, end, payload_len_bytes, sets, IB_FALCON_FAMILY);
    if (reason != IB_R_none || data + IB_HEADER_LEN_BYTES > end)
        return reason;
    ib_u8 type = (ib_u8)(IB_WORD_KIND(data) >> 16);
    ib_u32 count = (ib_u8)(IB_FALCON_GET64(data, client_address) >> 8);
    if (type != IB_FALCON_SUBMIT && type != IB_FALCON_PULL)
        return IB_R_none;
    if (type == IB_FALCON_PULL || count == 0)
        count = 1; /* room for the answer */
    ib_u32 value_len_bytes = (ib_u16)(IB_WORD_SIZES(data) >> 16);
    if (value_len_bytes != count * IB_FALCON_TASK_LEN_BYTES)
        return IB_R_bad_length;
    return IB_R_none;
}

/* Reads the header at `data` into `m`. ib_falcon_check must have accepted it. */
IB_INLINE void ib_falcon_read_header(const ib_u8 *data, struct ib_falcon_msg *m) {
    ib_u64 kind = IB_WORD_KIND(data), sizes = IB_WORD_SIZES(data);
    ib_u64 whose = IB_FALCON_GET64(data, user), client = IB_FALCON_GET64(data, client_address);
    ib_u64 who = IB_FALCON_GET64(data, executor), places = IB_FALCON_GET64(data, tail);
    IB_READ_FRAME(m, kind, sizes, set);
    m->incarnation = IB_FALCON_GET64(data, incarnation);
    m->user = (ib_u32)(whose >> 32);
    m->job = (ib_u32)whose;
    m->client_address = (ib_u32)(client >> 32);
    m->client_port = (ib_u16)(client >> 16);
    m->count = (ib_u8)(client >> 8);
    m->queue = (ib_u8)client;
    m->executor = (ib_u32)(who >> 32);
    m->worker_incarnation = (ib_u32)who;
    m->pull_seq = IB_FALCON_GET64(data, pull_seq);
    m->taken = IB_FALCON_GET64(data, taken);
    m->submit_seq = IB_FALCON_GET64(data, submit_seq);
    m->tail = (ib_u32)(places >> 32);
    m->head = (ib_u32)places;
    m->digest = IB_FALCON_GET64(data, digest);
}

/* Writes the fields that the scheduler may change to the header at `data`: all but user and job. */
IB_INLINE void ib_falcon_emit(ib_u8 *data, const struct ib_falcon_msg *m) {
    ib_emit_kind(data, m->type, m->flags);
    IB_EMIT_SIZES(data, m, set);
    IB_FALCON_PUT64(data, incarnation, m->incarnation);
    IB_FALCON_PUT64(data, client_address,
                    (ib_u64)m->client_address << 32 | (ib_u64)m->client_port << 16 |
                        (ib_u64)m->count << 8 | m->queue);
    IB_FALCON_PUT64(data, executor, (ib_u64)m->executor << 32 | m->worker_incarnation);
    IB_FALCON_PUT64(data, pull_seq, m->pull_seq);
    IB_FALCON_PUT64(data, taken, m->taken);
    IB_FALCON_PUT64(data, tail, (ib_u64)m->tail << 32 | m->head);
    IB_FALCON_PUT64(data, digest, m->digest);
    IB_FALCON_PUT64(data, tag, (ib_u64)0);
}

#endif
