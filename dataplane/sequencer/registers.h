/* SPDX-License-Identifier: Apache-2.0 */
/* registers.h - the state of a sequencer: values of a BPF map, and the soft switch's memory. */
#ifndef INBAND_SEQUENCER_REGISTERS_H
#define INBAND_SEQUENCER_REGISTERS_H

#include "wire.h"

/* One per log, each in its own cache line. */
struct ib_sequencer_log {
    ib_u64 given; /* numbers handed out; only increases */
    ib_u64 reserved[7];
};

_Static_assert(sizeof(struct ib_sequencer_log) == 64, "one cache line a log");

/* Settings that the loader passes to the program. Its logs are the common `partitions`. */
struct ib_sequencer_settings {
    ib_u64 incarnation;
};

#endif
