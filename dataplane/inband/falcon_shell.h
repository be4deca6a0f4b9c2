/* SPDX-License-Identifier: Apache-2.0 */
/*
 * falcon_shell.h - what surrounds the Falcon role on every backend: queues, executors' records,
 * parking and waking.
 *
 * The rules and why:
 *  - A slot is looked at BEFORE it is taken, by compare-and-swap of the queue's word: a pusher
 * never meets a task, nor a popper a hole, and nothing has to be repaired (schedules.md, 16).
 *  - A task is in its executor's record before the record is released, and the packet is made of
 *    the record: a PULL that is repeated gets the same task.
 *  - Who parks sets the executor's bit and THEN looks at the queues; who submits fills slots and
 * THEN looks at the bits, with a full barrier between: one of the two sees the other. Whoever
 * clears a bit owns the waking, and sets it again if there was nothing to give.
 *  - What still waits beside a task when a SUBMIT leaves, its answer tells (PARKED): the client
 *    wakes it with another one. A PULL that cannot get at a task which is there is not parked: it
 *    is told to ask again.
 *  - Every loop is bounded. Loss is always safe: executors and clients repeat what is not answered.
 *
 * Before including this file a backend defines struct ib_falcon_here, IB_FALCON_PART (of the larger
 * functions), and where things are; a pointer may be NULL, then the packet is dropped:
 *   const volatile struct ib_falcon_config *ib_falcon_config_at(here)
 *   struct ib_falcon_set *ib_falcon_set_at(here, set)
 *   struct ib_falcon_slot *ib_falcon_slot_at(here, index)
 *   struct ib_falcon_group *ib_falcon_group_at(here, index)
 *   struct ib_falcon_executor *ib_falcon_executor_at(here, index)
 *   ib_u8 *ib_falcon_task_at(here, n)                              of the packet, whole
 */
#ifndef INBAND_FALCON_SHELL_H
#define INBAND_FALCON_SHELL_H

#include "exclusive.h"
#include "../roles/falcon.h"

#define IB_FALCON_CAS_TRIES_MAX 16  /* for a slot of a queue */
#define IB_FALCON_QUEUE_TRIES_MAX 4 /* queues, before an executor is told that there is nothing */
#define IB_FALCON_WAKE_TRIES_MAX 4  /* executors of a SUBMIT */
#define IB_FALCON_PARK_TRIES_MAX 2  /* of a PULL */

/* What was done before is seen by others before what is read after. */
#if defined(__bpf__)
#define IB_FULL_BARRIER()                                                                          \
    do {                                                                                           \
        ib_u64 word = 0;                                                                           \
        (void)__sync_lock_test_and_set(&word, 1);                                                  \
    } while (0)
#else
#define IB_FULL_BARRIER() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif

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

/* Take an executor's record: the odd sequence, or 0 if others kept it. */
IB_FALCON_PART ib_u64 ib_falcon_take(struct ib_falcon_here *here, ib_u32 set, ib_u32 executor) {
    struct ib_falcon_executor *record = ib_falcon_record_of(here, set, executor);
    return record && ib_falcon_set_at(here, set) ? ib_take(&record->sequence) : 0;
}

/* Put task `n` of the packet at the end of `queue`; m->tail is then behind it. */
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

/* Move the first task of `queue` into the record of `executor`, which is taken. 0: none. */
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
                return 0; /* whoever puts it in is not done */
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

/* The word of a queue, whose number clang may know and the kernel's verifier does not. */
IB_INLINE ib_u64 ib_falcon_queue_word(const struct ib_falcon_set *regs, ib_u64 queue) {
    IB_HIDE(queue);
    return IB_LOAD(&regs->queue[queue % IB_FALCON_QUEUES_MAX]);
}

/* For how long the first task of a queue has been there; 0: none is. */
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

/* Which queues hold something, by their words. */
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

/* LOCALITY: of the queues that hold something, those whose first task may go anywhere by now. */
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

/* The queues that a worker may be given from now. */
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

/* Give a task of one of the queues `candidates` to `executor`, whose record is taken: into that.
 * 0: there is none for it. */
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
            /* Hints: two at once may give one queue two turns. */
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
 * Give a task to `executor`, whose record is taken: into that. 0: there is none for it. One part
 * after the other and not one in the other: stacks add up, and Linux 6.1 rounds each up to 32
 * bytes.
 */
IB_INLINE ib_u32 ib_falcon_take_out(struct ib_falcon_here *here, ib_u32 set, ib_u32 executor,
                                    ib_u64 now_ns) {
    if (ib_falcon_config_at(here)->policy == IB_FALCON_FIFO)
        return ib_falcon_pop(here, set, 0, executor);
    ib_u64 candidates = ib_falcon_there_is(here, set, executor / IB_FALCON_EXECUTORS, now_ns);
    return candidates ? ib_falcon_take_from(here, set, executor, now_ns, candidates) : 0;
}

/*
 * Of the workers of a group, from the one with the number `from`: an executor that is parked and
 * for which there is a task, plus 1; 0: there is none. A part of its own: the verifier walks each
 * iteration of a loop, and these 64 would be within those over the groups.
 */
IB_FALCON_PART ib_u32 ib_falcon_find_in_group(struct ib_falcon_here *here, ib_u32 set, ib_u32 from,
                                              ib_u64 not_empty, ib_u64 waited) {
    const volatile struct ib_falcon_config *config = ib_falcon_config_at(here);
    ib_u32 group = from / IB_FALCON_GROUP_WORKERS;
    ib_u64 first = from % IB_FALCON_GROUP_WORKERS;
    const struct ib_falcon_group *at =
        ib_falcon_group_at(here, set * ib_falcon_groups(config) + group);
    if (!at || !ib_falcon_set_at(here, set))
        return 0;
    for (;; first++) {
        IB_HIDE(first);
        if (first >= IB_FALCON_GROUP_WORKERS)
            return 0;
        ib_u64 parked = IB_LOAD(&at->worker[first].parked);
        if (!parked)
            continue;
        ib_u32 worker = group * IB_FALCON_GROUP_WORKERS + (ib_u32)first;
        if (ib_falcon_candidates(config->policy, not_empty, waited, worker,
                                 IB_LOAD(&at->worker[first].resources)))
            return worker * IB_FALCON_EXECUTORS + ib_falcon_lowest(parked) + 1;
    }
}

/* An executor that is parked and for which there is a task, plus 1; 0: there is none. */
IB_FALCON_PART ib_u32 ib_falcon_find(struct ib_falcon_here *here, ib_u32 set, ib_u64 now_ns) {
    const volatile struct ib_falcon_config *config = ib_falcon_config_at(here);
    const struct ib_falcon_set *regs = ib_falcon_set_at(here, set);
    if (!regs)
        return 0;
    ib_u64 not_empty = ib_falcon_not_empty(config, regs);
    if (!not_empty)
        return 0;
    ib_u64 waited = ib_falcon_waited(here, set, regs, not_empty, now_ns);
    ib_u64 groups = ib_falcon_groups(config), from = IB_LOAD(&regs->woken);
    ib_u64 start = from / IB_FALCON_GROUP_WORKERS;
    if (start >= groups)
        start = from = 0;
    for (ib_u64 i = 0; i <= groups && i <= IB_FALCON_GROUPS_MAX; i++) {
        ib_u64 first = i == 0 ? from % IB_FALCON_GROUP_WORKERS : 0;
        ib_u64 group = (start + i < groups ? start + i : start + i - groups) % IB_FALCON_GROUPS_MAX;
        if (!IB_LOAD(&regs->waiting[group]))
            continue;
        ib_u32 found = ib_falcon_find_in_group(
            here, set, (ib_u32)(group * IB_FALCON_GROUP_WORKERS + first), not_empty, waited);
        if (found)
            return found;
    }
    return 0;
}

/* May anybody be parked? */
IB_INLINE int ib_falcon_anybody(struct ib_falcon_here *here, const struct ib_falcon_set *regs) {
    ib_u32 groups = ib_falcon_groups(ib_falcon_config_at(here));
    ib_u64 waiting = 0;
    for (ib_u32 group = 0; group < groups && group < IB_FALCON_GROUPS_MAX; group++)
        waiting |= IB_LOAD(&regs->waiting[group]);
    return waiting != 0;
}

/* Set the bit of an executor; a full barrier. `waiting` is never less than the bits that are set.
 */
IB_INLINE void ib_falcon_set_bit(struct ib_falcon_set *regs, struct ib_falcon_worker *worker,
                                 ib_u32 executor) {
    ib_u32 group = executor / IB_FALCON_EXECUTORS / IB_FALCON_GROUP_WORKERS;
    ib_u64 *waiting = &regs->waiting[group % IB_FALCON_GROUPS_MAX];
    ib_u64 bit = ib_falcon_bit(executor % IB_FALCON_EXECUTORS);
    __sync_fetch_and_add(waiting, 1);
    IB_RACE_WINDOW();
    if (__sync_fetch_and_or(&worker->parked, bit) & bit)
        __sync_fetch_and_sub(waiting, 1);
}

/* Clear it. 0: somebody else has. */
IB_INLINE int ib_falcon_clear_bit(struct ib_falcon_set *regs, struct ib_falcon_worker *worker,
                                  ib_u32 executor) {
    ib_u32 group = executor / IB_FALCON_EXECUTORS / IB_FALCON_GROUP_WORKERS;
    ib_u64 *waiting = &regs->waiting[group % IB_FALCON_GROUPS_MAX];
    ib_u64 bit = ib_falcon_bit(executor % IB_FALCON_EXECUTORS);
#ifdef IB_MUTANT_BIT_NOT_TAKEN
    ib_u64 before = IB_LOAD(&worker->parked);
    IB_RACE_WINDOW();
    *(volatile ib_u64 *)&worker->parked = before & ~bit;
#else
    if (!(IB_LOAD(&worker->parked) & bit))
        return 0;
    ib_u64 before = __sync_fetch_and_and(&worker->parked, ~bit);
#endif
    if (!(before & bit))
        return 0;
    __sync_fetch_and_sub(waiting, 1);
    return 1;
}

/* Make the packet's first task that of the record; its digest. */
IB_INLINE ib_u64 ib_falcon_fill(struct ib_falcon_here *here,
                                const struct ib_falcon_executor *record) {
    ib_wire64 *words = (ib_wire64 *)ib_falcon_task_at(here, 0);
    if (!words)
        return 0; /* cannot be: there is room for one in every packet that is served */
    for (int w = 0; w < IB_FALCON_TASK_WORDS; w++)
        words[w] = record->task[w];
    return IB_NET64(record->task[IB_FALCON_DIGEST]);
}

IB_INLINE ib_u64 ib_falcon_address_word(ib_u32 address, ib_u16 port) {
    return (ib_u64)address << 16 | port;
}

/*
 * Park the executor of a PULL: its record is taken, and released here. 0: it waits, and the packet
 * ends. Else there is something for it, and its record is taken again: the odd sequence.
 */
IB_INLINE ib_u64 ib_falcon_park(struct ib_falcon_here *here, struct ib_falcon_msg *m,
                                struct ib_falcon_set *regs, struct ib_falcon_worker *worker,
                                struct ib_falcon_executor *record, ib_u64 odd, ib_u64 now_ns) {
    ib_u64 waits = ib_falcon_state_word(m->worker_incarnation, IB_FALCON_WAITS);
    record->state = waits;
    ib_release(&record->sequence, odd);
    IB_RACE_WINDOW();
    ib_falcon_set_bit(regs, worker, m->executor);
    IB_RACE_WINDOW();
#ifdef IB_MUTANT_PARK_WITHOUT_LOOK
    return 0;
#endif
    if (!ib_falcon_there_is(here, m->set, m->executor / IB_FALCON_EXECUTORS, now_ns))
        return 0;
    if (!ib_falcon_clear_bit(regs, worker, m->executor))
        return 0; /* whoever has cleared it wakes the executor */
    odd = ib_falcon_take(here, m->set, m->executor);
    if (IB_RARE(!odd)) {
        ib_falcon_set_bit(regs, worker, m->executor);
        return 0;
    }
    if (IB_LOAD(&record->state) != waits) {
        ib_release(&record->sequence, odd); /* a later PULL came between, and was answered */
        return 0;
    }
    m->pull_seq = record->pull_seq; /* perhaps of a later PULL, which waits by the same bit */
    return odd;
}

/* A PULL that is to be served: its executor's record is taken, and released here. */
IB_INLINE struct ib_result ib_falcon_serve(struct ib_falcon_here *here, struct ib_falcon_msg *m,
                                           struct ib_falcon_set *regs,
                                           struct ib_falcon_worker *worker,
                                           struct ib_falcon_executor *record, ib_u64 odd,
                                           ib_u64 now_ns) {
    ib_falcon_clear_bit(regs, worker, m->executor);
    for (int i = 0; i < IB_FALCON_PARK_TRIES_MAX; i++) {
#ifdef IB_MUTANT_RELEASED_BEFORE_TASK
        record->state = ib_falcon_state_word(m->worker_incarnation, IB_FALCON_BUSY);
        ib_release(&record->sequence, odd);
        IB_RACE_WINDOW();
#endif
        if (ib_falcon_take_out(here, m->set, m->executor, now_ns)) {
            record->state = ib_falcon_state_word(m->worker_incarnation, IB_FALCON_BUSY);
            ib_u64 digest = ib_falcon_fill(here, record);
#ifndef IB_MUTANT_RELEASED_BEFORE_TASK
            ib_release(&record->sequence, odd);
#endif
            return ib_falcon_give(m, digest, 0, IB_BACK, IB_R_falcon_given);
        }
        if (!(m->flags & IB_FALCON_F_PARK)) {
            ib_release(&record->sequence, odd);
            return ib_falcon_answer(m, IB_FALCON_NO_TASK, 0, IB_R_falcon_empty);
        }
        odd = ib_falcon_park(here, m, regs, worker, record, odd, now_ns);
        if (!odd)
            return ib_say(IB_DROP, IB_R_falcon_parked);
    }
    record->state = ib_falcon_state_word(m->worker_incarnation, IB_FALCON_IDLE);
    ib_release(&record->sequence, odd);
    return ib_falcon_answer(m, IB_FALCON_NO_TASK, 0, IB_R_falcon_busy);
}

IB_INLINE struct ib_result ib_falcon_pull(struct ib_falcon_here *here, struct ib_falcon_msg *m,
                                          const struct ib_falcon_arrival *a) {
    const volatile struct ib_falcon_config *config = ib_falcon_config_at(here);
    if (m->executor >= config->workers * IB_FALCON_EXECUTORS)
        return ib_say(IB_DROP, IB_R_falcon_bad_executor);
    struct ib_falcon_set *regs = ib_falcon_set_at(here, m->set);
    struct ib_falcon_worker *worker =
        ib_falcon_worker_of(here, m->set, m->executor / IB_FALCON_EXECUTORS);
    struct ib_falcon_executor *record = ib_falcon_record_of(here, m->set, m->executor);
    if (!regs || !worker || !record)
        return ib_say(IB_DROP, IB_R_falcon_bad_executor);
    if (m->incarnation != config->incarnation)
        return ib_falcon_nack(m, config->incarnation, IB_R_falcon_other_incarnation);
    if (!m->worker_incarnation || IB_LOAD(&worker->incarnation) != m->worker_incarnation)
        return ib_falcon_nack(m, config->incarnation, IB_R_falcon_not_registered);
    ib_u64 odd = ib_falcon_take(here, m->set, m->executor);
    if (IB_RARE(!odd))
        return ib_say(IB_DROP, IB_R_contended);
    enum ib_falcon_step step = ib_falcon_step_of(m, record->state, record->pull_seq);
    if (step == IB_FALCON_OLD) {
        ib_release(&record->sequence, odd);
        return ib_say(IB_DROP, IB_R_falcon_overtaken);
    }
#ifndef IB_MUTANT_REPEATED_POPS_AGAIN
    if (step == IB_FALCON_AGAIN) {
        ib_u64 digest = ib_falcon_fill(here, record);
        ib_release(&record->sequence, odd);
        return ib_falcon_give(m, digest, IB_FALCON_F_REPEATED, IB_BACK, IB_R_falcon_given_again);
    }
#endif
    record->pull_seq = m->pull_seq;
    record->state = ib_falcon_state_word(m->worker_incarnation, IB_FALCON_IDLE);
    record->address = ib_falcon_address_word(a->from_address, a->from_port);
    return ib_falcon_serve(here, m, regs, worker, record, odd, a->now_ns);
}

/* Put the packet's tasks into their queues, in order; one is left out if one before it was that
 * goes to the same queue. Notes in `m` which were taken, and why not. */
IB_INLINE void ib_falcon_push_all(struct ib_falcon_here *here, struct ib_falcon_msg *m,
                                  struct ib_falcon_set *regs, ib_u64 now_ns) {
    const volatile struct ib_falcon_config *config = ib_falcon_config_at(here);
    ib_u64 refused = 0; /* queues that have not taken one of this packet's tasks */
    for (ib_u32 n = 0; n < IB_FALCON_TASKS_MAX && n < m->count; n++) {
        const ib_u8 *task = ib_falcon_task_at(here, n);
        if (!task)
            return;
        ib_u64 where = IB_FALCON_TASK_WORD(task, IB_FALCON_WHERE);
        ib_u32 queue = ib_falcon_queue_of(config->policy, where, m->user);
        if (refused & ib_falcon_bit(queue))
            continue;
        ib_u64 *tasks = &regs->user_tasks[m->user % IB_FALCON_USERS];
        ib_u32 outcome = IB_FALCON_IS_FULL;
        if (__sync_fetch_and_add(tasks, 1) >= config->user_tasks_max) {
            refused = ~0ULL;
            m->flags |= IB_FALCON_F_USER_FULL;
        } else {
            outcome = ib_falcon_push(here, m, n, queue, now_ns);
            if (outcome == IB_FALCON_IS_FULL)
                m->flags |= IB_FALCON_F_FULL;
        }
        if (outcome == IB_FALCON_TAKEN) {
            m->taken |= ib_falcon_bit(n);
            m->queue = (ib_u8)queue;
        } else {
            __sync_fetch_and_sub(tasks, 1);
            refused |= ib_falcon_bit(queue);
        }
    }
}

/*
 * Wake an executor that is parked: a task into its record, and into the packet. 1: it is to go
 * there, and names it; else nobody was woken.
 */
IB_INLINE int ib_falcon_wake(struct ib_falcon_here *here, struct ib_falcon_msg *m,
                             struct ib_falcon_set *regs, ib_u64 now_ns) {
    for (int i = 0; i < IB_FALCON_WAKE_TRIES_MAX; i++) {
        ib_u32 found = ib_falcon_find(here, m->set, now_ns);
        if (!found)
            return 0;
        ib_u32 executor = found - 1;
        struct ib_falcon_worker *worker =
            ib_falcon_worker_of(here, m->set, executor / IB_FALCON_EXECUTORS);
        struct ib_falcon_executor *record = ib_falcon_record_of(here, m->set, executor);
        if (!worker || !record)
            return 0;
        IB_RACE_WINDOW();
        if (!ib_falcon_clear_bit(regs, worker, executor))
            continue;
        regs->woken = executor / IB_FALCON_EXECUTORS + 1;
        ib_u64 odd = ib_falcon_take(here, m->set, executor);
        if (IB_RARE(!odd)) {
            ib_falcon_set_bit(regs, worker, executor);
            continue;
        }
        ib_u64 state = record->state;
        int waits =
            (ib_u32)state == IB_FALCON_WAITS && state >> 32 == IB_LOAD(&worker->incarnation);
        if (waits && ib_falcon_take_out(here, m->set, executor, now_ns)) {
            record->state = ib_falcon_state_word((ib_u32)(state >> 32), IB_FALCON_BUSY);
            m->executor = executor;
            m->worker_incarnation = (ib_u32)(state >> 32);
            m->pull_seq = record->pull_seq;
            m->to_address = (ib_u32)(record->address >> 16);
            m->to_port = (ib_u16)record->address;
            m->digest = ib_falcon_fill(here, record);
            ib_release(&record->sequence, odd);
            return 1;
        }
        ib_release(&record->sequence, odd);
        if (waits)
            ib_falcon_set_bit(regs, worker, executor);
    }
    return 0;
}

/* Are the packet's tasks what its sender put there, and possible? IB_R_none, or why not. */
IB_INLINE unsigned int ib_falcon_tasks_check(struct ib_falcon_here *here,
                                             const struct ib_falcon_msg *m) {
    ib_u64 digest = 0;
    for (ib_u32 n = 0; n < IB_FALCON_TASKS_MAX && n < m->count; n++) {
        const ib_u8 *task = ib_falcon_task_at(here, n);
        if (!task || ib_falcon_is_bad_task(IB_FALCON_TASK_WORD(task, IB_FALCON_WHERE)))
            return IB_R_falcon_bad_task;
        digest ^= IB_FALCON_TASK_WORD(task, IB_FALCON_DIGEST);
    }
    return digest == m->digest ? IB_R_none : IB_R_falcon_bad_digest;
}

IB_INLINE struct ib_result ib_falcon_submit(struct ib_falcon_here *here, struct ib_falcon_msg *m,
                                            const struct ib_falcon_arrival *a) {
    const volatile struct ib_falcon_config *config = ib_falcon_config_at(here);
    struct ib_falcon_set *regs = ib_falcon_set_at(here, m->set);
    unsigned int reason = ib_falcon_tasks_check(here, m);
    if (reason != IB_R_none || !regs)
        return ib_say(IB_DROP, reason);
    m->incarnation = config->incarnation;
    m->client_address = a->from_address;
    m->client_port = a->from_port;
    m->flags = 0;
    m->taken = 0;
    m->queue %= ib_falcon_queues(config->policy);
    ib_falcon_push_all(here, m, regs, a->now_ns);
    IB_FULL_BARRIER();
    IB_RACE_WINDOW();
    int woken = 0;
    if (ib_falcon_anybody(here, regs)) {
        woken = ib_falcon_wake(here, m, regs, a->now_ns);
        if (ib_falcon_find(here, m->set, a->now_ns))
            m->flags |= IB_FALCON_F_PARKED;
    }
    ib_u64 word = ib_falcon_queue_word(regs, m->queue);
    m->head = (ib_u32)word;
    if (!m->taken)
        m->tail = (ib_u32)(word >> 32);
    if (woken)
        return ib_falcon_give(m, m->digest, m->flags | IB_FALCON_F_ORIGIN, IB_TO_EXECUTOR,
                              IB_R_falcon_woken);
    return ib_falcon_answer(m, IB_FALCON_SUBMIT_REPLY, m->flags, ib_falcon_submitted(m));
}

/* A result in one word, as larger functions return it. */
IB_INLINE ib_u64 ib_falcon_word_of(struct ib_result result) {
    return (ib_u64)result.verdict << 32 | result.reason;
}

IB_FALCON_PART ib_u64 ib_falcon_pull_part(struct ib_falcon_here *here, struct ib_falcon_msg *m,
                                          const struct ib_falcon_arrival *a) {
    return m && a ? ib_falcon_word_of(ib_falcon_pull(here, m, a)) : 0;
}

IB_FALCON_PART ib_u64 ib_falcon_submit_part(struct ib_falcon_here *here, struct ib_falcon_msg *m,
                                            const struct ib_falcon_arrival *a) {
    return m && a ? ib_falcon_word_of(ib_falcon_submit(here, m, a)) : 0;
}

/* Every message. */
IB_INLINE struct ib_result ib_shell_falcon(struct ib_falcon_here *here, struct ib_falcon_msg *m,
                                           const struct ib_falcon_arrival *a) {
    ib_u64 word = (ib_u64)IB_DROP << 32 | IB_R_falcon_not_for_scheduler;
    if (m->type == IB_FALCON_SUBMIT)
        word = ib_falcon_submit_part(here, m, a);
    else if (m->type == IB_FALCON_PULL)
        word = ib_falcon_pull_part(here, m, a);
    else if (m->type == IB_FALCON_HOST)
        word = (ib_u64)IB_PASS << 32 | IB_R_passed_up;
    return ib_say((unsigned int)(word >> 32), (unsigned int)word);
}

#endif
