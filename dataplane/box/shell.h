/* SPDX-License-Identifier: Apache-2.0 */
/*
 * box/shell.h - the code around the role on every backend: lock the node, run the role, copy
 * records.
 *
 * The rules and why:
 *  - Every decision is made under the node's lock, which the process takes too. So once the process
 *    has raised the epoch, no packet of an earlier one is acknowledged, and it may promise what it
 *    then reads.
 *  - A record is in the log before it is acknowledged or proposed.
 *  - A slot has its own sequence lock, so that the process reads records without the node's lock.
 *  - Every loop is bounded; on failure the packet is dropped. Loss is always safe.
 *
 * Before including this file a backend defines struct ib_box_here and
 *   ib_box_own(here), ib_box_capacity(here)    this node's id; slots of the ring, a power of two
 *   ib_box_node_at(here)                       the node's registers, or NULL
 *   ib_box_record_at(here, slot)               the slot, or NULL
 *   ib_box_value_load(here, to, len)           copies the value into a record; nonzero: it failed
 *   ib_box_value_sum(here, len)                its ib_value_checksum
 *   ib_box_client_at(here, zxid)               where to keep the client of a SET that the role
 *                                              proposes, which is here->client; or NULL
 */
#ifndef INBAND_BOX_SHELL_H
#define INBAND_BOX_SHELL_H

#include "../ground/seqlock.h"
#include "role.h"

/* Writes the record of `m` into its slot. Nonzero: the packet is shorter than it claims. */
IB_INLINE int ib_box_write(struct ib_box_here *here, struct ib_box_node *n,
                           struct ib_box_record *record, const struct ib_box_msg *m) {
    ib_u64 capacity = ib_box_capacity(here);
    if (m->zxid > capacity)
        n->first = ib_box_max(n->first, m->zxid - capacity + 1);
    ib_u64 odd = ib_seq_lock(&record->sequence);
    if (IB_RARE(!odd))
        return -1;
    record->zxid = 0;
    int failed = m->value_len_bytes && ib_box_value_load(here, record->value, m->value_len_bytes);
    IB_RACE_WINDOW();
    record->epoch = m->record_epoch;
    record->time_ms = m->time_ms;
    record->origin_session = m->origin_session;
    record->origin_seq = m->origin_seq;
    record->value_len_bytes = m->value_len_bytes;
    record->digest = m->digest;
    record->origin = m->origin;
    if (!failed)
        record->zxid = m->zxid;
    ib_seq_unlock(&record->sequence, odd);
    if (!failed)
        ib_box_has_written(m, n);
    return failed;
}

/* Called with the node's lock, so the process cannot apply the record before. */
IB_INLINE void ib_box_remember(const struct ib_box_here *here, const struct ib_box_msg *m) {
    struct ib_box_client *client = ib_box_client_at(here, m->zxid);
    if (!client)
        return;
    *client = here->client;
    client->zxid = m->zxid;
    client->epoch = m->record_epoch;
}

/* SUBMIT. */
IB_INLINE struct ib_result ib_shell_box_submit(struct ib_box_here *here, struct ib_box_msg *m,
                                               struct ib_box_node *n) {
    ib_u64 own = ib_box_own(here);
    struct ib_result result = ib_box_submit(m, n, own, ib_box_capacity(here));
    if (result.reason != IB_R_none)
        return result;
    ib_box_place(m, n);
    struct ib_box_record *record = ib_box_record_at(here, m->zxid);
    if (IB_RARE(!record || ib_box_write(here, n, record, m)))
        return ib_verdict(IB_DROP, IB_R_no_room);
    if (m->is_own_set) {
        ib_box_has_set(m, n);
        ib_box_remember(here, m);
    }
    if (!n->acks_by_process)
        n->peer[own & IB_BOX_NODES_MAX].matched = m->zxid;
    return ib_verdict(IB_BOX_TO_OTHERS, IB_R_box_submitted);
}

/* Accepts a record if it follows the matched ones. Returns the reason. */
IB_INLINE unsigned int ib_box_take(struct ib_box_here *here, struct ib_box_msg *m,
                                   struct ib_box_node *n) {
    struct ib_box_record *record = ib_box_record_at(here, m->zxid);
    if (IB_RARE(!record || m->zxid == 0))
        return IB_R_box_bad_zxid;
    if (IB_RARE(m->record_epoch == 0 || m->record_epoch > m->epoch))
        return IB_R_box_bad_epoch;
    unsigned int reason = IB_R_box_kept;
    switch (ib_box_takes(m, n, record, ib_box_capacity(here))) {
    case IB_BOX_HAD:
        return IB_R_box_had_already;
    case IB_BOX_GAP:
        return IB_R_box_gap;
    case IB_BOX_FULL:
        return IB_R_box_not_applied;
    case IB_BOX_WRITES:
        if (IB_RARE(ib_box_write(here, n, record, m)))
            return IB_R_no_room;
        reason = IB_R_box_appended;
        break;
    case IB_BOX_KEPT:
        break;
    }
    n->matched = m->zxid;
    return reason;
}

/* PROPOSE. */
IB_INLINE struct ib_result ib_shell_box_propose(struct ib_box_here *here, struct ib_box_msg *m,
                                                struct ib_box_node *n, ib_u64 now_ns,
                                                int *advances) {
    struct ib_result result;
    if (IB_RARE(ib_box_is_not_led(m, n, &result) != IB_R_none))
        return result;
    n->heard_ns = now_ns;
    unsigned int reason = ib_box_take(here, m, n);
    if (IB_RARE(reason != IB_R_box_appended && reason != IB_R_box_kept &&
                reason != IB_R_box_had_already && reason != IB_R_box_gap))
        return ib_verdict(IB_DROP, reason);
    *advances = ib_box_learn(n, m->committed);
    return ib_box_ack(m, n, reason == IB_R_box_gap ? IB_BOX_F_GAP : 0, reason);
}

/* The part that needs the node's lock. */
IB_INLINE struct ib_result ib_shell_box_locked(struct ib_box_here *here, struct ib_box_msg *m,
                                               struct ib_box_node *n, ib_u64 now_ns,
                                               int *advances) {
    struct ib_result result;
    if (IB_RARE(!((n->members | n->guests) >> (m->node & IB_BOX_NODES_MAX) & 1)))
        return ib_verdict(IB_DROP, IB_R_box_not_member);
    if (m->type == IB_BOX_SUBMIT)
        return ib_shell_box_submit(here, m, n);
    if (m->type == IB_BOX_PROPOSE)
        return ib_shell_box_propose(here, m, n, now_ns, advances);
    if (m->type == IB_BOX_COMMIT)
        return ib_box_is_not_led(m, n, &result) != IB_R_none ? result
                                                             : ib_box_hear(m, n, now_ns, advances);
    if (m->node == ib_box_own(here))
        return ib_verdict(IB_DROP, IB_R_box_not_member);
    return ib_box_count(m, n, &n->peer[m->node & IB_BOX_NODES_MAX], now_ns, advances);
}

/* Handles a packet at a node. Sets `advances` to nonzero if the process must be woken. */
IB_INLINE struct ib_result ib_shell_box(struct ib_box_here *here, struct ib_box_msg *m,
                                        ib_u64 now_ns, int *advances) {
    *advances = 0;
    struct ib_box_node *n = ib_box_node_at(here);
    if (!n)
        return ib_verdict(IB_DROP, IB_R_contended);
    ib_u64 epoch = m->epoch;
    /* The process checks the epoch of CONTROL packets. */
    if (IB_RARE(m->type != IB_BOX_CONTROL && epoch > IB_LOAD(&n->epoch) + IB_BOX_EPOCH_AHEAD_MAX))
        return ib_verdict(IB_DROP, IB_R_box_epoch_ahead);
    struct ib_result result = {IB_PASS, IB_R_passed_up};
    if (m->type != IB_BOX_CONTROL && m->type != IB_BOX_REFUSED) {
        if ((m->type == IB_BOX_SUBMIT || m->type == IB_BOX_PROPOSE) &&
            IB_RARE(ib_box_value_sum(here, m->value_len_bytes) != m->digest))
            return ib_verdict(IB_DROP, IB_R_box_bad_digest);
        ib_u64 odd = ib_seq_lock(&n->sequence);
        if (IB_RARE(!odd))
            return ib_verdict(IB_DROP, IB_R_contended);
        IB_RACE_WINDOW();
        result = ib_shell_box_locked(here, m, n, now_ns, advances);
        ib_seq_unlock(&n->sequence, odd);
    }
    if (IB_RARE(result.reason == IB_R_box_higher_epoch ||
                (m->type == IB_BOX_REFUSED && m->flags & IB_BOX_F_EPOCH &&
                 epoch > IB_LOAD(&n->epoch) && result.verdict == IB_PASS)))
        ib_atomic_max(&n->higher_epoch, epoch);
    /* A full barrier: a process about to sleep sees this count, or we see that we must wake it. */
    if (*advances)
        __sync_fetch_and_add(&n->advances, 1);
    return result;
}

#endif
