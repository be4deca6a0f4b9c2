/* SPDX-License-Identifier: Apache-2.0 */
/* reasons.h - FLAIR's own verdicts, and its reasons. */
#ifndef INBAND_FLAIR_REASONS_H
#define INBAND_FLAIR_REASONS_H

#include "../ground/verdict.h"

enum ib_flair_verdict {
    IB_TO_REPLICA = 6, /* rewritten: send to the replica in the header, of the packet's set */
    IB_TO_CLIENT = 7,  /* rewritten: send to the client whose address is in the header */
};

#define IB_FLAIR_REASONS_FIRST 128
#define IB_FLAIR_REASONS(X)                                                                        \
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
    X(flair_client_by_host)

IB_REASONS_OF(flair, IB_FLAIR_REASONS_FIRST, IB_FLAIR_REASONS);

#endif
