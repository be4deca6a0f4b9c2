/* SPDX-License-Identifier: Apache-2.0 */
/* registers.h - what a sequencer remembers: a BPF map's values, and the soft switch's memory. */
#ifndef INBAND_SEQUENCER_REGISTERS_H
#define INBAND_SEQUENCER_REGISTERS_H

#include "wire.h"

/* One a log, in a cache line of its own. */
struct ib_sequencer_log {
    ib_u64 given; /* numbers; only grows */
    ib_u64 reserved[7];
};

_Static_assert(sizeof(struct ib_sequencer_log) == 64, "one cache line a log");

/* What the loader tells the program. Its logs are the common `partitions`. */
struct ib_sequencer_settings {
    ib_u64 incarnation;
};

#endif
