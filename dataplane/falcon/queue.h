/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.h - a scheduler's queues, which any number of CPUs may use concurrently. shell.h lists what
 * a backend must define before including this.
 *
 * A slot is checked BEFORE it is taken by a compare-and-swap of the queue's word. So a push never
 * hits a task and a pop never hits an empty slot, and no repair is needed (schedules.md, 16).
 */
#ifndef INBAND_FALCON_QUEUE_H
#define INBAND_FALCON_QUEUE_H

#include "../ground/seqlock.h"
#include "role.h"

#define IB_FALCON_CAS_TRIES_MAX 16  /* attempts to take a slot of a queue */
#define IB_FALCON_QUEUE_TRIES_MAX 4 /* queues to try before answering that there is no task */

enum ib_falcon_outcome {
    IB_FALCON_TAKEN,
    IB_FALCON_IS_FULL,
    IB_FALCON_IS_CONTENDED,
};

IB_INLINE ib_u32 ib_falcon_groups(const volatile struct ib_falcon_config *config) {
    return (config->workers + IB_FALCON_GROUP_WORKERS - 1) / IB_FALCON_GROUP_WORKERS;
}

/* The slot of a position of a queue. */
IB_INLINE struct ib_falcon_slot *ib_falcon_slot_of(struct ib_falcon_here *here, ib_u32 set,
                                                   ib_u32 queue, ib_u32 position) {
    const volatile struct ib_falcon_config *config = ib_falcon_config_at(here);
    ib_u32 slots = 1U << config->slots_log2;
    ib_u64 first = (ib_u64)(set * ib_falcon_queues(config->policy) + queue) * slots;
    return ib_falcon_slot_at(here, first + (position & (slots - 1)));
}

IB_INLINE struct ib_falcon_worker *ib_falcon_worker_of(struct ib_falcon_here *here, ib_u32 set,
                                                       ib_u32 worker) {
    ib_u32 groups = ib_falcon_groups(ib_falcon_config_at(here));
    struct ib_falcon_group *group =
        ib_falcon_group_at(here, set * groups + worker / IB_FALCON_GROUP_WORKERS);
    return group ? &group->worker[worker % IB_FALCON_GROUP_WORKERS] : 0;
}

IB_INLINE struct ib_falcon_executor *ib_falcon_record_of(struct ib_falcon_here *here, ib_u32 set,
                                                         ib_u32 executor) {
    ib_u32 executors = ib_falcon_config_at(here)->workers * IB_FALCON_EXECUTORS;
    return ib_falcon_executor_at(here, (ib_u64)set * executors + executor);
}

/* Locks an executor's record. Returns the odd sequence, or 0 if others held the lock. */
IB_FALCON_PART ib_u64 ib_falcon_take(struct ib_falcon_here *here, ib_u32 set, ib_u32 executor) {
    struct ib_falcon_executor *record = ib_falcon_record_of(here, set, executor);
    return record && ib_falcon_set_at(here, set) ? ib_seq_lock(&record->sequence) : 0;
}

/* Appends task `n` of the packet to `queue`, and sets m->tail to the position after it. */
IB_FALCON_PART ib_u32 ib_falcon_push(struct ib_falcon_here *here, struct ib_falcon_msg *m, ib_u32 n,
                                     ib_u32 queue, ib_u64 now_ns) {
    ib_u32 log2 = ib_falcon_config_at(here)->slots_log2;
    struct ib_falcon_set *regs = m ? ib_falcon_set_at(here, m->set) : 0;
    const ib_wire64 *words = (const ib_wire64 *)ib_falcon_task_at(here, n);
    if (!regs || !words)
        return IB_FALCON_IS_CONTENDED;
    ib_u64 *places = &regs->queue[queue % IB_FALCON_QUEUES_MAX];
    for (int i = 0; i < IB_FALCON_CAS_TRIES_MAX; i++) {
        ib_u64 word = IB_LOAD(places);
        ib_u32 add = (ib_u32)(word >> 32);
        IB_LOADS_IN_ORDER();
        struct ib_falcon_slot *slot = ib_falcon_slot_of(here, m->set, queue, add);
        if (!slot)
            return IB_FALCON_IS_CONTENDED;
        IB_RACE_WINDOW();
#ifdef IB_MUTANT_PUSH_WITHOUT_SEQUENCE
        if (add - (ib_u32)word >= 1U << log2) {
#else
        if (IB_LOAD(&slot->sequence) != ib_falcon_free(add, log2)) {
#endif
            IB_LOADS_IN_ORDER();
            if (IB_LOAD(places) == word)
                return IB_FALCON_IS_FULL;
            continue;
        }
        IB_RACE_WINDOW();
        if (!IB_CAS(places, word, word + (1ULL << 32)))
            continue;
        IB_RACE_WINDOW();
        slot->came_ns = now_ns;
        slot->task[IB_FALCON_WHOSE] = IB_NET64((ib_u64)m->user << 32 | m->job);
        slot->task[IB_FALCON_WHICH] =
            IB_NET64((IB_NET64(words[IB_FALCON_WHICH]) >> 32) << 32 | m->client_address);
        slot->task[IB_FALCON_WHERE] =
            IB_NET64((ib_u64)m->client_port << 48 | IB_NET64(words[IB_FALCON_WHERE]) << 16 >> 16);
        for (int w = IB_FALCON_DIGEST; w < IB_FALCON_TASK_WORDS; w++)
            slot->task[w] = words[w];
        IB_RACE_WINDOW();
        IB_PUBLISH(&slot->sequence, ib_falcon_filled(add, log2));
        m->tail = add + 1;
        return IB_FALCON_TAKEN;
    }
    return IB_FALCON_IS_CONTENDED;
}

/* Moves the first task of `queue` into the locked record of `executor`. Returns 0 if there is
 * none. */
IB_FALCON_PART ib_u32 ib_falcon_pop(struct ib_falcon_here *here, ib_u32 set, ib_u32 queue,
                                    ib_u32 executor) {
    ib_u32 log2 = ib_falcon_config_at(here)->slots_log2;
    struct ib_falcon_set *regs = ib_falcon_set_at(here, set);
    struct ib_falcon_executor *record = ib_falcon_record_of(here, set, executor);
    if (!regs || !record)
        return 0;
    ib_u64 *places = &regs->queue[queue % IB_FALCON_QUEUES_MAX];
    for (int i = 0; i < IB_FALCON_CAS_TRIES_MAX; i++) {
        ib_u64 word = IB_LOAD(places);
        ib_u32 retrieve = (ib_u32)word;
        if (word >> 32 == retrieve)
            return 0;
        IB_LOADS_IN_ORDER();
        struct ib_falcon_slot *slot = ib_falcon_slot_of(here, set, queue, retrieve);
        if (!slot)
            return 0;
        IB_RACE_WINDOW();
#ifndef IB_MUTANT_POP_BEFORE_FILLED
        if (IB_LOAD(&slot->sequence) != ib_falcon_filled(retrieve, log2)) {
            IB_LOADS_IN_ORDER();
            if (IB_LOAD(places) == word)
                return 0; /* its push has not finished */
            continue;
        }
#endif
        IB_RACE_WINDOW();
        ib_u64 after = word >> 32 << 32 | (ib_u32)(retrieve + 1);
        if (!IB_CAS(places, word, after))
            continue;
        IB_RACE_WINDOW();
        for (int w = 0; w < IB_FALCON_TASK_WORDS; w++)
            record->task[w] = slot->task[w];
        ib_u32 user = (ib_u32)(IB_NET64(slot->task[IB_FALCON_WHOSE]) >> 32);
        IB_RACE_WINDOW();
        IB_PUBLISH(&slot->sequence, ib_falcon_free(retrieve + (1U << log2), log2));
        __sync_fetch_and_sub(&regs->user_tasks[user % IB_FALCON_USERS], 1);
        return 1;
    }
    return 0;
}

/* The word of a queue. Hides the queue's number, because clang may know its range but the verifier
 * does not. */
IB_INLINE ib_u64 ib_falcon_queue_word(const struct ib_falcon_set *regs, ib_u64 queue) {
    IB_HIDE(queue);
    return IB_LOAD(&regs->queue[queue % IB_FALCON_QUEUES_MAX]);
}

/* How long the first task of a queue has waited; 0 if there is none. */
IB_INLINE ib_u64 ib_falcon_first_waits_ns(struct ib_falcon_here *here, ib_u32 set, ib_u32 queue,
                                          ib_u64 word, ib_u64 now_ns) {
    ib_u32 log2 = ib_falcon_config_at(here)->slots_log2, retrieve = (ib_u32)word;
    struct ib_falcon_slot *slot = ib_falcon_slot_of(here, set, queue, retrieve);
    if (!slot || IB_LOAD(&slot->sequence) != ib_falcon_filled(retrieve, log2))
        return 0;
    IB_LOADS_IN_ORDER();
    ib_u64 came_ns = IB_LOAD(&slot->came_ns);
    return came_ns < now_ns ? now_ns - came_ns : 0;
}

/* Bitmap of the queues that are not empty, according to their words. */
IB_INLINE ib_u64 ib_falcon_not_empty(const volatile struct ib_falcon_config *config,
                                     const struct ib_falcon_set *regs) {
    ib_u64 not_empty = 0;
    ib_u32 queues = ib_falcon_queues(config->policy);
    for (ib_u32 queue = 0; queue < queues && queue < IB_FALCON_QUEUES_MAX; queue++) {
        ib_u64 word = IB_LOAD(&regs->queue[queue]);
        not_empty |= ib_falcon_not_zero((word >> 32) ^ (ib_u32)word) << queue;
    }
    return not_empty;
}

/* LOCALITY: the non-empty queues whose first task has waited long enough to go to any worker. */
IB_INLINE ib_u64 ib_falcon_waited(struct ib_falcon_here *here, ib_u32 set,
                                  const struct ib_falcon_set *regs, ib_u64 not_empty,
                                  ib_u64 now_ns) {
    ib_u64 waited = 0, wait_ns = ib_falcon_config_at(here)->locality_wait_ns;
    if (ib_falcon_config_at(here)->policy != IB_FALCON_LOCALITY)
        return 0;
    for (ib_u32 queue = 1; queue < IB_FALCON_QUEUES_MAX; queue++) {
        if (!(not_empty >> queue & 1))
            continue;
        ib_u64 waits_ns =
            ib_falcon_first_waits_ns(here, set, queue, IB_LOAD(&regs->queue[queue]), now_ns);
        waited |= ib_falcon_reaches(waits_ns, wait_ns) << queue;
    }
    return waited;
}

/* The queues from which a worker may be given a task now. */
IB_FALCON_PART ib_u64 ib_falcon_there_is(struct ib_falcon_here *here, ib_u32 set, ib_u32 worker,
                                         ib_u64 now_ns) {
    const struct ib_falcon_set *regs = ib_falcon_set_at(here, set);
    const struct ib_falcon_worker *at = ib_falcon_worker_of(here, set, worker);
    if (!regs || !at)
        return 0;
    ib_u64 not_empty = ib_falcon_not_empty(ib_falcon_config_at(here), regs);
    ib_u64 waited = ib_falcon_waited(here, set, regs, not_empty, now_ns);
    return ib_falcon_candidates(ib_falcon_config_at(here)->policy, not_empty, waited, worker,
                                IB_LOAD(&at->resources));
}

/* Moves a task from one of the queues `candidates` into the locked record of `executor`. Returns 0
 * if there is none. */
IB_FALCON_PART ib_u32 ib_falcon_take_from(struct ib_falcon_here *here, ib_u32 set, ib_u32 executor,
                                          ib_u64 now_ns, ib_u64 candidates) {
    struct ib_falcon_view v = {0};
    ib_u32 policy = ib_falcon_config_at(here)->policy, worker = executor / IB_FALCON_EXECUTORS;
    struct ib_falcon_set *regs = ib_falcon_set_at(here, set);
    struct ib_falcon_worker *at = ib_falcon_worker_of(here, set, worker);
    if (!regs || !at)
        return 0;
    v.candidates = candidates;
    v.turn = policy == IB_FALCON_RESOURCES ? IB_LOAD(&at->turn) : IB_LOAD(&regs->turn);
    v.given = IB_LOAD(&regs->given);
    v.place = ib_falcon_place_of(worker);
    if (policy == IB_FALCON_LOCALITY) {
        ib_u64 own = ib_falcon_queue_word(regs, v.place), any = IB_LOAD(&regs->queue[0]);
        v.own_waits_ns = ib_falcon_first_waits_ns(here, set, v.place, own, now_ns);
        v.any_waits_ns = ib_falcon_first_waits_ns(here, set, 0, any, now_ns);
    }
    for (int i = 0; i < IB_FALCON_QUEUE_TRIES_MAX && v.candidates; i++) {
        ib_u32 queue = ib_falcon_choose(policy, &v);
        if (ib_falcon_pop(here, set, queue, executor)) {
            /* Only hints: two concurrent packets may give a queue two turns. */
            ib_u64 turn = (queue + 1) % IB_FALCON_QUEUES_MAX;
            if (v.in_turn && policy == IB_FALCON_RESOURCES)
                at->turn = turn;
            else if (v.in_turn)
                regs->turn = turn;
            regs->given = v.given + 1;
            return 1;
        }
        v.candidates &= ~ib_falcon_bit(queue);
    }
    return 0;
}

/*
 * Moves a task into the locked record of `executor`. Returns 0 if there is none. The parts are
 * called one after another instead of nested, because stack sizes add up, and Linux 6.1 rounds each
 * up to 32 bytes.
 */
IB_INLINE ib_u32 ib_falcon_take_out(struct ib_falcon_here *here, ib_u32 set, ib_u32 executor,
                                    ib_u64 now_ns) {
    if (ib_falcon_config_at(here)->policy == IB_FALCON_FIFO)
        return ib_falcon_pop(here, set, 0, executor);
    ib_u64 candidates = ib_falcon_there_is(here, set, executor / IB_FALCON_EXECUTORS, now_ns);
    return candidates ? ib_falcon_take_from(here, set, executor, now_ns, candidates) : 0;
}

#endif
