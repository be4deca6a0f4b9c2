/* SPDX-License-Identifier: Apache-2.0 */
/* shell.h - around the role on every backend: numbers are taken by one atomic addition. */
#ifndef INBAND_SEQUENCER_SHELL_H
#define INBAND_SEQUENCER_SHELL_H

#include "../ground/seqlock.h"
#include "role.h"

IB_INLINE struct ib_result ib_shell_sequencer(struct ib_sequencer_msg *m,
                                              struct ib_sequencer_log *log, ib_u64 incarnation) {
    unsigned int reason = ib_sequencer_refuses(m, IB_LOAD(&log->given));
    if (reason != IB_R_none)
        return ib_verdict(IB_DROP, reason);
    ib_u64 given = __sync_fetch_and_add(&log->given, m->count);
    return ib_sequencer_number(m, given + 1, incarnation);
}

#endif
