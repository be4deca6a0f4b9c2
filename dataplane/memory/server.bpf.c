/* SPDX-License-Identifier: Apache-2.0 */
/* server - the memory server as a program on an interface. */
/* variant: server_slow IB_RACE_DELAY */
/* variant: server_epoch_before_lock IB_RACE_DELAY IB_MUTANT_EPOCH_BEFORE_LOCK */
#include "xdp.h"

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, struct ib_memory_server);
} ib_server_map SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1); /* chunks, set by the loader */
    __type(key, ib_u32);
    __type(value, struct ib_memory_chunk);
} ib_chunks_map SEC(".maps");

IB_INLINE struct ib_memory_server *ib_memory_server_at(const struct ib_memory_here *here) {
    ib_u32 zero = 0;
    (void)here;
    return bpf_map_lookup_elem(&ib_server_map, &zero);
}

IB_INLINE struct ib_memory_chunk *ib_memory_chunk_at(const struct ib_memory_here *here,
                                                     ib_u64 chunk) {
    ib_u32 at = (ib_u32)chunk;
    (void)here;
    return chunk < ib_memory_settings.chunks ? bpf_map_lookup_elem(&ib_chunks_map, &at) : NULL;
}

#define IB_MEMORY_SERVER
#include "shell.h"

SEC("xdp")
int ib_memory_server_xdp(struct xdp_md *ctx) {
    struct ib_memory_here here = {ctx};
    struct ib_memory_msg m = {0};
    int action = ib_memory_packet(ctx, &m);
    if (action != IB_VALID)
        return action;
    struct ib_result result = ib_shell_memory_server(&here, &m);
    ib_count_reason(result.reason);
    if (result.verdict == IB_DROP)
        return XDP_DROP;
    if (result.verdict == IB_PASS)
        return XDP_PASS;
    ib_u8 *data = ib_memory_rewrite(ctx, &m);
    if (!data)
        return XDP_DROP;
    ib_frame_turn(data);
    return ib_route_out(ctx, ctx->ingress_ifindex);
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
