/* SPDX-License-Identifier: Apache-2.0 */
/* groups.h - the multicast groups, for the programs that address copies. */
#ifndef INBAND_XDP_GROUPS_H
#define INBAND_XDP_GROUPS_H

#include "frame.h"

/* By enum ib_xdp_group. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, IB_XDP_GROUPS);
    __type(key, ib_u32);
    __type(value, struct ib_group);
} ib_groups_map SEC(".maps");

#endif
