/* SPDX-License-Identifier: Apache-2.0 */
/* trial.h - the interface between the trial program and its loader. Rust sees it through
 * bindgen. */
#ifndef INBAND_GROUND_XDP_TRIAL_H
#define INBAND_GROUND_XDP_TRIAL_H

#include "../frame.h"

enum ib_trial_limits {
    IB_TRIAL_FRAME_LEN_BYTES = 42, /* Ethernet, ARP */
    IB_TRIAL_COPIES = 2,           /* of one frame, all out of one interface */
};

/* Addresses are in network byte order. */
struct ib_trial {
    ib_u32 address;   /* ours */
    ib_u32 neighbour; /* only its answers count; 0: the first host to answer */
    ib_u64 answers;   /* number of answers received */
    ib_u64 transmits; /* number of answers to turn into another request, sent with XDP_TX */
    ib_u8 mac[6];     /* ours */
    ib_u8 neighbour_mac[6];
    ib_u8 reserved[4];
};

#endif
