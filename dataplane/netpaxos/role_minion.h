/* SPDX-License-Identifier: Apache-2.0 */
/*
 * role_minion.h - the minion: accepts every request and numbers it, like the reorder block of
 * section 4.1.2. Pure; the shell takes the number.
 */
#ifndef INBAND_NETPAXOS_ROLE_MINION_H
#define INBAND_NETPAXOS_ROLE_MINION_H

#include "role_serializer.h"

/* Returns IB_R_none if the request gets a number; `passed` have been assigned already. */
IB_INLINE unsigned int ib_netpaxos_minion_refuses(const struct ib_netpaxos_msg *m, ib_u64 passed) {
    unsigned int reason = ib_netpaxos_refuses(m);
    if (reason != IB_R_none)
        return reason;
    return passed >> IB_NETPAXOS_NUMBER_BITS ? IB_R_netpaxos_numbers_used_up : IB_R_none;
}

IB_INLINE struct ib_result ib_netpaxos_minion(struct ib_netpaxos_msg *m, ib_u64 number,
                                              ib_u64 incarnation) {
    m->type = IB_NETPAXOS_NUMBERED;
    m->number = number;
    m->incarnation = incarnation;
    return ib_verdict(IB_NETPAXOS_TO_GROUP, IB_R_netpaxos_numbered);
}

#endif
