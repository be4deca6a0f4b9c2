/* SPDX-License-Identifier: Apache-2.0 */
/*
 * role_quorum.h - the quorum counter on a learner's host: of the many PHASE2B packets, it delivers
 * exactly one per decided instance.
 *
 * Pure. `c` is a copy of the slot's count. The verdict IB_DELIVER comes with c->done set; the shell
 * stores that only after the value has been delivered (protocol.md, 2).
 */
#ifndef INBAND_PAXOS_ROLE_QUORUM_H
#define INBAND_PAXOS_ROLE_QUORUM_H

#include "msg.h"
#include "registers.h"

/* Kernighan's bit count. The verifier needs a bound; there are at most IB_ACCEPTORS_MAX members. */
IB_INLINE ib_u64 ib_quorum_size(ib_u64 members) {
    ib_u64 size = 0;
    for (int i = 0; i < IB_ACCEPTORS_MAX && members; i++) {
        members &= members - 1;
        size++;
    }
    return size;
}

/* Whether the vote is counted here. User space counts answers to LEARN and recovery votes. */
IB_INLINE int ib_quorum_counts(const struct ib_paxos_msg *m) {
    return m->type == IB_PAXOS_PHASE2B && !(m->flags & (IB_PAXOS_F_REPEAT | IB_PAXOS_F_RECOVERY));
}

/*
 * Whether a member's vote is too late to change the count. May be called on a count that is being
 * modified: a completed count stays complete, and a vote that is dropped because of a torn read is
 * just a lost packet.
 */
IB_INLINE int ib_quorum_is_late(const struct ib_paxos_msg *m, const struct ib_quorum_config *config,
                                const volatile struct ib_count *c) {
    return c->done && m->instance == c->instance && m->round == c->round && m->epoch == c->epoch &&
           m->epoch == config->epoch && config->member_bit[m->node & 0xff] != 0;
}

IB_INLINE struct ib_result ib_quorum(const struct ib_paxos_msg *m,
                                     const struct ib_quorum_config *config, struct ib_count *c) {
    if (m->epoch != config->epoch)
        return ib_verdict(IB_DROP, IB_R_wrong_epoch);
    ib_u8 bit = config->member_bit[m->node & 0xff];
    if (bit == 0)
        return ib_verdict(IB_DROP, IB_R_quorum_not_member);
    if (m->instance < c->instance)
        return ib_verdict(IB_DROP, IB_R_quorum_old_instance);
    if (m->instance == c->instance && c->done)
        return ib_verdict(IB_DROP,
                          IB_R_quorum_late); /* a higher round would decide the same value */
    if (m->instance > c->instance || m->epoch != c->epoch || m->round > c->round) {
        c->instance = m->instance;
        c->epoch = m->epoch;
        c->round = m->round;
        c->digest = m->digest;
        c->members = 0;
        c->done = 0;
    }
    if (m->round < c->round)
        return ib_verdict(IB_DROP, IB_R_quorum_lower_round);
    if (IB_RARE(m->digest != c->digest))
        return ib_verdict(IB_DROP, IB_R_quorum_other_value);
    ib_u64 member = 1ULL << ((bit - 1) & 63);
    if (c->members & member)
        return ib_verdict(IB_DROP, IB_R_quorum_duplicate);
    c->members |= member;
    if (ib_quorum_size(c->members) < config->majority)
        return ib_verdict(IB_DROP, IB_R_quorum_counted);
    c->done = 1;
    return ib_verdict(IB_DELIVER, IB_R_quorum_reached);
}

#endif
