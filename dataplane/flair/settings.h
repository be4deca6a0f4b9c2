/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - settings of the FLAIR program, set by the loader. Rust sees it through bindgen. */
#ifndef INBAND_FLAIR_SETTINGS_H
#define INBAND_FLAIR_SETTINGS_H

#include "../ground/xdp/settings.h"

/* The sets are the common settings' `partitions`. */
struct ib_flair_settings {
    ib_u64 incarnation; /* random, chosen at the switch's start */
    ib_u32 groups;      /* key groups per set */
    ib_u32 reserved;
};

#endif
