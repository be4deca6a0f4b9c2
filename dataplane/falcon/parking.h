/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parking.h - executors that wait at the scheduler, and how they are woken.
 *
 * A PULL that parks sets the executor's bit and THEN checks the queues. A SUBMIT fills slots and
 * THEN checks the bits. Both have a full barrier in between, so at least one of them sees the
 * other. The one that clears a bit must wake the executor, and sets the bit again if there was no
 * task for it.
 */
#ifndef INBAND_FALCON_PARKING_H
#define INBAND_FALCON_PARKING_H

#include "queue.h"

#define IB_FALCON_WAKE_TRIES_MAX 4 /* executors per SUBMIT */

/*
 * Finds, among the workers of a group starting from the one numbered `from`, a parked executor for
 * which there is a task. Returns its number plus 1, or 0. A separate function, because the verifier
 * processes each iteration of a loop, and these 64 would be nested in those over the groups.
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

/* Finds a parked executor for which there is a task. Returns its number plus 1, or 0. */
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

/* Whether any executor may be parked. */
IB_INLINE int ib_falcon_anybody(struct ib_falcon_here *here, const struct ib_falcon_set *regs) {
    ib_u32 groups = ib_falcon_groups(ib_falcon_config_at(here));
    ib_u64 waiting = 0;
    for (ib_u32 group = 0; group < groups && group < IB_FALCON_GROUPS_MAX; group++)
        waiting |= IB_LOAD(&regs->waiting[group]);
    return waiting != 0;
}

/* Sets the bit of an executor; a full barrier. `waiting` is never less than the number of bits. */
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

/* Clears the bit. Returns 0 if another CPU did that. */
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

/* Copies the record's task to the packet's first task. Returns the task's digest. */
IB_INLINE ib_u64 ib_falcon_fill(struct ib_falcon_here *here,
                                const struct ib_falcon_executor *record) {
    ib_wire64 *words = (ib_wire64 *)ib_falcon_task_at(here, 0);
    if (!words)
        return 0; /* impossible: every packet that is served has room for one */
    for (int w = 0; w < IB_FALCON_TASK_WORDS; w++)
        words[w] = record->task[w];
    return IB_NET64(record->task[IB_FALCON_DIGEST]);
}

IB_INLINE ib_u64 ib_falcon_address_word(ib_u32 address, ib_u16 port) {
    return (ib_u64)address << 16 | port;
}

/*
 * Parks the executor of a PULL. Its record is locked, and unlocked here. Returns 0 if the executor
 * waits, which ends the packet. Otherwise there is a task for it, its record is locked again, and
 * the odd sequence is returned.
 */
IB_INLINE ib_u64 ib_falcon_park(struct ib_falcon_here *here, struct ib_falcon_msg *m,
                                struct ib_falcon_set *regs, struct ib_falcon_worker *worker,
                                struct ib_falcon_executor *record, ib_u64 odd, ib_u64 now_ns) {
    ib_u64 waits = ib_falcon_state_word(m->worker_incarnation, IB_FALCON_WAITS);
    record->state = waits;
    ib_seq_unlock(&record->sequence, odd);
    IB_RACE_WINDOW();
    ib_falcon_set_bit(regs, worker, m->executor);
    IB_RACE_WINDOW();
#ifdef IB_MUTANT_PARK_WITHOUT_LOOK
    return 0;
#endif
    if (!ib_falcon_there_is(here, m->set, m->executor / IB_FALCON_EXECUTORS, now_ns))
        return 0;
    if (!ib_falcon_clear_bit(regs, worker, m->executor))
        return 0; /* the one that cleared it wakes the executor */
    odd = ib_falcon_take(here, m->set, m->executor);
    if (IB_RARE(!odd)) {
        ib_falcon_set_bit(regs, worker, m->executor);
        return 0;
    }
    if (IB_LOAD(&record->state) != waits) {
        ib_seq_unlock(&record->sequence, odd); /* a later PULL has been answered meanwhile */
        return 0;
    }
    m->pull_seq = record->pull_seq; /* may be of a later PULL, which waits with the same bit */
    return odd;
}

/*
 * Wakes a parked executor: moves a task into its record and into the packet. Returns 1 if the
 * packet must be sent to the executor that it names, 0 if none was woken.
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
            ib_seq_unlock(&record->sequence, odd);
            return 1;
        }
        ib_seq_unlock(&record->sequence, odd);
        if (waits)
            ib_falcon_set_bit(regs, worker, executor);
    }
    return 0;
}

#endif
