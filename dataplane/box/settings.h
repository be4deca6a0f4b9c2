/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - settings of the program, set by the loader. Rust sees it through bindgen. */
#ifndef INBAND_BOX_SETTINGS_H
#define INBAND_BOX_SETTINGS_H

#include "../ground/xdp/settings.h"

/* The multicast group. */
enum ib_box_group { IB_BOX_OTHERS_GROUP = 0 };

struct ib_box_settings {
    ib_u64 capacity; /* slots of the ring, a power of two */
    /* Where clients send GETs for this node's own copy, and the network whose GETs are answered
     * (gets.h). In network order. */
    ib_u32 get_address;
    ib_u32 get_from;
    ib_u32 get_from_mask;
    ib_u16 get_port; /* 0: nowhere */
    ib_u16 reserved;
};

#endif
