/* SPDX-License-Identifier: Apache-2.0 */
/* reasons.h - Falcon's own verdicts, and its reasons. */
#ifndef INBAND_FALCON_REASONS_H
#define INBAND_FALCON_REASONS_H

#include "../ground/verdict.h"

enum ib_falcon_verdict {
    IB_TO_EXECUTOR = 8, /* rewritten: send to the executor in the header */
};

#define IB_FALCON_REASONS_FIRST 192
#define IB_FALCON_REASONS(X)                                                                       \
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
    X(falcon_executor_by_host)

IB_REASONS_OF(falcon, IB_FALCON_REASONS_FIRST, IB_FALCON_REASONS);

#endif
