/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paxos/shell.h - the code around a role on every backend: lock the slot, copy the registers, run
 * the role, store, unlock.
 *
 * The rules (protocol.md, 1, 2 and 12) and why:
 *  - A slot is locked by a compare-and-swap of its sequence to odd. Only THEN are promise, epoch
 *    and floor read. If they were read earlier, a promise could be raised, and the slot reported
 *    as "no vote", between the read and the vote.
 *  - `highest` is raised before the vote is stored, and the registers are read again after it. So
 *    either the voter sees a raised promise and drops the packet, or the one that raised the
 *    promise sees `highest` and asks for the slot. Without the second read a vote could be stored
 *    above the range that the partition's PHASE1B has just stated.
 *  - Sequence + 2 is published last, as a release: a reader that sees the same even sequence before
 *    and after its copy has a consistent copy.
 *  - Every loop is bounded; on failure the packet is dropped. Loss is always safe.
 *  - A value is stamped and voted for only if it is the one that was sent, which is checked before
 *    anything is changed. A vote for other bytes under its digest would make the instance
 *    unreadable.
 *
 * Before including this file a backend defines struct ib_frame and four hooks. Each returns 0 on
 * success; on failure it returns another value and has changed nothing:
 *   int ib_value_save(struct ib_frame *, struct ib_slot *, ib_u32 len)  packet -> slot
 *   int ib_value_load(struct ib_frame *, struct ib_slot *, ib_u32 len)  slot -> packet
 *   int ib_value_up(struct ib_frame *, const struct ib_paxos_msg *)     packet -> host's learner
 *   int ib_value_check(struct ib_frame *, const struct ib_paxos_msg *)  compare the value with the
 *                                                                       header's checksum
 */
#ifndef INBAND_PAXOS_SHELL_H
#define INBAND_PAXOS_SHELL_H

#include "../ground/seqlock.h"
#include "msg.h"
#include "registers.h"
#include "role_leader.h"
#include "role_acceptor.h"
#include "role_quorum.h"

#define IB_STAMP_TRIES_MAX 16

IB_INLINE void ib_acceptor_snapshot(struct ib_acceptor_regs *copy,
                                    const struct ib_acceptor_regs *regs) {
    IB_COMPILER_BARRIER();
    copy->epoch = IB_LOAD(&regs->epoch);
    copy->voting = IB_LOAD(&regs->voting);
    copy->promise = IB_LOAD(&regs->promise);
    copy->floor = IB_LOAD(&regs->floor);
    copy->highest = IB_LOAD(&regs->highest);
    IB_COMPILER_BARRIER();
}

IB_INLINE int ib_acceptor_unchanged(const struct ib_acceptor_regs *copy,
                                    const struct ib_acceptor_regs *regs) {
    return IB_LOAD(&regs->promise) == copy->promise && IB_LOAD(&regs->epoch) == copy->epoch &&
           IB_LOAD(&regs->voting) == copy->voting;
}

/* The acceptor for messages about one slot. */
IB_INLINE struct ib_result ib_shell_acceptor_slot(struct ib_paxos_msg *m,
                                                  struct ib_acceptor_regs *regs,
                                                  struct ib_slot *slot, ib_u64 ring_slots,
                                                  struct ib_frame *frame) {
    struct ib_acceptor_regs r;
    struct ib_acceptor_io io = {0, 0, 0, 0, 0, 0};
    struct ib_result result;
    if (m->type == IB_PAXOS_PHASE2A && IB_RARE(ib_value_check(frame, m)))
        return ib_verdict(IB_DROP, IB_R_bad_checksum);
#ifdef IB_MUTANT_PROMISE_BEFORE_SLOT
    ib_acceptor_snapshot(&r, regs);
#endif
    IB_RACE_WINDOW();
    ib_u64 odd = ib_seq_lock(&slot->sequence);
    if (IB_RARE(!odd))
        return ib_verdict(IB_DROP, IB_R_contended);
#ifndef IB_MUTANT_PROMISE_BEFORE_SLOT
    ib_acceptor_snapshot(&r, regs);
#endif
    IB_RACE_WINDOW();
    struct ib_vote v = slot->vote;
    result = ib_acceptor_slot(m, &r, &v, ring_slots, &io);
    if (io.raise_highest) {
        if (IB_RARE(!ib_atomic_max(&regs->highest, io.raise_highest))) {
            result = ib_verdict(IB_DROP, IB_R_contended);
            goto release;
        }
#if !defined(IB_MUTANT_PROMISE_BEFORE_SLOT) && !defined(IB_MUTANT_NO_SECOND_READ)
        IB_COMPILER_BARRIER();
        if (IB_RARE(!ib_acceptor_unchanged(&r, regs))) {
            result = ib_verdict(IB_DROP, IB_R_acceptor_raced);
            goto release;
        }
#endif
    }
    IB_RACE_WINDOW();
    if (io.save_value && IB_RARE(ib_value_save(frame, slot, m->value_len_bytes))) {
        result = ib_verdict(IB_DROP, IB_R_value_io_failed);
        goto release;
    }
    if (io.store_vote)
        slot->vote = v;
    if (IB_RARE(io.load_value) && ib_value_load(frame, slot, m->value_len_bytes))
        result = ib_verdict(IB_DROP, IB_R_value_io_failed);
release:
    ib_seq_unlock(&slot->sequence, odd);
    return result;
}

/* The acceptor for messages about the partition. */
IB_INLINE struct ib_result ib_shell_acceptor_partition(struct ib_paxos_msg *m,
                                                       struct ib_acceptor_regs *regs) {
    struct ib_acceptor_regs r;
    struct ib_acceptor_io io = {0, 0, 0, 0, 0, 0};
    ib_acceptor_snapshot(&r, regs);
    struct ib_result result = ib_acceptor_partition(m, &r, &io);
    if (io.raise_promise) {
        if (!ib_atomic_max(&regs->promise, io.raise_promise))
            return ib_verdict(IB_DROP, IB_R_contended);
        ib_acceptor_snapshot(&r, regs);
        if (r.promise != io.raise_promise) /* overtaken by a higher round */
            return ib_verdict(IB_DROP, IB_R_acceptor_raced);
        ib_acceptor_promised(m, &r);
    }
    if (io.raise_floor && !ib_atomic_max(&regs->floor, io.raise_floor))
        return ib_verdict(IB_DROP, IB_R_contended);
    return result;
}

/*
 * The leader. The host writes round 0, then next, floor and epoch, then the new round. Rounds are
 * never reused. So if the round is the same before and after the other registers were read, all of
 * them belong to that round. Otherwise a CPU that was delayed in between would stamp the old round
 * in the new epoch, and an acceptor that missed its phase 1 would vote (schedules.md, 20).
 */
IB_INLINE struct ib_result ib_shell_leader(struct ib_paxos_msg *m, struct ib_leader_regs *regs,
                                           ib_u64 ring_slots, struct ib_frame *frame) {
    struct ib_paxos_msg request = *m;
    if (m->type == IB_PAXOS_REQUEST && IB_RARE(ib_value_check(frame, m)))
        return ib_verdict(IB_DROP, IB_R_bad_checksum);
    for (int i = 0; i < IB_STAMP_TRIES_MAX; i++) {
        struct ib_leader_regs r = {0}, before;
        r.round = IB_LOAD(&regs->round);
        IB_LOADS_IN_ORDER();
        IB_RACE_WINDOW();
        r.epoch = IB_LOAD(&regs->epoch);
        r.floor = IB_LOAD(&regs->floor);
        r.next = IB_LOAD(&regs->next);
        IB_RACE_WINDOW();
        IB_LOADS_IN_ORDER();
#ifndef IB_MUTANT_ROUND_READ_ONCE
        if (IB_RARE(IB_LOAD(&regs->round) != r.round))
            continue;
#endif
        before = r;
        *m = request;
        struct ib_result result = ib_leader(m, &r, ring_slots);
        if (r.next != before.next && !IB_CAS(&regs->next, before.next, r.next))
            continue;
        if (r.round != before.round && !IB_CAS(&regs->round, before.round, r.round))
            continue;
        if (r.floor != before.floor && !ib_atomic_max(&regs->floor, r.floor))
            continue;
        return result;
    }
    return ib_verdict(IB_DROP, IB_R_contended);
}

/*
 * The quorum counter. The count is stored only after a due value has been delivered. The members of
 * an epoch may be replaced while packets arrive; meanwhile the epoch's number is 0. If the number
 * is the same before and after the role has read the members, they belong to that epoch.
 */
IB_INLINE struct ib_result ib_shell_quorum(struct ib_paxos_msg *m,
                                           const struct ib_quorum_config *config,
                                           struct ib_count_slot *slot, struct ib_frame *frame) {
    if (!ib_quorum_counts(m))
        return ib_verdict(IB_PASS, IB_R_passed_up);
    if (ib_quorum_is_late(m, config, &slot->count))
        return ib_verdict(IB_DROP, IB_R_quorum_late); /* as the role, but without the lock */
    ib_u64 odd = ib_seq_lock(&slot->sequence);
    if (IB_RARE(!odd))
        return ib_verdict(IB_DROP, IB_R_contended);
    struct ib_count c = slot->count;
    ib_u64 epoch = IB_LOAD(&config->epoch);
    IB_COMPILER_BARRIER();
    struct ib_result result = ib_quorum(m, config, &c);
    IB_COMPILER_BARRIER();
    if (IB_LOAD(&config->epoch) != epoch)
        result = ib_verdict(IB_DROP, IB_R_wrong_epoch);
    else if (result.verdict == IB_DELIVER && ib_value_up(frame, m))
        result = ib_verdict(IB_DROP, IB_R_quorum_hand_off_failed);
    else
        slot->count = c;
    ib_seq_unlock(&slot->sequence, odd);
    return result;
}

#endif
