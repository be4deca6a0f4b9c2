/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verdict.h - what a role says about a packet, and the reason, which is also the name of a counter.
 */
#ifndef INBAND_VERDICT_H
#define INBAND_VERDICT_H

enum ib_verdict {
    IB_DROP = 0,         /* forget the packet */
    IB_PASS = 1,         /* to the host's own process, unchanged */
    IB_BACK = 2,         /* rewritten, to whoever sent it */
    IB_TO_ACCEPTORS = 3, /* rewritten, a copy to every acceptor */
    IB_TO_LEARNERS = 4,  /* rewritten, a copy to every learner */
    IB_UP = 5,           /* a majority is reached: hand the value up to the host's learner */
    IB_TO_REPLICA = 6,   /* rewritten, to the replica of its set that the header names */
    IB_TO_CLIENT = 7,    /* rewritten, to the client whose address is in the header */
    IB_TO_EXECUTOR = 8,  /* rewritten, to the executor that the header names */
};

/* X(name): IB_R_<name> is the reason, "<name>" the counter. Append only: the order is an interface.
 */
#define IB_REASONS(X)                                                                              \
    X(none)                                                                                        \
    /* parsing: the packet never reaches a register */                                             \
    X(bad_truncated)                                                                               \
    X(bad_magic)                                                                                   \
    X(bad_version)                                                                                 \
    X(bad_type)                                                                                    \
    X(bad_length)                                                                                  \
    X(bad_partition)                                                                               \
    X(bad_node)                                                                                    \
    /* any role */                                                                                 \
    X(contended)                                                                                   \
    X(no_room)                                                                                     \
    X(value_io_failed)                                                                             \
    X(passed_up)                                                                                   \
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
    /* multicast */                                                                                \
    X(copy_unresolved)                                                                             \
    /* authentication: no key of this id here; another tag than this key makes */                  \
    X(bad_key)                                                                                     \
    X(bad_tag)                                                                                     \
    /* FLAIR switch */                                                                             \
    X(flair_bad_replica)                                                                           \
    X(flair_bad_step_down)                                                                         \
    X(flair_not_for_switch)                                                                        \
    X(flair_no_session)                                                                            \
    X(flair_reply_no_session)                                                                      \
    X(flair_reply_old_session)                                                                     \
    X(flair_write_sequenced)                                                                       \
    X(flair_write_stable)                                                                          \
    X(flair_write_overtaken)                                                                       \
    X(flair_refresh_stable)                                                                        \
    X(flair_refresh_overtaken)                                                                     \
    X(flair_read_to_follower)                                                                      \
    X(flair_read_to_leader)                                                                        \
    X(flair_read_unstable)                                                                         \
    X(flair_read_nobody)                                                                           \
    X(flair_read_of_leader)                                                                        \
    X(flair_read_of_follower)                                                                      \
    X(flair_read_refused)                                                                          \
    X(flair_read_overtaken)                                                                        \
    X(flair_other_incarnation)                                                                     \
    X(flair_other_session)                                                                         \
    X(flair_time_none)                                                                             \
    X(flair_time_ahead)                                                                            \
    X(flair_time_old)                                                                              \
    X(flair_renewed)                                                                               \
    X(flair_installed)                                                                             \
    X(flair_neutralised)                                                                           \
    X(flair_session_known)                                                                         \
    X(flair_client_by_host)                                                                        \
    /* Falcon scheduler */                                                                         \
    X(falcon_not_for_scheduler)                                                                    \
    X(falcon_bad_executor)                                                                         \
    X(falcon_bad_task)                                                                             \
    X(falcon_bad_digest)                                                                           \
    X(falcon_other_incarnation)                                                                    \
    X(falcon_not_registered)                                                                       \
    X(falcon_queued)                                                                               \
    X(falcon_asked)                                                                                \
    X(falcon_queue_full)                                                                           \
    X(falcon_user_full)                                                                            \
    X(falcon_push_contended)                                                                       \
    X(falcon_woken)                                                                                \
    X(falcon_given)                                                                                \
    X(falcon_given_again)                                                                          \
    X(falcon_empty)                                                                                \
    X(falcon_parked)                                                                               \
    X(falcon_busy)                                                                                 \
    X(falcon_overtaken)                                                                            \
    X(falcon_executor_by_host)                                                                     \
    /* damage: a number that cannot be; a value that is not the one that was sent */               \
    X(bad_instance)                                                                                \
    X(bad_round)                                                                                   \
    X(bad_checksum)                                                                                \
    /* quorum counter: a vote for another value than those counted before */                       \
    X(quorum_other_value)

enum ib_reason {
#define IB_REASON_ENUM(name) IB_R_##name,
    IB_REASONS(IB_REASON_ENUM)
#undef IB_REASON_ENUM
        IB_REASONS_COUNT
};

/* A verdict and why. */
struct ib_result {
    unsigned int verdict; /* enum ib_verdict */
    unsigned int reason;  /* enum ib_reason */
};

#endif
