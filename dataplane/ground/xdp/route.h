/* SPDX-License-Identifier: Apache-2.0 */
/* route.h - sends packets to addresses that only the kernel's routing tables can resolve. */
#ifndef INBAND_GROUND_XDP_ROUTE_H
#define INBAND_GROUND_XDP_ROUTE_H

#include "send.h"

#define IB_NO_ROUTE (-1) /* not an XDP action: the kernel has no route (yet) */

/* Sends out of an interface. In generic mode tc sends, and only out of the ingress interface. */
IB_INLINE int ib_route_out(struct xdp_md *ctx, ib_u32 ifindex) {
    if (IB_RARE(ib_settings.generic))
        return ib_send_note(ctx, IB_XDP_SENDER);
    return ifindex == ctx->ingress_ifindex ? XDP_TX : (int)bpf_redirect(ifindex, 0);
}

/* Sends back to the sender. */
IB_INLINE int ib_route_back(struct xdp_md *ctx, ib_u8 *data) {
    ib_frame_turn(data);
    return ib_route_out(ctx, ctx->ingress_ifindex);
}

/* Sends to an address (host order) according to the kernel's routing tables; or IB_NO_ROUTE. */
IB_INLINE int ib_route_to(struct xdp_md *ctx, ib_u8 *data, ib_u32 address, ib_u16 port) {
    struct bpf_fib_lookup way = {
        .family = 2, /* AF_INET */
        .l4_protocol = IPPROTO_UDP,
        .ipv4_src = ib_settings.address,
        .ipv4_dst = bpf_htonl(address),
        .ifindex = ctx->ingress_ifindex,
    };
    if (bpf_fib_lookup(ctx, &way, sizeof(way), 0) != BPF_FIB_LKUP_RET_SUCCESS)
        return IB_NO_ROUTE;
    if (ib_settings.generic && way.ifindex != ctx->ingress_ifindex)
        return IB_NO_ROUTE;
    struct ib_member to = {
        .to_address = bpf_htonl(address), /* `way` may now contain a gateway's address */
        .from_address = ib_settings.address,
        .to_port = bpf_htons(port),
        .from_port = ib_settings.port,
    };
    __builtin_memcpy(to.to_mac, way.dmac, ETH_ALEN);
    __builtin_memcpy(to.from_mac, way.smac, ETH_ALEN);
    ib_frame_address(data, &to);
    return ib_route_out(ctx, way.ifindex);
}

/* Passes the packet, still addressed to this host, to the host's process, which must only send
 * it. */
IB_INLINE int ib_route_by_host(ib_u8 *data, ib_u32 reason) {
    ib_ip_address(IB_IP(data), IB_IP(data)->saddr, IB_IP(data)->daddr);
    ib_count_reason(reason);
    return XDP_PASS;
}

/* Sends to an address, or counts and passes the packet to the host's process if there is no
 * route. */
IB_INLINE int ib_route_or_by_host(struct xdp_md *ctx, ib_u8 *data, ib_u32 address, ib_u16 port,
                                  ib_u32 by_host_reason) {
    int action = ib_route_to(ctx, data, address, port);
    return action == IB_NO_ROUTE ? ib_route_by_host(data, by_host_reason) : action;
}

#endif
