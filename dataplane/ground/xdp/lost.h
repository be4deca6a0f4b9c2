/* SPDX-License-Identifier: Apache-2.0 */
/* lost.h - the map of the programs that count lost frames. Rust sees it through bindgen. */
#ifndef INBAND_GROUND_XDP_LOST_H
#define INBAND_GROUND_XDP_LOST_H

#include "../frame.h"

enum ib_lost_limits {
    /* Of all hosts that have ever shared the programs: an interface keeps its entry. */
    IB_LOST_INTERFACES_MAX = 4096,
};

enum ib_lost_counter {
    IB_LOST_TRANSMITS = 0, /* sent back out of the ingress interface (XDP_TX) */
    IB_LOST_COPIES = 1,    /* redirected */
    IB_LOST_COUNTERS = 2,
};

/* Interface numbers are local to a network namespace. */
struct ib_lost_interface {
    ib_u32 namespace_inode;
    ib_u32 ifindex;
};

struct ib_lost_counts {
    ib_u64 counts[IB_LOST_COUNTERS];
};

#endif
