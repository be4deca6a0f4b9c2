/* SPDX-License-Identifier: Apache-2.0 */
/* lost.h - settings of the programs that count lost frames. Rust sees it through bindgen. */
#ifndef INBAND_GROUND_XDP_LOST_H
#define INBAND_GROUND_XDP_LOST_H

#include "../frame.h"

enum ib_lost_limits {
    IB_LOST_INTERFACES = 3, /* the host's, and the two ends of the loopback pair */
};

enum ib_lost_counter {
    IB_LOST_TRANSMITS = 0, /* sent back out of the ingress interface (XDP_TX) */
    IB_LOST_COPIES = 1,    /* redirected */
    IB_LOST_COUNTERS = 2,
};

/* Interface numbers are local to a network namespace. */
struct ib_lost_settings {
    ib_u32 namespace_inode;
    ib_u32 interfaces[IB_LOST_INTERFACES]; /* unused ones are 0 */
};

#endif
