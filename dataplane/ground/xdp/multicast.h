/* SPDX-License-Identifier: Apache-2.0 */
/* multicast.h - the multicast groups, for the programs that send to them and that address
 * copies. */
#ifndef INBAND_GROUND_XDP_MULTICAST_H
#define INBAND_GROUND_XDP_MULTICAST_H

#include "frame.h"

/* Indexed by group number. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, IB_XDP_GROUPS);
    __type(key, ib_u32);
    __type(value, struct ib_group);
} ib_groups_map SEC(".maps");

/*
 * Multicast in native mode. An interface has one entry per member; the egress program of each entry
 * addresses the copy.
 */
#define IB_DEVMAP(name)                                                                            \
    struct {                                                                                       \
        __uint(type, BPF_MAP_TYPE_DEVMAP);                                                         \
        __uint(max_entries, IB_XDP_GROUP_ENTRIES);                                                 \
        __type(key, ib_u32);                                                                       \
        __type(value, struct bpf_devmap_val);                                                      \
    } name SEC(".maps")

/*
 * Sends to all members of a group. Each gets a copy, which the egress program addresses. For a
 * single member, no copy is needed.
 */
IB_INLINE int ib_send_group(ib_u8 *data, ib_u32 which, void *devices) {
    const struct ib_group *group = bpf_map_lookup_elem(&ib_groups_map, &which);
    if (!group || !devices)
        return XDP_ABORTED;
    if (group->count + group->has_local != 1)
        return (int)bpf_redirect_map(devices, 0, BPF_F_BROADCAST);
    const struct ib_member *member = group->has_local ? &group->local : &group->member[0];
    if (!member->known) {
        ib_count_reason(IB_R_copy_unresolved);
        return XDP_DROP;
    }
    ib_frame_address(data, member);
    return (int)bpf_redirect_map(devices, 0, 0);
}

#endif
