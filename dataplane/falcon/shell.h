/* SPDX-License-Identifier: Apache-2.0 */
/*
 * falcon/shell.h - the code around the Falcon role on every backend: handles PULL and SUBMIT.
 *
 * The rules and why:
 *  - A task is in its executor's record before the record is unlocked, and the packet is made from
 *    the record: a retransmitted PULL gets the same task.
 *  - If an executor still waits although there is a task for it when a SUBMIT leaves, its answer
 *    says so (PARKED), and the client wakes that executor with another SUBMIT. A PULL that cannot
 *    get at an existing task is not parked but told to retry.
 *  - Every loop is bounded. Loss is always safe: executors and clients retransmit unanswered
 *    packets.
 *
 * Before including this file a backend defines struct ib_falcon_here, IB_FALCON_PART (the attribute
 * of larger functions), and the following accessors. If one returns NULL, the packet is dropped:
 *   const volatile struct ib_falcon_config *ib_falcon_config_at(here)
 *   struct ib_falcon_set *ib_falcon_set_at(here, set)
 *   struct ib_falcon_slot *ib_falcon_slot_at(here, index)
 *   struct ib_falcon_group *ib_falcon_group_at(here, index)
 *   struct ib_falcon_executor *ib_falcon_executor_at(here, index)
 *   ib_u8 *ib_falcon_task_at(here, n)                              a whole task of the packet
 */
#ifndef INBAND_FALCON_SHELL_H
#define INBAND_FALCON_SHELL_H

#include "parking.h"

#define IB_FALCON_PARK_TRIES_MAX 2 /* per PULL */

/* Makes earlier writes visible to others before later reads. */
#if defined(__bpf__)
#define IB_FULL_BARRIER()                                                                          \
    do {                                                                                           \
        ib_u64 word = 0;                                                                           \
        (void)__sync_lock_test_and_set(&word, 1);                                                  \
    } while (0)
#else
#define IB_FULL_BARRIER() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif

/* Serves a PULL. Its executor's record is locked, and unlocked here. */
IB_INLINE struct ib_result ib_falcon_serve(struct ib_falcon_here *here, struct ib_falcon_msg *m,
                                           struct ib_falcon_set *regs,
                                           struct ib_falcon_worker *worker,
                                           struct ib_falcon_executor *record, ib_u64 odd,
                                           ib_u64 now_ns) {
    ib_falcon_clear_bit(regs, worker, m->executor);
    for (int i = 0; i < IB_FALCON_PARK_TRIES_MAX; i++) {
#ifdef IB_MUTANT_RELEASED_BEFORE_TASK
        record->state = ib_falcon_state_word(m->worker_incarnation, IB_FALCON_BUSY);
        ib_seq_unlock(&record->sequence, odd);
        IB_RACE_WINDOW();
#endif
        if (ib_falcon_take_out(here, m->set, m->executor, now_ns)) {
            record->state = ib_falcon_state_word(m->worker_incarnation, IB_FALCON_BUSY);
            ib_u64 digest = ib_falcon_fill(here, record);
#ifndef IB_MUTANT_RELEASED_BEFORE_TASK
            ib_seq_unlock(&record->sequence, odd);
#endif
            return ib_falcon_give(m, digest, 0, IB_REPLY, IB_R_falcon_given);
        }
        if (!(m->flags & IB_FALCON_F_PARK)) {
            ib_seq_unlock(&record->sequence, odd);
            return ib_falcon_answer(m, IB_FALCON_NO_TASK, 0, IB_R_falcon_empty);
        }
        odd = ib_falcon_park(here, m, regs, worker, record, odd, now_ns);
        if (!odd)
            return ib_verdict(IB_DROP, IB_R_falcon_parked);
    }
    record->state = ib_falcon_state_word(m->worker_incarnation, IB_FALCON_IDLE);
    ib_seq_unlock(&record->sequence, odd);
    return ib_falcon_answer(m, IB_FALCON_NO_TASK, 0, IB_R_falcon_busy);
}

IB_INLINE struct ib_result ib_falcon_pull(struct ib_falcon_here *here, struct ib_falcon_msg *m,
                                          const struct ib_falcon_arrival *a) {
    const volatile struct ib_falcon_config *config = ib_falcon_config_at(here);
    if (m->executor >= config->workers * IB_FALCON_EXECUTORS)
        return ib_verdict(IB_DROP, IB_R_falcon_bad_executor);
    struct ib_falcon_set *regs = ib_falcon_set_at(here, m->set);
    struct ib_falcon_worker *worker =
        ib_falcon_worker_of(here, m->set, m->executor / IB_FALCON_EXECUTORS);
    struct ib_falcon_executor *record = ib_falcon_record_of(here, m->set, m->executor);
    if (!regs || !worker || !record)
        return ib_verdict(IB_DROP, IB_R_falcon_bad_executor);
    if (m->incarnation != config->incarnation)
        return ib_falcon_nack(m, config->incarnation, IB_R_falcon_other_incarnation);
    if (!m->worker_incarnation || IB_LOAD(&worker->incarnation) != m->worker_incarnation)
        return ib_falcon_nack(m, config->incarnation, IB_R_falcon_not_registered);
    ib_u64 odd = ib_falcon_take(here, m->set, m->executor);
    if (IB_RARE(!odd))
        return ib_verdict(IB_DROP, IB_R_contended);
    enum ib_falcon_step step = ib_falcon_step_of(m, record->state, record->pull_seq);
    if (step == IB_FALCON_OLD) {
        ib_seq_unlock(&record->sequence, odd);
        return ib_verdict(IB_DROP, IB_R_falcon_overtaken);
    }
#ifndef IB_MUTANT_REPEATED_POPS_AGAIN
    if (step == IB_FALCON_AGAIN) {
        ib_u64 digest = ib_falcon_fill(here, record);
        ib_seq_unlock(&record->sequence, odd);
        return ib_falcon_give(m, digest, IB_FALCON_F_REPEATED, IB_REPLY, IB_R_falcon_given_again);
    }
#endif
    record->pull_seq = m->pull_seq;
    record->state = ib_falcon_state_word(m->worker_incarnation, IB_FALCON_IDLE);
    record->address = ib_falcon_address_word(a->from_address, a->from_port);
    return ib_falcon_serve(here, m, regs, worker, record, odd, a->now_ns);
}

/* Pushes the packet's tasks to their queues in order. Once a task is refused, later ones for the
 * same queue are skipped. Sets in `m` which were accepted, and why others were not. */
IB_INLINE void ib_falcon_push_all(struct ib_falcon_here *here, struct ib_falcon_msg *m,
                                  struct ib_falcon_set *regs, ib_u64 now_ns) {
    const volatile struct ib_falcon_config *config = ib_falcon_config_at(here);
    ib_u64 refused = 0; /* queues that refused one of this packet's tasks */
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

/* Checks that the packet's tasks are intact and valid. Returns IB_R_none, or the reason. */
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
        return ib_verdict(IB_DROP, reason);
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

/* A result as one word, the return type of larger functions. */
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

/* Handles any message. */
IB_INLINE struct ib_result ib_shell_falcon(struct ib_falcon_here *here, struct ib_falcon_msg *m,
                                           const struct ib_falcon_arrival *a) {
    ib_u64 word = (ib_u64)IB_DROP << 32 | IB_R_falcon_not_for_scheduler;
    if (m->type == IB_FALCON_SUBMIT)
        word = ib_falcon_submit_part(here, m, a);
    else if (m->type == IB_FALCON_PULL)
        word = ib_falcon_pull_part(here, m, a);
    else if (m->type == IB_FALCON_HOST)
        word = (ib_u64)IB_PASS << 32 | IB_R_passed_up;
    return ib_verdict((unsigned int)(word >> 32), (unsigned int)word);
}

#endif
