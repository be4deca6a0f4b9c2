/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - what the loader tells the FLAIR program. Rust sees it through bindgen. */
#ifndef INBAND_FLAIR_SETTINGS_H
#define INBAND_FLAIR_SETTINGS_H

#include "../ground/xdp/settings.h"

/* The sets are the common settings' `partitions`. */
struct ib_flair_settings {
    ib_u64 incarnation; /* drawn at the switch's start */
    ib_u32 groups;      /* key groups a set */
    ib_u32 reserved;
};

#endif
