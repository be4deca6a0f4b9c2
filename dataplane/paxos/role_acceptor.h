/* SPDX-License-Identifier: Apache-2.0 */
/*
 * role_acceptor.h - the acceptor: promises and votes (Paxos, phases 1 and 2).
 *
 * Pure. `r` is a snapshot of the partition's registers, taken after the slot was locked; `v` is a
 * copy of the slot's vote. Further actions are requested in `io`. The shell executes them in this
 * order: raise the registers, save the value, store the vote, load the value, emit.
 */
#ifndef INBAND_PAXOS_ROLE_ACCEPTOR_H
#define INBAND_PAXOS_ROLE_ACCEPTOR_H

#include "msg.h"
#include "registers.h"

/* Actions that the role requests from its shell. */
struct ib_acceptor_io {
    ib_u64 raise_promise; /* if not 0: raise the partition's promise to at least this */
    ib_u64 raise_floor;   /* if not 0: raise the floor to at least this */
    ib_u64 raise_highest; /* if not 0: raise highest to at least this, before storing the vote */
    int save_value;       /* copy the packet's value into the slot */
    int load_value;       /* copy the slot's value into the packet */
    int store_vote;       /* store `v` in the slot */
};

IB_INLINE struct ib_result ib_acceptor_refuse(struct ib_paxos_msg *m, ib_u64 promise, ib_u16 scope,
                                              const struct ib_acceptor_regs *r,
                                              unsigned int reason) {
    m->type = IB_PAXOS_NACK;
    m->flags = (m->flags & (IB_PAXOS_F_RECOVERY | IB_PAXOS_F_VALUE_MASK)) | scope;
    m->round = promise;
    m->floor = r->floor;
    m->epoch = (ib_u32)r->epoch;
    return ib_verdict(IB_REPLY, reason);
}

/* Whether the epochs match and the acceptor votes. If not, *out says what to do with the packet. */
IB_INLINE int ib_acceptor_may_vote(struct ib_paxos_msg *m, const struct ib_acceptor_regs *r,
                                   struct ib_result *out) {
    if (IB_RARE(!r->voting)) {
        *out = ib_verdict(IB_DROP, IB_R_acceptor_recovering);
        return 0;
    }
    if (IB_RARE(m->epoch > r->epoch)) {
        *out = ib_verdict(IB_DROP, IB_R_epoch_ahead);
        return 0;
    }
    if (IB_RARE(m->epoch < r->epoch)) {
        *out = ib_acceptor_refuse(m, r->promise, 0, r, IB_R_wrong_epoch);
        return 0;
    }
    return 1;
}

/* PHASE1A for the whole partition. The shell raises the promise, then calls
 * ib_acceptor_promised. */
IB_INLINE struct ib_result ib_acceptor_promise(struct ib_paxos_msg *m,
                                               const struct ib_acceptor_regs *r,
                                               struct ib_acceptor_io *io) {
    struct ib_result refused;
    if (IB_RARE(!ib_acceptor_may_vote(m, r, &refused)))
        return refused;
    if (m->round < r->promise)
        return ib_acceptor_refuse(m, r->promise, 0, r, IB_R_acceptor_nack);
    io->raise_promise = m->round;
    return ib_verdict(IB_REPLY, IB_R_acceptor_promised);
}

/*
 * The partition's PHASE1B. `r` was read after the promise was raised, so no vote of a lower round
 * is, or will be, above `highest` (protocol.md, 3).
 */
IB_INLINE void ib_acceptor_promised(struct ib_paxos_msg *m, const struct ib_acceptor_regs *r) {
    m->type = IB_PAXOS_PHASE1B;
    m->flags = 0;
    m->instance = r->highest;
    m->floor = r->floor;
    m->vround = 0;
    m->value_len_bytes = 0;
    m->checksum = 0;
}

/* Copies the stored vote into the message. The value follows through io->load_value. */
IB_INLINE void ib_acceptor_show_vote(struct ib_paxos_msg *m, const struct ib_vote *v,
                                     struct ib_acceptor_io *io) {
    m->vround = v->vround;
    m->digest = v->digest;
    m->checksum = v->checksum;
    m->client_id = v->client_id;
    m->client_seq = v->client_seq;
    m->client_low = v->client_low;
    m->value_len_bytes = v->value_len_bytes;
    m->flags = (m->flags & ~IB_PAXOS_F_VALUE_MASK) | v->flags;
    io->load_value = 1;
}

/* PHASE1A for one instance. `promise` is the round that applies to it. */
IB_INLINE struct ib_result ib_acceptor_promise_slot(struct ib_paxos_msg *m,
                                                    const struct ib_acceptor_regs *r,
                                                    struct ib_vote *v, ib_u64 promise,
                                                    struct ib_acceptor_io *io) {
    if (IB_RARE(m->round < promise))
        return ib_acceptor_refuse(m, promise, promise > r->promise ? IB_PAXOS_F_SLOT : 0, r,
                                  promise > r->promise ? IB_R_acceptor_nack_slot
                                                       : IB_R_acceptor_nack);
    v->promise = m->round;
    io->store_vote = 1;
    m->type = IB_PAXOS_PHASE1B;
    m->flags = IB_PAXOS_F_SLOT;
    m->floor = r->floor;
    m->vround = 0;
    m->value_len_bytes = 0;
    m->checksum = 0;
    if (v->vround != 0) {
        ib_acceptor_show_vote(m, v, io);
        m->flags |= IB_PAXOS_F_VOTE;
    }
    return ib_verdict(IB_REPLY, IB_R_acceptor_promised_slot);
}

/* PHASE2A: votes, or repeats the vote of the same round. */
IB_INLINE struct ib_result ib_acceptor_vote(struct ib_paxos_msg *m,
                                            const struct ib_acceptor_regs *r, struct ib_vote *v,
                                            ib_u64 promise, struct ib_acceptor_io *io) {
    if (IB_RARE(m->round < promise))
        return ib_acceptor_refuse(m, promise, promise > r->promise ? IB_PAXOS_F_SLOT : 0, r,
                                  promise > r->promise ? IB_R_acceptor_nack_slot
                                                       : IB_R_acceptor_nack);
    unsigned int verdict = (m->flags & IB_PAXOS_F_RECOVERY) ? IB_REPLY : IB_TO_LEARNERS;
    m->type = IB_PAXOS_PHASE2B;
    m->flags &= IB_PAXOS_F_VALUE_MASK | IB_PAXOS_F_RECOVERY;
    m->floor = r->floor;
    if (IB_RARE(v->vround == m->round)) {
        /* The same round never replaces a value: the stored one is what the quorum counts. */
        ib_acceptor_show_vote(m, v, io);
        return ib_verdict(verdict, IB_R_acceptor_vote_repeated);
    }
    /* A vote is also a promise. Otherwise a delayed PHASE2A of a lower round, whose owner is not
     * blocked by the partition's promise, could replace a vote that may already be part of a
     * quorum. */
    v->promise = m->round;
    v->vround = m->round;
    v->digest = m->digest;
    v->client_id = m->client_id;
    v->client_seq = m->client_seq;
    v->client_low = m->client_low;
    v->value_len_bytes = m->value_len_bytes;
    v->flags = m->flags & IB_PAXOS_F_VALUE_MASK;
    v->checksum = m->checksum;
    m->vround = m->round;
    io->raise_highest = m->instance;
    io->save_value = 1;
    io->store_vote = 1;
    return ib_verdict(verdict, IB_R_acceptor_voted);
}

/* LEARN: repeats the vote for one instance to the requester. */
IB_INLINE struct ib_result ib_acceptor_learn(struct ib_paxos_msg *m,
                                             const struct ib_acceptor_regs *r,
                                             const struct ib_vote *v, struct ib_acceptor_io *io) {
    if (v->vround == 0)
        return ib_verdict(IB_DROP, IB_R_acceptor_learn_no_vote);
    m->type = IB_PAXOS_PHASE2B;
    m->flags = IB_PAXOS_F_REPEAT;
    m->round = v->vround;
    m->floor = r->floor;
    ib_acceptor_show_vote(m, v, io);
    return ib_verdict(IB_REPLY, IB_R_acceptor_learn_answered);
}

/* Messages about one instance: PHASE1A with IB_PAXOS_F_SLOT, PHASE2A, LEARN. */
IB_INLINE struct ib_result ib_acceptor_slot(struct ib_paxos_msg *m,
                                            const struct ib_acceptor_regs *r, struct ib_vote *v,
                                            ib_u64 ring_slots, struct ib_acceptor_io *io) {
    struct ib_result refused;
    if (IB_RARE(!ib_acceptor_may_vote(m, r, &refused)))
        return refused;
    if (IB_RARE(m->instance < r->floor || m->instance == 0))
        return ib_acceptor_refuse(m, r->promise, IB_PAXOS_F_SLOT | IB_PAXOS_F_BELOW_FLOOR, r,
                                  IB_R_acceptor_below_floor);
    if (IB_RARE(m->instance >= r->floor + ring_slots))
        return ib_verdict(IB_DROP, IB_R_acceptor_beyond_ring);
    if (IB_RARE(v->instance > m->instance)) {
        /* Impossible: a later instance in this slot implies that the floor is above this one. Never
         * move a slot to a lower instance, whatever happens. */
        return ib_verdict(IB_DROP, IB_R_acceptor_raced);
    }
    if (v->instance < m->instance) {
        /* The slot's old instance is below the floor: reuse clears its promise and its vote. */
        v->instance = m->instance;
        v->promise = 0;
        v->vround = 0;
        v->value_len_bytes = 0;
        v->flags = 0;
    }
    if (IB_RARE(m->type == IB_PAXOS_LEARN))
        return ib_acceptor_learn(m, r, v, io);
    ib_u64 promise = v->promise > r->promise ? v->promise : r->promise;
    if (IB_RARE(m->type == IB_PAXOS_PHASE1A))
        return ib_acceptor_promise_slot(m, r, v, promise, io);
    return ib_acceptor_vote(m, r, v, promise, io);
}

/* TRIM. A floor never decreases. */
IB_INLINE struct ib_result ib_acceptor_trim(const struct ib_paxos_msg *m,
                                            const struct ib_acceptor_regs *r,
                                            struct ib_acceptor_io *io) {
    if (m->epoch != r->epoch)
        return ib_verdict(IB_DROP, IB_R_wrong_epoch);
    if (m->floor <= r->floor)
        return ib_verdict(IB_DROP, IB_R_floor_known);
    io->raise_floor = m->floor;
    return ib_verdict(IB_DROP, IB_R_floor_raised);
}

/* POSITION: also answered while recovering, with a flag. Such an answer never counts for a read. */
IB_INLINE struct ib_result ib_acceptor_position(struct ib_paxos_msg *m,
                                                const struct ib_acceptor_regs *r) {
    m->flags |= IB_PAXOS_F_ANSWER;
    if (!r->voting)
        m->flags |= IB_PAXOS_F_RECOVERING;
    m->epoch = (ib_u32)r->epoch;
    m->instance = r->highest;
    m->floor = r->floor;
    m->round = r->promise;
    return ib_verdict(IB_REPLY, IB_R_position_answered);
}

/* Whether the message is about one slot. */
IB_INLINE int ib_acceptor_needs_slot(const struct ib_paxos_msg *m) {
    return m->type == IB_PAXOS_PHASE2A ||
           (m->type == IB_PAXOS_LEARN && !(m->flags & IB_PAXOS_F_PEER)) ||
           (m->type == IB_PAXOS_PHASE1A && (m->flags & IB_PAXOS_F_SLOT));
}

/* Messages about the whole partition. */
IB_INLINE struct ib_result ib_acceptor_partition(struct ib_paxos_msg *m,
                                                 const struct ib_acceptor_regs *r,
                                                 struct ib_acceptor_io *io) {
    if (m->type == IB_PAXOS_PHASE1A)
        return ib_acceptor_promise(m, r, io);
    if (m->type == IB_PAXOS_TRIM && !(m->flags & IB_PAXOS_F_LEADER))
        return ib_acceptor_trim(m, r, io);
    if (m->type == IB_PAXOS_POSITION && !(m->flags & (IB_PAXOS_F_LEADER | IB_PAXOS_F_ANSWER)))
        return ib_acceptor_position(m, r);
    return ib_verdict(IB_PASS, IB_R_passed_up);
}

#endif
