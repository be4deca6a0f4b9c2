/* SPDX-License-Identifier: Apache-2.0 */
/* shell.h - the code around the roles on every backend: takes numbers with one atomic addition. */
#ifndef INBAND_NETPAXOS_SHELL_H
#define INBAND_NETPAXOS_SHELL_H

#include "../ground/seqlock.h"
#include "registers.h"
#include "role_minion.h"

IB_INLINE struct ib_result ib_shell_netpaxos_serializer(const struct ib_netpaxos_msg *m,
                                                        struct ib_netpaxos_switch *sw) {
    struct ib_result result = ib_netpaxos_serializer(m);
    if (result.verdict != IB_DROP)
        __sync_fetch_and_add(&sw->passed, 1);
    return result;
}

IB_INLINE struct ib_result ib_shell_netpaxos_minion(struct ib_netpaxos_msg *m,
                                                    struct ib_netpaxos_switch *sw,
                                                    ib_u64 incarnation) {
    unsigned int reason = ib_netpaxos_minion_refuses(m, IB_LOAD(&sw->passed));
    if (reason != IB_R_none)
        return ib_verdict(IB_DROP, reason);
    ib_u64 passed = __sync_fetch_and_add(&sw->passed, 1);
    return ib_netpaxos_minion(m, passed + 1, incarnation);
}

#endif
