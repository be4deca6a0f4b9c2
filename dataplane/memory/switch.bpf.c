/* SPDX-License-Identifier: Apache-2.0 */
/* switch - the switch as a program on an interface. */
/* variant: switch_slow IB_RACE_DELAY */
/* variant: switch_no_exclusivity IB_RACE_DELAY IB_MUTANT_NO_EXCLUSIVITY */
#include "../ground/xdp/multicast.h"
#include "xdp.h"

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, struct ib_memory_switch);
} ib_switch_map SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1); /* set by the loader, like those below */
    __type(key, ib_u32);
    __type(value, struct ib_memory_block);
} ib_blocks_map SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, struct ib_memory_session);
} ib_sessions_map SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, struct ib_memory_slot);
} ib_slots_map SEC(".maps");

IB_DEVMAP(ib_servers_map);

IB_INLINE ib_u32 ib_memory_servers(const struct ib_memory_here *here) {
    (void)here;
    return ib_memory_settings.servers;
}

IB_INLINE struct ib_memory_switch *ib_memory_switch_at(const struct ib_memory_here *here) {
    ib_u32 zero = 0;
    (void)here;
    return bpf_map_lookup_elem(&ib_switch_map, &zero);
}

IB_INLINE struct ib_memory_block *ib_memory_block_at(const struct ib_memory_here *here,
                                                     ib_u64 chunk) {
    ib_u32 at = (ib_u32)(chunk >> (ib_memory_settings.block_shift & 63));
    (void)here;
    return chunk < ib_memory_settings.chunks ? bpf_map_lookup_elem(&ib_blocks_map, &at) : NULL;
}

IB_INLINE struct ib_memory_session *ib_memory_session_at(const struct ib_memory_here *here,
                                                         ib_u32 at) {
    (void)here;
    return bpf_map_lookup_elem(&ib_sessions_map, &at);
}

IB_INLINE struct ib_memory_slot *ib_memory_slot_at(const struct ib_memory_here *here, ib_u32 at) {
    (void)here;
    return bpf_map_lookup_elem(&ib_slots_map, &at);
}

#define IB_MEMORY_SWITCH
#include "shell.h"

IB_INLINE void ib_memory_sender(struct xdp_md *ctx, const ib_u8 *data,
                                struct ib_memory_client *client) {
    client->address = bpf_ntohl(IB_IP(data)->saddr);
    client->port = bpf_ntohs(IB_UDP(data)->source);
    client->ifindex = ctx->ingress_ifindex;
    __builtin_memcpy(client->mac, IB_ETH(data)->h_source, ETH_ALEN);
    __builtin_memcpy(client->own_mac, IB_ETH(data)->h_dest, ETH_ALEN);
}

IB_INLINE void ib_memory_to(ib_u8 *data, const struct ib_memory_client *client) {
    __builtin_memcpy(IB_ETH(data)->h_dest, client->mac, ETH_ALEN);
    __builtin_memcpy(IB_ETH(data)->h_source, client->own_mac, ETH_ALEN);
    ib_ip_address(IB_IP(data), ib_settings.address, bpf_htonl(client->address));
    IB_UDP(data)->dest = bpf_htons(client->port);
    IB_UDP(data)->source = ib_settings.port;
}

SEC("xdp")
int ib_memory_switch_xdp(struct xdp_md *ctx) {
    struct ib_memory_here here = {ctx};
    struct ib_memory_msg m = {0};
    struct ib_memory_client client = {0};
    int action = ib_memory_packet(ctx, &m);
    if (action != IB_VALID)
        return action;
    const ib_u8 *headers = (const ib_u8 *)(long)ctx->data;
    if (headers + IB_XDP_FRAME_LEN_BYTES > (const ib_u8 *)(long)ctx->data_end)
        return XDP_ABORTED;
    ib_memory_sender(ctx, headers, &client);
    struct ib_result result = ib_shell_memory_switch(&here, &m, &client);
    ib_count_reason(result.reason);
    if (result.verdict == IB_DROP)
        return XDP_DROP;
    if (result.verdict == IB_PASS)
        return XDP_PASS;
    ib_u8 *data = ib_memory_rewrite(ctx, &m);
    if (!data)
        return XDP_DROP;
    if (result.verdict == IB_MEMORY_TO_CLIENT) {
        ib_memory_to(data, &client);
        return ib_route_out(ctx, client.ifindex);
    }
    if (result.verdict == IB_REPLY) {
        ib_frame_turn(data);
        return ib_route_out(ctx, ctx->ingress_ifindex);
    }
    if (IB_RARE(ib_settings.generic))
        return ib_send_note(ctx, IB_MEMORY_SERVERS_GROUP);
    return ib_send_group(data, IB_MEMORY_SERVERS_GROUP, &ib_servers_map);
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
