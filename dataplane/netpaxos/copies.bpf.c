/* SPDX-License-Identifier: Apache-2.0 */
/* copies - addresses the copies that a serializer and a minion send. */
#include "msg.h"
#include "settings.h"

#define IB_COPIES_GROUP(payload) IB_NETPAXOS_GROUP

/* At a serializer, a retransmitted request has the same ID: the count of copies starts again. */
#define IB_COPIES_ID(payload)                                                                      \
    {IB_NETPAXOS_GET64(payload, number), IB_NETPAXOS_GET64(payload, request),                      \
     IB_NETPAXOS_GET64(payload, client), IB_NETPAXOS_GET64(payload, magic)}

#include "../ground/xdp/copies.h"
