/* SPDX-License-Identifier: Apache-2.0 */
/* reasons.h - the box's own verdicts, and its reasons. */
#ifndef INBAND_BOX_REASONS_H
#define INBAND_BOX_REASONS_H

#include "../ground/verdict.h"

enum ib_box_verdict {
    IB_BOX_TO_OTHERS = 6, /* rewritten: send to all other nodes */
};

#define IB_BOX_REASONS_FIRST 384
#define IB_BOX_REASONS(X)                                                                          \
    /* any packet */                                                                               \
    X(box_bad_value) /* too long, or none is allowed */                                            \
    X(box_bad_digest)                                                                              \
    X(box_no_epoch)                                                                                \
    X(box_bad_epoch)   /* another node's than the sender's; a record's: later than the packet's */ \
    X(box_epoch_ahead) /* far beyond ours */                                                       \
    X(box_bad_zxid)    /* 0, or not in our log */                                                  \
    X(box_bad_origin)  /* not the sender */                                                        \
    X(box_not_member)                                                                              \
    X(box_old_epoch)                                                                               \
    X(box_higher_epoch)                                                                            \
    X(box_not_following) /* we are idle, or lead */                                                \
    X(box_not_leading)                                                                             \
    /* SUBMIT */                                                                                   \
    X(box_submit_elsewhere)                                                                        \
    X(box_submit_busy)                                                                             \
    X(box_submitted)                                                                               \
    /* PROPOSE */                                                                                  \
    X(box_not_applied) /* the slot has a record that the process has not applied */                \
    X(box_gap)                                                                                     \
    X(box_had_already)                                                                             \
    X(box_kept)                                                                                    \
    X(box_appended)                                                                                \
    /* COMMIT */                                                                                   \
    X(box_heard)                                                                                   \
    X(box_commit_learned)                                                                          \
    /* ACK */                                                                                      \
    X(box_ack_counted)                                                                             \
    X(box_ack_recovering)                                                                          \
    X(box_ack_late)                                                                                \
    X(box_ack_of_gap)                                                                              \
    X(box_committed)                                                                               \
    /* a client's datagram to the port for GETs (gets.h), which no vector shows */                 \
    X(gets_hit)                                                                                    \
    X(gets_miss)                                                                                   \
    /* the process answers: */                                                                     \
    X(gets_other)   /* not a GET of one key, or not from a client's network */                     \
    X(gets_busy)    /* the bucket changed too often, or has too many items; or no table yet */     \
    X(gets_long)    /* the reply is longer than a datagram */                                      \
    X(gets_no_room) /* the driver cannot make the frame this long */                               \
    /* a client's SET to that port (sets.h) */                                                     \
    X(sets_proposed)                                                                               \
    /* the process answers: */                                                                     \
    X(sets_other)   /* of another form, too long, or this node does not lead */                    \
    X(sets_busy)    /* the log is full of uncommitted or unapplied records */                      \
    X(sets_no_room) /* the driver has no room for the record's header */

IB_REASONS_OF(box, IB_BOX_REASONS_FIRST, IB_BOX_REASONS);

#endif
