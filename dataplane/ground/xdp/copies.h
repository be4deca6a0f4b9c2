/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies.h - the egress program of every devmap entry: addresses one copy of a multicast packet.
 *
 * A system's copies.bpf.c defines two macros on the packet's header, and includes this file:
 *
 * - IB_COPIES_GROUP(payload): the number of the packet's group. A device's queue remembers only one
 *   egress program per flush, so one program serves all groups.
 * - IB_COPIES_ID(payload): an initializer of IB_COPIES_ID_WORDS words that distinguish successive
 *   packets. Byte order does not matter, because they are only compared for equality. Put the words
 *   that are most likely to differ first.
 *
 * All copies leave by the same interface, so the program must find out which copy this is. The
 * kernel makes copies in devmap order and sends them in that order on one CPU. So they are counted
 * per CPU: from 0 for every new packet, and modulo the number of members in case the same packet is
 * sent twice in a row. If the kernel fails to make a copy, some members miss theirs; loss is always
 * safe.
 *
 * Members may also be on separate interfaces; then the interface identifies the member.
 */
#ifndef INBAND_GROUND_XDP_COPIES_H
#define INBAND_GROUND_XDP_COPIES_H

#include "multicast.h"

#if !defined(IB_COPIES_GROUP) || !defined(IB_COPIES_ID)
#error "define IB_COPIES_GROUP and IB_COPIES_ID before this file"
#endif

#define IB_COPIES_ID_WORDS 4

/* The last copy finished on this CPU, and its packet. */
struct ib_rotation {
    ib_u64 id[IB_COPIES_ID_WORDS];
    ib_u64 next;
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, struct ib_rotation);
} ib_rotation_map SEC(".maps");

/* The index of this copy, below `count`. */
IB_INLINE ib_u32 ib_copy_number(struct ib_rotation *r, const ib_u8 *payload, ib_u32 count) {
    ib_u64 id[IB_COPIES_ID_WORDS] = IB_COPIES_ID(payload);
    if (r->id[0] != id[0] || r->id[1] != id[1] || r->id[2] != id[2] || r->id[3] != id[3] ||
        r->next >= count) {
        for (ib_u32 at = 0; at < IB_COPIES_ID_WORDS; at++)
            r->id[at] = id[at];
        r->next = 0;
    }
    return (ib_u32)r->next++;
}

/* The first member behind an interface, or NULL. */
IB_INLINE const struct ib_member *ib_member_behind(const struct ib_group *group, ib_u32 ifindex) {
    for (ib_u32 i = 0; i < IB_XDP_MEMBERS && i < group->count; i++)
        if (group->member[i].ifindex == ifindex)
            return &group->member[i];
    return NULL;
}

SEC("xdp/devmap")
int ib_copies(struct xdp_md *ctx) {
    ib_u8 *data = (ib_u8 *)(long)ctx->data;
    if (data + IB_XDP_FRAME_LEN_BYTES + IB_HEADER_LEN_BYTES > (ib_u8 *)(long)ctx->data_end)
        return XDP_DROP;
    const ib_u8 *payload = data + IB_XDP_FRAME_LEN_BYTES;
    ib_u32 zero = 0;
    ib_u32 which = IB_COPIES_GROUP(payload);
    struct ib_group *group = bpf_map_lookup_elem(&ib_groups_map, &which);
    struct ib_rotation *rotation = bpf_map_lookup_elem(&ib_rotation_map, &zero);
    if (!group || !rotation)
        return XDP_DROP;
    const struct ib_member *member = &group->local;
    if (ctx->egress_ifindex != ib_settings.loop_ifindex) {
        ib_u32 number = ib_copy_number(rotation, payload, group->count);
        member = &group->member[number & (IB_XDP_MEMBERS - 1)];
        if (member->ifindex != ctx->egress_ifindex)
            member = ib_member_behind(group, ctx->egress_ifindex);
    }
    if (!member || !member->known) {
        ib_count_reason(IB_R_copy_unresolved);
        return XDP_DROP;
    }
    ib_frame_address(data, member);
    return XDP_PASS;
}

char ib_license[] SEC("license") = "Dual BSD/GPL";

#endif
