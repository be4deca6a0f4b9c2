/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dispatch - the program on the interface. What is not Inband's passes untouched; what is,
 * is checked whole and goes to the program of its role. A bad packet is dropped and counted here,
 * whichever roles run.
 */
#include "frame.h"

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, IB_XDP_KEYS);
    __type(key, ib_u32);
    __type(value, ib_u32);
} ib_roles_map SEC(".maps");

IB_INLINE int ib_is_ours(const ib_u8 *data) {
    const struct iphdr *ip = IB_IP(data);
    return IB_ETH(data)->h_proto == bpf_htons(ETH_P_IP) &&
           *(const ib_u8 *)ip == IB_IPV4_NO_OPTIONS && ip->protocol == IPPROTO_UDP &&
           IB_UDP(data)->dest == ib_settings.port && ip->daddr == ib_settings.address &&
           !(ip->frag_off & bpf_htons(IB_IPV4_FRAGMENT_MASK));
}

/* The reason to drop the packet, or IB_R_none. Ethernet may have padded a frame, never cut it. */
IB_INLINE ib_u32 ib_dispatch_check(const ib_u8 *data, const ib_u8 *end, ib_u32 frame_len_bytes) {
    ib_u32 ip_len_bytes = bpf_ntohs(IB_IP(data)->tot_len);
    ib_u32 udp_len_bytes = bpf_ntohs(IB_UDP(data)->len);
    if (ETH_HLEN + ip_len_bytes > frame_len_bytes)
        return IB_R_bad_truncated;
    if (udp_len_bytes < sizeof(struct udphdr) ||
        sizeof(struct iphdr) + udp_len_bytes != ip_len_bytes)
        return IB_R_bad_length;
    return ib_check(data + IB_XDP_FRAME_LEN_BYTES, end, udp_len_bytes - sizeof(struct udphdr),
                    ib_settings.partitions);
}

SEC("xdp")
int ib_dispatch(struct xdp_md *ctx) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    if (data + IB_XDP_FRAME_LEN_BYTES > end || !ib_is_ours(data))
        return XDP_PASS;
    ib_u32 reason = ib_dispatch_check(data, end, (ib_u32)bpf_xdp_get_buff_len(ctx));
    if (reason != IB_R_none) {
        ib_count_reason(reason);
        return XDP_DROP;
    }
    const ib_u8 *payload = data + IB_XDP_FRAME_LEN_BYTES;
    ib_u32 key = payload[__builtin_offsetof(struct ib_header, type)];
    if (IB_GET16(payload, flags) & IB_F_LEADER)
        key |= IB_XDP_KEY_LEADER;
    bpf_tail_call(ctx, &ib_roles_map, key);
    /* No program for it: the host's own process reads it from its UDP socket. */
    ib_count_reason(IB_R_passed_up);
    return XDP_PASS;
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
