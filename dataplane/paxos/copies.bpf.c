/* SPDX-License-Identifier: Apache-2.0 */
/* copies - addresses the copies that a leader and an acceptor send to their groups. */
#include "msg.h"
#include "settings.h"

#define IB_COPIES_GROUP(payload)                                                                   \
    ((payload)[__builtin_offsetof(struct ib_paxos_header, type)] == IB_PAXOS_PHASE2A               \
         ? IB_PAXOS_ACCEPTORS_GROUP                                                                \
         : IB_PAXOS_LEARNERS_GROUP)

/* `partition` starts the header's second word, with sender and length; `magic` starts the first,
 * with type and flags. */
#define IB_COPIES_ID(payload)                                                                      \
    {IB_PAXOS_RAW64(payload, instance), IB_PAXOS_RAW64(payload, round),                            \
     IB_PAXOS_RAW64(payload, partition), IB_PAXOS_RAW64(payload, magic)}

#include "../ground/xdp/copies.h"
