/* SPDX-License-Identifier: Apache-2.0 */
/*
 * role_leader.h - the leader: assigns the next instance to each request (Paxos coordinator, phase
 * 2).
 *
 * Pure. `r` is a copy of the registers; the shell stores what the role has changed (`next` by
 * compare-and-swap, so that two requests never get the same instance).
 */
#ifndef INBAND_PAXOS_ROLE_LEADER_H
#define INBAND_PAXOS_ROLE_LEADER_H

#include "msg.h"
#include "registers.h"

IB_INLINE struct ib_result ib_leader_request(struct ib_paxos_msg *m, struct ib_leader_regs *r,
                                             ib_u64 ring_slots) {
    m->epoch = (ib_u32)r->epoch;
    m->floor = r->floor;
    m->round = r->round;
    if (r->round == 0) {
        m->type = IB_PAXOS_NACK;
        m->flags |= IB_PAXOS_F_LEADER;
        return ib_verdict(IB_REPLY, IB_R_leader_not_active);
    }
    if (r->next < r->floor)
        r->next = r->floor; /* others have filled and trimmed this leader's next instances */
    if (r->next >= r->floor + ring_slots) {
        m->type = IB_PAXOS_BUSY;
        return ib_verdict(IB_REPLY, IB_R_leader_window_full);
    }
    m->type = IB_PAXOS_PHASE2A;
    m->flags &= IB_PAXOS_F_VALUE_MASK;
    m->instance = r->next;
    m->vround = 0;
    r->next += 1;
    return ib_verdict(IB_TO_ACCEPTORS, IB_R_leader_stamped);
}

/*
 * An acceptor refused. Only a promise for the whole partition deposes a leader: a promise for one
 * slot comes from a learner that is recovering it (schedules.md, 10).
 */
IB_INLINE struct ib_result ib_leader_nack(const struct ib_paxos_msg *m, struct ib_leader_regs *r) {
    int deposed = !(m->flags & (IB_PAXOS_F_SLOT | IB_PAXOS_F_BELOW_FLOOR | IB_PAXOS_F_LEADER)) &&
                  m->epoch == r->epoch && r->round != 0 && m->round > r->round;
    int fenced = !(m->flags & IB_PAXOS_F_LEADER) && m->epoch > r->epoch && r->round != 0;
    if (deposed || fenced) {
        r->round = 0;
        return ib_verdict(IB_PASS, IB_R_leader_deposed);
    }
    return ib_verdict(IB_PASS, IB_R_passed_up);
}

IB_INLINE struct ib_result ib_leader_trim(const struct ib_paxos_msg *m, struct ib_leader_regs *r) {
    if (m->epoch != r->epoch)
        return ib_verdict(IB_DROP, IB_R_wrong_epoch);
    if (m->floor <= r->floor)
        return ib_verdict(IB_DROP, IB_R_floor_known);
    r->floor = m->floor;
    return ib_verdict(IB_DROP, IB_R_floor_raised);
}

IB_INLINE struct ib_result ib_leader_position(struct ib_paxos_msg *m,
                                              const struct ib_leader_regs *r) {
    m->flags |= IB_PAXOS_F_ANSWER;
    m->epoch = (ib_u32)r->epoch;
    m->instance = r->next;
    m->floor = r->floor;
    m->round = r->round;
    return ib_verdict(IB_REPLY, IB_R_position_answered);
}

/* Handles any message for the leader. */
IB_INLINE struct ib_result ib_leader(struct ib_paxos_msg *m, struct ib_leader_regs *r,
                                     ib_u64 ring_slots) {
    if (m->type == IB_PAXOS_REQUEST)
        return ib_leader_request(m, r, ring_slots);
    if (m->type == IB_PAXOS_NACK)
        return ib_leader_nack(m, r);
    if (m->type == IB_PAXOS_TRIM && (m->flags & IB_PAXOS_F_LEADER))
        return ib_leader_trim(m, r);
    if (m->type == IB_PAXOS_POSITION && (m->flags & IB_PAXOS_F_LEADER) &&
        !(m->flags & IB_PAXOS_F_ANSWER))
        return ib_leader_position(m, r);
    return ib_verdict(IB_PASS, IB_R_passed_up);
}

#endif
