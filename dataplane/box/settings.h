/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - settings of the program, set by the loader. Rust sees it through bindgen. */
#ifndef INBAND_BOX_SETTINGS_H
#define INBAND_BOX_SETTINGS_H

#include "../ground/xdp/settings.h"

/* The multicast group. */
enum ib_box_group { IB_BOX_OTHERS_GROUP = 0 };

struct ib_box_settings {
    ib_u64 capacity; /* slots of the ring, a power of two */
};

#endif
