/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - settings of the memory programs, set by the loader. Rust sees it through bindgen. */
#ifndef INBAND_MEMORY_SETTINGS_H
#define INBAND_MEMORY_SETTINGS_H

#include "../ground/xdp/settings.h"

/* The multicast group. */
enum ib_memory_group { IB_MEMORY_SERVERS_GROUP = 0 };

struct ib_memory_settings {
    ib_u64 chunks;
    ib_u32 servers;     /* switch */
    ib_u32 block_shift; /* switch: a block has 2^this chunks */
};

#endif
