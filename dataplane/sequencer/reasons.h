/* SPDX-License-Identifier: Apache-2.0 */
/* reasons.h - the sequencer's reasons. */
#ifndef INBAND_SEQUENCER_REASONS_H
#define INBAND_SEQUENCER_REASONS_H

#include "../ground/verdict.h"

#define IB_SEQUENCER_REASONS_FIRST 256
#define IB_SEQUENCER_REASONS(X)                                                                    \
    X(sequencer_numbered)                                                                          \
    X(sequencer_bad_count)                                                                         \
    X(sequencer_not_for_sequencer)                                                                 \
    X(sequencer_log_full)

IB_REASONS_OF(sequencer, IB_SEQUENCER_REASONS_FIRST, IB_SEQUENCER_REASONS);

#endif
