/* SPDX-License-Identifier: Apache-2.0 */
/*
 * role_serializer.h - the serializer: copies each request unchanged to the minions. It orders
 * requests only in that all of them pass through one place. Safety does not depend on that.
 */
#ifndef INBAND_NETPAXOS_ROLE_SERIALIZER_H
#define INBAND_NETPAXOS_ROLE_SERIALIZER_H

#include "msg.h"

/* Returns IB_R_none if the request must be forwarded. */
IB_INLINE unsigned int ib_netpaxos_refuses(const struct ib_netpaxos_msg *m) {
    if (m->type != IB_NETPAXOS_REQUEST)
        return IB_R_netpaxos_not_for_role;
    if (m->value_len_bytes > IB_NETPAXOS_VALUE_LEN_MAX_BYTES)
        return IB_R_netpaxos_value_too_long;
    return IB_R_none;
}

IB_INLINE struct ib_result ib_netpaxos_serializer(const struct ib_netpaxos_msg *m) {
    unsigned int reason = ib_netpaxos_refuses(m);
    if (reason != IB_R_none)
        return ib_verdict(IB_DROP, reason);
    return ib_verdict(IB_NETPAXOS_TO_GROUP, IB_R_netpaxos_serialized);
}

#endif
