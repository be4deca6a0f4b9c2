/* SPDX-License-Identifier: Apache-2.0 */
/*
 * generic - the tc ingress program of generic mode: sends what the role programs have rewritten.
 *
 * In generic mode a devmap's copies are clones. Whether an egress program that addresses one copy
 * then also changes the others depends on the kernel: 6.18 keeps them apart, but that is not
 * guaranteed. bpf_clone_redirect gives each copy its own headers on every kernel.
 */
#include <linux/pkt_cls.h>

#include "multicast.h"

#define IB_UDP_CHECK_AT_BYTES                                                                      \
    (ETH_HLEN + sizeof(struct iphdr) + __builtin_offsetof(struct udphdr, check))
#define IB_PROBE_CHECK 0x1234

/*
 * A packet from a virtual device may have an unfinished checksum, which the sending device will
 * complete; then the field must contain the sum of the pseudo header. The kernel does not expose
 * this state, but bpf_l4_csum_replace leaves the field of such a packet unchanged.
 */
IB_INLINE int ib_checksum_is_unfinished(struct __sk_buff *skb) {
    ib_u16 probe = IB_PROBE_CHECK;
    if (bpf_skb_store_bytes(skb, IB_UDP_CHECK_AT_BYTES, &probe, sizeof(probe), 0) ||
        bpf_l4_csum_replace(skb, IB_UDP_CHECK_AT_BYTES, 0, 1, sizeof(probe)))
        return 0;
    ib_u16 after = 0;
    bpf_skb_load_bytes(skb, IB_UDP_CHECK_AT_BYTES, &after, sizeof(after));
    return after == IB_PROBE_CHECK;
}

IB_INLINE ib_u16 ib_pseudo_header_sum(const ib_u8 *data) {
    const struct iphdr *ip = IB_IP(data);
    ib_u32 sum = (ip->saddr & 0xffff) + (ip->saddr >> 16) + (ip->daddr & 0xffff) +
                 (ip->daddr >> 16) + bpf_htons(IPPROTO_UDP) + IB_UDP(data)->len;
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (ib_u16)sum;
}

/* Pulls the headers in and makes them writable. Returns NULL if the packet has none. */
IB_INLINE ib_u8 *ib_headers(struct __sk_buff *skb) {
    if (bpf_skb_pull_data(skb, IB_XDP_FRAME_LEN_BYTES))
        return NULL;
    ib_u8 *data = (ib_u8 *)(long)skb->data;
    return data + IB_XDP_FRAME_LEN_BYTES > (ib_u8 *)(long)skb->data_end ? NULL : data;
}

IB_INLINE void ib_send_copy(struct __sk_buff *skb, const struct ib_member *member, int unfinished) {
    ib_u8 *data = ib_headers(skb);
    if (!data || !member->known) {
        ib_count_reason(IB_R_copy_unresolved);
        return;
    }
    ib_frame_address(data, member);
    IB_UDP(data)->check = unfinished ? ib_pseudo_header_sum(data) : 0;
    bpf_clone_redirect(skb, member->ifindex, 0);
}

SEC("tc")
int ib_generic(struct __sk_buff *skb) {
    struct ib_note *note = (struct ib_note *)(long)skb->data_meta;
    if ((void *)(note + 1) > (void *)(long)skb->data || note->note != IB_XDP_NOTE)
        return TC_ACT_UNSPEC;
    ib_u32 which = note->group;
    note->note = 0; /* do not send again a copy that returns to tc here */
    int unfinished = ib_checksum_is_unfinished(skb);
    if (which == IB_XDP_SENDER) {
        ib_u8 *data = ib_headers(skb);
        if (!data)
            return TC_ACT_SHOT;
        IB_UDP(data)->check = unfinished ? ib_pseudo_header_sum(data) : 0;
        return (int)bpf_redirect(skb->ifindex, 0);
    }
    const struct ib_group *group = bpf_map_lookup_elem(&ib_groups_map, &which);
    if (!group)
        return TC_ACT_SHOT;
    for (ib_u32 i = 0; i < IB_XDP_MEMBERS && i < group->count; i++)
        ib_send_copy(skb, &group->member[i], unfinished);
    if (group->has_local)
        ib_send_copy(skb, &group->local, unfinished);
    return TC_ACT_SHOT;
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
