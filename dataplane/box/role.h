/* SPDX-License-Identifier: Apache-2.0 */
/*
 * role.h - a node's part in the broadcast. Pure, except for the registers, which the shell locks.
 *
 * A record is committed once a quorum of the members has it and the leader's own epoch is
 * established: a record of an earlier epoch is never committed by counting its copies alone.
 */
#ifndef INBAND_BOX_ROLE_H
#define INBAND_BOX_ROLE_H

#include "msg.h"
#include "registers.h"

IB_INLINE ib_u64 ib_box_min(ib_u64 a, ib_u64 b) {
    return a < b ? a : b;
}

IB_INLINE ib_u64 ib_box_max(ib_u64 a, ib_u64 b) {
    return a > b ? a : b;
}

/* Whether the record may use its slot: the record there must have been applied. */
IB_INLINE int ib_box_has_room(const struct ib_box_node *n, ib_u64 zxid, ib_u64 capacity) {
    return zxid <= capacity || zxid - capacity <= IB_LOAD(&n->applied);
}

/* Turns the packet into one without a value. */
IB_INLINE struct ib_result ib_box_becomes(struct ib_box_msg *m, const struct ib_box_node *n,
                                          ib_u8 type, ib_u16 flags, unsigned int verdict,
                                          unsigned int reason) {
    m->type = type;
    m->flags = flags;
    m->epoch = n->epoch;
    m->committed = n->committed;
    m->leader = (ib_u16)n->leader;
    m->value_len_bytes = 0;
    m->digest = 0;
    if (!(flags & IB_BOX_F_ROUND))
        m->round = 0;
    return ib_verdict(verdict, reason);
}

IB_INLINE struct ib_result ib_box_refuse(struct ib_box_msg *m, const struct ib_box_node *n,
                                         ib_u16 flags, unsigned int reason) {
    return ib_box_becomes(m, n, IB_BOX_REFUSED, flags, IB_REPLY, reason);
}

/* A follower's answer: everything up to `matched` is in its log. */
IB_INLINE struct ib_result ib_box_ack(struct ib_box_msg *m, const struct ib_box_node *n,
                                      ib_u16 flags, unsigned int reason) {
    if (n->acks_by_process)
        return ib_verdict(IB_PASS, reason);
    if (n->recovering)
        flags |= IB_BOX_F_RECOVERING;
    m->zxid = n->matched;
    m->record_epoch = 0;
    m->time_ms = 0;
    return ib_box_becomes(m, n, IB_BOX_ACK, flags, IB_REPLY, reason);
}

IB_INLINE struct ib_result ib_box_commit(struct ib_box_msg *m, const struct ib_box_node *n,
                                         unsigned int verdict, unsigned int reason) {
    m->zxid = n->last;
    return ib_box_becomes(m, n, IB_BOX_COMMIT, 0, verdict, reason);
}

/* SUBMIT at node `own`. With IB_R_none the record must be appended. */
IB_INLINE struct ib_result ib_box_submit(struct ib_box_msg *m, const struct ib_box_node *n,
                                         ib_u64 own, ib_u64 capacity) {
    if (!m->is_own_set && m->origin != m->node && (m->origin != 0 || m->node != own))
        return ib_verdict(IB_DROP, IB_R_box_bad_origin);
    if (n->mode != IB_BOX_LEADING)
        return ib_box_refuse(m, n, IB_BOX_F_NOT_LEADER, IB_R_box_submit_elsewhere);
    /* Our own no-op establishes the epoch, regardless of uncommitted records. */
    int waits =
        m->origin != 0 && (n->committed < n->established_at || n->last - n->committed >= n->window);
    if (waits || !ib_box_has_room(n, n->last + 1, capacity))
        return ib_box_refuse(m, n, IB_BOX_F_BUSY, IB_R_box_submit_busy);
    return ib_verdict(IB_DROP, IB_R_none);
}

/* Assigns the submitted record its place in the log. */
IB_INLINE void ib_box_place(struct ib_box_msg *m, const struct ib_box_node *n) {
    if (m->is_own_set) {
        m->origin_session = n->epoch;
        m->origin_seq = n->sets_epoch == n->epoch ? n->sets_seq + 1 : 1;
    }
    m->type = IB_BOX_PROPOSE;
    m->flags = 0;
    m->epoch = n->epoch;
    m->zxid = n->last + 1;
    m->record_epoch = n->epoch;
    m->committed = n->committed;
    m->time_ms = ib_box_max(IB_LOAD(&n->time_ms), n->last_time_ms);
    m->round = 0;
    m->leader = (ib_u16)n->leader;
}

/* The record of a client's SET is in the log. */
IB_INLINE void ib_box_has_set(const struct ib_box_msg *m, struct ib_box_node *n) {
    n->sets_epoch = m->origin_session;
    n->sets_seq = m->origin_seq;
}

/* Whether the packet is from our leader. Returns IB_R_none, or sets `result` and returns its
 * reason. */
IB_INLINE unsigned int ib_box_is_not_led(struct ib_box_msg *m, struct ib_box_node *n,
                                         struct ib_result *result) {
    if (m->epoch % IB_BOX_PROPOSERS != m->node)
        *result = ib_verdict(IB_DROP, IB_R_box_bad_epoch);
    else if (m->epoch < n->epoch)
        *result = ib_box_refuse(m, n, IB_BOX_F_EPOCH, IB_R_box_old_epoch);
    else if (m->epoch > n->epoch)
        *result = ib_verdict(IB_PASS, IB_R_box_higher_epoch);
    else if (n->mode != IB_BOX_FOLLOWING)
        *result = ib_verdict(n->mode == IB_BOX_IDLE ? IB_PASS : IB_DROP, IB_R_box_not_following);
    else
        return IB_R_none;
    return result->reason;
}

enum ib_box_taken { IB_BOX_HAD, IB_BOX_KEPT, IB_BOX_WRITES, IB_BOX_GAP, IB_BOX_FULL };

/* What to do with a record that follows the matched ones; `there` is the record in its slot. */
IB_INLINE enum ib_box_taken ib_box_takes(const struct ib_box_msg *m, const struct ib_box_node *n,
                                         const struct ib_box_record *there, ib_u64 capacity) {
    if (m->zxid <= n->matched)
        return IB_BOX_HAD;
    if (m->zxid != n->matched + 1)
        return IB_BOX_GAP;
    /* A leader proposes one record for each zxid, so this is the same one. */
    if (m->zxid <= n->last && there->zxid == m->zxid && there->epoch == m->record_epoch)
        return IB_BOX_KEPT;
    return ib_box_has_room(n, m->zxid, capacity) ? IB_BOX_WRITES : IB_BOX_FULL;
}

/* The record is in its slot. Later records were never committed, and are gone. */
IB_INLINE void ib_box_has_written(const struct ib_box_msg *m, struct ib_box_node *n) {
    n->last = m->zxid;
    n->last_epoch = m->record_epoch;
    n->last_time_ms = m->time_ms;
}

/* A follower learns what is committed. Returns nonzero if that advanced. */
IB_INLINE int ib_box_learn(struct ib_box_node *n, ib_u64 committed) {
    ib_u64 known = ib_box_min(committed, n->matched);
    if (known <= n->committed)
        return 0;
    n->committed = known;
    return 1;
}

/* COMMIT from our leader. */
IB_INLINE struct ib_result ib_box_hear(struct ib_box_msg *m, struct ib_box_node *n, ib_u64 now_ns,
                                       int *advances) {
    n->heard_ns = now_ns;
    *advances = ib_box_learn(n, m->committed);
    ib_u16 round = m->flags & IB_BOX_F_ROUND;
    if (round)
        n->process_heard_ns = now_ns;
    if (m->committed > n->matched)
        return ib_box_ack(m, n, round | IB_BOX_F_GAP, IB_R_box_gap);
    unsigned int reason = *advances ? IB_R_box_commit_learned : IB_R_box_heard;
    return round ? ib_box_ack(m, n, round, reason) : ib_verdict(IB_DROP, reason);
}

/* The highest zxid that a quorum of the members has. */
IB_INLINE ib_u64 ib_box_at_quorum(const struct ib_box_node *n) {
    ib_u64 highest = 0;
    IB_LOOP
    for (ib_u32 i = 1; i <= IB_BOX_NODES_MAX; i++) {
        ib_u64 matched = n->peer[i].matched, have = 0;
        if (!(n->members >> i & 1) || matched <= highest)
            continue;
        IB_LOOP
        for (ib_u32 j = 1; j <= IB_BOX_NODES_MAX; j++)
            have += (n->members >> j & 1) && n->peer[j].matched >= matched;
        if (have >= n->quorum)
            highest = matched;
    }
    return highest;
}

/* Returns nonzero if `committed` advanced. */
IB_INLINE int ib_box_advance(struct ib_box_node *n) {
    ib_u64 committed = ib_box_at_quorum(n);
    if (committed <= n->committed || committed < n->established_at)
        return 0;
    n->committed = committed;
    return 1;
}

/* ACK from a member; `peer` is our state of it. */
IB_INLINE struct ib_result ib_box_count(struct ib_box_msg *m, struct ib_box_node *n,
                                        struct ib_box_peer *peer, ib_u64 now_ns, int *advances) {
    if (m->epoch > n->epoch)
        return ib_verdict(IB_PASS, IB_R_box_higher_epoch);
    if (m->epoch < n->epoch)
        return ib_verdict(IB_DROP, IB_R_box_old_epoch);
    if (n->mode != IB_BOX_LEADING)
        return ib_verdict(IB_DROP, IB_R_box_not_leading);
    if (m->zxid > n->last)
        return ib_verdict(IB_DROP, IB_R_box_bad_zxid);
    peer->heard_ns = now_ns;
    peer->committed = ib_box_max(peer->committed, m->committed);
    if (m->flags & IB_BOX_F_RECOVERING) {
        peer->recovered = ib_box_max(peer->recovered, m->zxid);
        return m->flags & IB_BOX_F_GAP ? ib_verdict(IB_PASS, IB_R_box_ack_of_gap)
                                       : ib_verdict(IB_DROP, IB_R_box_ack_recovering);
    }
    peer->matched = ib_box_max(peer->matched, m->zxid);
    if (m->flags & IB_BOX_F_ROUND && m->round > peer->round) {
        peer->round = m->round;
        *advances = 1;
    }
    int commits = ib_box_advance(n);
    *advances |= commits;
    if (m->flags & IB_BOX_F_GAP)
        return ib_verdict(IB_PASS, IB_R_box_ack_of_gap);
    if (commits)
        return ib_box_commit(m, n, IB_BOX_TO_OTHERS, IB_R_box_committed);
    if (m->committed < ib_box_min(m->zxid, n->committed))
        return ib_box_commit(m, n, IB_REPLY, IB_R_box_ack_late);
    return ib_verdict(IB_DROP, IB_R_box_ack_counted);
}

#endif
