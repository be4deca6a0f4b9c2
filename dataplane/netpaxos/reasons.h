/* SPDX-License-Identifier: Apache-2.0 */
/* reasons.h - NetPaxos's own verdicts, and its reasons. */
#ifndef INBAND_NETPAXOS_REASONS_H
#define INBAND_NETPAXOS_REASONS_H

#include "../ground/verdict.h"

enum ib_netpaxos_verdict {
    IB_NETPAXOS_TO_GROUP = 6, /* rewritten: a serializer sends to all minions, a minion to its
                                 storage and all learners */
};

#define IB_NETPAXOS_REASONS_FIRST 448
#define IB_NETPAXOS_REASONS(X)                                                                     \
    X(netpaxos_serialized)                                                                         \
    X(netpaxos_numbered)                                                                           \
    X(netpaxos_not_for_role)                                                                       \
    X(netpaxos_value_too_long)                                                                     \
    X(netpaxos_numbers_used_up)

IB_REASONS_OF(netpaxos, IB_NETPAXOS_REASONS_FIRST, IB_NETPAXOS_REASONS);

#endif
