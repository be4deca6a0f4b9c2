/* SPDX-License-Identifier: Apache-2.0 */
/* reasons.h - Paxos's own verdicts, and its reasons. */
#ifndef INBAND_PAXOS_REASONS_H
#define INBAND_PAXOS_REASONS_H

#include "../ground/verdict.h"

enum ib_paxos_verdict {
    IB_TO_ACCEPTORS = 3, /* rewritten: send a copy to every acceptor */
    IB_TO_LEARNERS = 4,  /* rewritten: send a copy to every learner */
};

#define IB_PAXOS_REASONS_FIRST 64
#define IB_PAXOS_REASONS(X)                                                                        \
    /* any role */                                                                                 \
    X(value_io_failed)                                                                             \
    X(position_answered)                                                                           \
    X(floor_raised)                                                                                \
    X(floor_known)                                                                                 \
    X(wrong_epoch)                                                                                 \
    X(epoch_ahead)                                                                                 \
    /* leader */                                                                                   \
    X(leader_stamped)                                                                              \
    X(leader_not_active)                                                                           \
    X(leader_window_full)                                                                          \
    X(leader_deposed)                                                                              \
    /* acceptor */                                                                                 \
    X(acceptor_voted)                                                                              \
    X(acceptor_vote_repeated)                                                                      \
    X(acceptor_promised)                                                                           \
    X(acceptor_promised_slot)                                                                      \
    X(acceptor_nack)                                                                               \
    X(acceptor_nack_slot)                                                                          \
    X(acceptor_recovering)                                                                         \
    X(acceptor_below_floor)                                                                        \
    X(acceptor_beyond_ring)                                                                        \
    X(acceptor_raced)                                                                              \
    X(acceptor_learn_answered)                                                                     \
    X(acceptor_learn_no_vote)                                                                      \
    /* quorum counter */                                                                           \
    X(quorum_counted)                                                                              \
    X(quorum_reached)                                                                              \
    X(quorum_duplicate)                                                                            \
    X(quorum_late)                                                                                 \
    X(quorum_old_instance)                                                                         \
    X(quorum_lower_round)                                                                          \
    X(quorum_not_member)                                                                           \
    X(quorum_hand_off_failed)                                                                      \
    /* a number that cannot be */                                                                  \
    X(bad_instance)                                                                                \
    X(bad_round)                                                                                   \
    /* quorum counter: a vote for another value than those counted before */                       \
    X(quorum_other_value)

IB_REASONS_OF(paxos, IB_PAXOS_REASONS_FIRST, IB_PAXOS_REASONS);

#endif
