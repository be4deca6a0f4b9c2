/* SPDX-License-Identifier: Apache-2.0 */
/* role.h - the sequencer and its shell: on every backend one atomic addition takes the numbers. */
#ifndef INBAND_SEQUENCER_ROLE_H
#define INBAND_SEQUENCER_ROLE_H

#include "../ground/seqlock.h"
#include "reasons.h"
#include "registers.h"

/* Returns IB_R_none if the packet gets m->count numbers; `given` have been handed out already. */
IB_INLINE unsigned int ib_sequencer_refuses(const struct ib_sequencer_msg *m, ib_u64 given) {
    if (m->type != IB_SEQUENCER_NEXT)
        return IB_R_sequencer_not_for_sequencer;
    if (m->count == 0 || m->count > IB_SEQUENCER_COUNT_MAX)
        return IB_R_sequencer_bad_count;
    return given >> IB_SEQUENCER_NUMBER_BITS ? IB_R_sequencer_log_full : IB_R_none;
}

IB_INLINE struct ib_result ib_sequencer_number(struct ib_sequencer_msg *m, ib_u64 first,
                                               ib_u64 incarnation) {
    m->type = IB_SEQUENCER_NUMBER;
    m->number = first;
    m->incarnation = incarnation;
    return ib_verdict(IB_REPLY, IB_R_sequencer_numbered);
}

IB_INLINE struct ib_result ib_shell_sequencer(struct ib_sequencer_msg *m,
                                              struct ib_sequencer_log *log, ib_u64 incarnation) {
    unsigned int reason = ib_sequencer_refuses(m, IB_LOAD(&log->given));
    if (reason != IB_R_none)
        return ib_verdict(IB_DROP, reason);
    ib_u64 given = __sync_fetch_and_add(&log->given, m->count);
    return ib_sequencer_number(m, given + 1, incarnation);
}

#endif
