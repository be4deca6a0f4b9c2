/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - settings of the program, set by the loader. Rust sees it through bindgen. */
#ifndef INBAND_BOX_SETTINGS_H
#define INBAND_BOX_SETTINGS_H

#include "../ground/xdp/settings.h"

/* The multicast group. */
enum ib_box_group { IB_BOX_OTHERS_GROUP = 0 };

struct ib_box_settings {
    ib_u64 capacity; /* slots of the ring, a power of two */
    /* The network of the clients who use datagrams. In network order, as what follows. */
    ib_u32 from;
    ib_u32 from_mask;
    /* Where they send GETs for this node's own copy (gets.h), and SETs (sets.h). */
    ib_u32 local_address;
    /* Where they send SETs, and GETs for the process. */
    ib_u32 strong_address;
    ib_u16 local_port; /* 0: nowhere */
    ib_u16 strong_port;
    ib_u32 reserved;
};

#endif
