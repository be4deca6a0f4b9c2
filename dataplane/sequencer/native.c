/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"
#include "role.h"

IB_ANSWERING_IS(sequencer, log, ib_sequencer_log, IB_SEQUENCER_REASONS_FIRST, IB_SEQUENCER_REASONS,
                ib_shell_sequencer(m, reg, own->incarnation))
