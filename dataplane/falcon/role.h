/* SPDX-License-Identifier: Apache-2.0 */
/*
 * falcon.h - the Falcon scheduler: chooses the queue for a task, the queue that an executor gets
 * its task from, and what to do with the packet (docs/falcon.md).
 *
 * Pure: it decides on copies of registers and rewrites messages. The shell does all locking,
 * counting and waking. The time comes with the packet.
 */
#ifndef INBAND_FALCON_ROLE_H
#define INBAND_FALCON_ROLE_H

#include "msg.h"
#include "registers.h"

/* With PRIORITY and LOCALITY, every 16th task is taken round robin, so that no queue starves. */
#define IB_FALCON_TURN_EVERY 16

/* The input for choosing a queue. */
struct ib_falcon_view {
    ib_u64 candidates; /* bitmap of queues */
    ib_u64 turn;
    ib_u64 given;
    ib_u64 own_waits_ns; /* LOCALITY: how long the first task of the worker's place has waited, */
    ib_u64 any_waits_ns; /* and that of queue 0 */
    ib_u32 place;        /* LOCALITY: the worker's queue */
    ib_u32 in_turn;      /* output: advance the turn */
};

IB_INLINE ib_u64 ib_falcon_bit(ib_u32 n) {
    return 1ULL << (n & 63);
}

/*
 * Returns 1 if `word` is not 0, else 0, without a branch. In a loop that collects bits, the
 * verifier would otherwise process all 2^64 combinations.
 */
IB_INLINE ib_u64 ib_falcon_not_zero(ib_u64 word) {
    word = word >> 1 | (word & 1); /* below 2^63 */
    IB_HIDE(word);
    return (0 - word) >> 63;
}

/* Returns 1 if `a` is at least `b`, both below 2^63, without a branch. */
IB_INLINE ib_u64 ib_falcon_reaches(ib_u64 a, ib_u64 b) {
    ib_u64 difference = a - b;
    IB_HIDE(difference);
    return (difference >> 63) ^ 1;
}

/* The index of the lowest set bit of a nonzero word. (BPF has no instruction for it.) */
IB_INLINE ib_u32 ib_falcon_lowest(ib_u64 word) {
    ib_u64 n = 0;
    for (ib_u32 half = 32; half; half >>= 1) {
        ib_u64 skip = (1 - ib_falcon_not_zero(word & ((1ULL << half) - 1))) * half;
        word >>= skip;
        n += skip;
    }
    return (ib_u32)n;
}

/* Twice the round of a position: the slot's sequence when the position may be filled. */
IB_INLINE ib_u64 ib_falcon_free(ib_u32 position, ib_u32 slots_log2) {
    return (ib_u64)(position >> slots_log2) << 1;
}

IB_INLINE ib_u64 ib_falcon_filled(ib_u32 position, ib_u32 slots_log2) {
    return ib_falcon_free(position, slots_log2) | 1;
}

IB_INLINE ib_u32 ib_falcon_queues(ib_u32 policy) {
    if (policy == IB_FALCON_FIFO)
        return 1;
    return policy == IB_FALCON_PRIORITY ? IB_FALCON_PRIORITIES : IB_FALCON_QUEUES_MAX;
}

/* LOCALITY: the queue of tasks that prefer this worker. */
IB_INLINE ib_u32 ib_falcon_place_of(ib_u32 worker) {
    return worker % (IB_FALCON_QUEUES_MAX - 1) + 1;
}

/* The queue of a task. `where` is its word IB_FALCON_WHERE. */
IB_INLINE ib_u32 ib_falcon_queue_of(ib_u32 policy, ib_u64 where, ib_u32 user) {
    ib_u16 worker = (ib_u16)(where >> 16);
    if (policy == IB_FALCON_PRIORITY)
        return (ib_u32)(where >> 40) & (IB_FALCON_PRIORITIES - 1);
    if (policy == IB_FALCON_RESOURCES)
        return (ib_u32)(where >> 32) & (IB_FALCON_QUEUES_MAX - 1);
    if (policy == IB_FALCON_FAIR)
        return user & (IB_FALCON_QUEUES_MAX - 1);
    if (policy == IB_FALCON_LOCALITY)
        return worker == IB_FALCON_NO_WORKER ? 0 : ib_falcon_place_of(worker);
    return 0;
}

/* Whether a task's word IB_FALCON_WHERE has an invalid priority, resource or length. */
IB_INLINE int ib_falcon_is_bad_task(ib_u64 where) {
    return (ib_u8)(where >> 40) >= IB_FALCON_PRIORITIES ||
           (ib_u8)(where >> 32) >= IB_FALCON_QUEUES_MAX || (ib_u8)where > IB_FALCON_DESC_LEN_BYTES;
}

/* The non-empty queues from which a worker may be given a task. `waited`: LOCALITY, those whose
 * first task has waited long enough to go to any worker. */
IB_INLINE ib_u64 ib_falcon_candidates(ib_u32 policy, ib_u64 not_empty, ib_u64 waited, ib_u32 worker,
                                      ib_u64 resources) {
    if (policy == IB_FALCON_RESOURCES)
        return not_empty & (resources | 1);
    if (policy == IB_FALCON_LOCALITY)
        return not_empty & (waited | 1 | ib_falcon_bit(ib_falcon_place_of(worker)));
    return not_empty;
}

/* The first candidate, starting from the queue whose turn it is. */
IB_INLINE ib_u32 ib_falcon_in_turn(struct ib_falcon_view *v) {
    v->in_turn = 1;
    ib_u64 from_turn = v->candidates & ~(ib_falcon_bit((ib_u32)v->turn) - 1);
    return ib_falcon_lowest(from_turn ? from_turn : v->candidates);
}

/* LOCALITY: the worker's own queue or queue 0, whichever has the older first task, if there is
 * one. */
IB_INLINE ib_u32 ib_falcon_nearest(struct ib_falcon_view *v) {
    ib_u64 own = ib_falcon_bit(v->place), near = v->candidates & (own | 1);
    if (near == (own | 1))
        return v->own_waits_ns >= v->any_waits_ns ? v->place : 0;
    return near ? ib_falcon_lowest(near) : ib_falcon_in_turn(v);
}

/* The queue to take a task from; there must be candidates. */
IB_INLINE ib_u32 ib_falcon_choose(ib_u32 policy, struct ib_falcon_view *v) {
    v->in_turn = 0;
    if (policy == IB_FALCON_FIFO)
        return 0;
    if (policy == IB_FALCON_LOCALITY && (v->given + 1) % IB_FALCON_TURN_EVERY)
        return ib_falcon_nearest(v);
    if (policy == IB_FALCON_PRIORITY && (v->given + 1) % IB_FALCON_TURN_EVERY)
        return ib_falcon_lowest(v->candidates);
    return ib_falcon_in_turn(v);
}

/* How a PULL relates to its executor's record. */
enum ib_falcon_step {
    IB_FALCON_OLD,   /* overtaken by a later one */
    IB_FALCON_AGAIN, /* a retransmission: its task was assigned */
    IB_FALCON_NEXT,  /* must be served */
};

IB_INLINE ib_u64 ib_falcon_state_word(ib_u32 worker_incarnation, ib_u32 state) {
    return (ib_u64)worker_incarnation << 32 | state;
}

IB_INLINE enum ib_falcon_step ib_falcon_step_of(const struct ib_falcon_msg *m, ib_u64 state,
                                                ib_u64 pull_seq) {
    if (state >> 32 != m->worker_incarnation)
        return IB_FALCON_NEXT; /* the record of an earlier worker with this number */
    if (m->pull_seq < pull_seq)
        return IB_FALCON_OLD;
    int given = (ib_u32)state == IB_FALCON_BUSY;
    return m->pull_seq == pull_seq && given ? IB_FALCON_AGAIN : IB_FALCON_NEXT;
}

/* An answer without a task. */
IB_INLINE struct ib_result ib_falcon_answer(struct ib_falcon_msg *m, ib_u8 type, ib_u16 flags,
                                            unsigned int reason) {
    m->type = type;
    m->flags = flags;
    m->count = 0;
    m->value_len_bytes = 0;
    m->digest = 0;
    return ib_verdict(IB_REPLY, reason);
}

IB_INLINE struct ib_result ib_falcon_nack(struct ib_falcon_msg *m, ib_u64 incarnation,
                                          unsigned int reason) {
    m->incarnation = incarnation;
    return ib_falcon_answer(m, IB_FALCON_NACK, 0, reason);
}

/* Turns the packet, whose first task is the one assigned, into a TASK. `digest` is the task's. */
IB_INLINE struct ib_result ib_falcon_give(struct ib_falcon_msg *m, ib_u64 digest, ib_u16 flags,
                                          unsigned int verdict, unsigned int reason) {
    m->type = IB_FALCON_TASK;
    m->flags = flags;
    m->count = 1;
    m->value_len_bytes = IB_FALCON_TASK_LEN_BYTES;
    m->digest = digest;
    return ib_verdict(verdict, reason);
}

/* The reason for the answer to a SUBMIT that wakes no executor. */
IB_INLINE unsigned int ib_falcon_submitted(const struct ib_falcon_msg *m) {
    if (m->flags & IB_FALCON_F_USER_FULL)
        return IB_R_falcon_user_full;
    if (m->flags & IB_FALCON_F_FULL)
        return IB_R_falcon_queue_full;
    if (m->taken != ib_falcon_bit(m->count) - 1)
        return IB_R_falcon_push_contended;
    return m->count ? IB_R_falcon_queued : IB_R_falcon_asked;
}

#endif
