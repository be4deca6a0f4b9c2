/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_forward - a baseline: forwards packets for this host to one neighbour. It checks Ethernet,
 * IPv4 and UDP, looks up the neighbour in a table shared with the measured program, rewrites
 * addresses and checksum, and sends. The UDP payload is not parsed.
 */
#include "frame.h"

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, struct ib_member);
} ib_target_map SEC(".maps");

SEC("xdp")
int ib_forward_xdp(struct xdp_md *ctx) {
    ib_u8 *data = (ib_u8 *)(long)ctx->data;
    if (data + IB_XDP_FRAME_LEN_BYTES > (ib_u8 *)(long)ctx->data_end || !ib_is_ours(data))
        return XDP_PASS;
    ib_u32 zero = 0;
    const struct ib_member *member = bpf_map_lookup_elem(&ib_target_map, &zero);
    if (!member || !member->known)
        return XDP_DROP;
    IB_IP(data)->ttl = IB_XDP_TTL;
    IB_UDP(data)->check = 0;
    ib_frame_address(data, member);
    return member->ifindex == ctx->ingress_ifindex ? XDP_TX : (int)bpf_redirect(member->ifindex, 0);
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
