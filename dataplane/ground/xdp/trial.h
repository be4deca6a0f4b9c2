/* SPDX-License-Identifier: Apache-2.0 */
/* trial.h - what the trial program and its loader tell each other. Rust sees it through bindgen. */
#ifndef INBAND_GROUND_XDP_TRIAL_H
#define INBAND_GROUND_XDP_TRIAL_H

#include "../frame.h"

enum ib_trial_limits {
    IB_TRIAL_FRAME_LEN_BYTES = 42, /* Ethernet, ARP */
    IB_TRIAL_COPIES = 2,           /* of one frame, out of one interface */
};

/* Addresses as they lie in a packet. */
struct ib_trial {
    ib_u32 address;   /* ours */
    ib_u32 neighbour; /* whose answers count; 0: the first to answer becomes it */
    ib_u64 answers;   /* that have come */
    ib_u64 transmits; /* answers that are to be turned into another question, sent by XDP_TX */
    ib_u8 mac[6];     /* ours */
    ib_u8 neighbour_mac[6];
    ib_u8 reserved[4];
};

#endif
