/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - settings of the Paxos programs, set by the loader. Rust sees it through bindgen. */
#ifndef INBAND_PAXOS_SETTINGS_H
#define INBAND_PAXOS_SETTINGS_H

#include "../ground/xdp/settings.h"

/* The key that selects the program for a packet: its type, and a bit. */
enum ib_paxos_dispatch {
    IB_PAXOS_DISPATCH_LEADER = 16, /* IB_PAXOS_F_LEADER is set */
    IB_PAXOS_DISPATCH_KEYS = 32,
};

/* The multicast groups. */
enum ib_paxos_group {
    IB_PAXOS_ACCEPTORS_GROUP = 0,
    IB_PAXOS_LEARNERS_GROUP = 1,
};

struct ib_paxos_settings {
    ib_u32 ring_slots; /* a power of two */
    ib_u32 reserved;
};

#endif
