/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - what the loader tells the program. Its logs are the common `partitions`. */
#ifndef INBAND_SEQUENCER_SETTINGS_H
#define INBAND_SEQUENCER_SETTINGS_H

#include "../ground/xdp/settings.h"

struct ib_sequencer_settings {
    ib_u64 incarnation; /* drawn at its start */
};

#endif
