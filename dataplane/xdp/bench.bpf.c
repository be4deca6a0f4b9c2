/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench - drives a role's program in a test run: writes the frame anew (a test run repeats on the
 * same buffer, and a rewritten packet would take another way), moves on to the next instance, keeps
 * the acceptor's floor behind it, tags the packet, and tail-calls dispatch.
 * With nothing to call it measures itself.
 */
#include "frame.h"

/* The field of struct ib_header that moves on, or where another header has one to be counted. */
#ifndef IB_COUNTED
#define IB_COUNTED instance
#endif

struct ib_bench {
    ib_u64 packets;      /* sent so far */
    ib_u32 per_instance; /* packets an instance: as many as there are voters */
    ib_u32 first_node;   /* the first voter's id */
    ib_u32 len_bytes;    /* of the frame */
    ib_u32 reserved;
    ib_u8 frame[1520]; /* the longest, rounded up */
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, struct ib_bench);
} ib_bench_map SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1); /* shared with the acceptor, if it runs */
    __type(key, ib_u32);
    __type(value, struct ib_acceptor_regs);
} ib_acceptor_map SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, ib_u32);
} ib_measured_map SEC(".maps");

SEC("xdp")
int ib_bench_xdp(struct xdp_md *ctx) {
    ib_u32 zero = 0;
    struct ib_bench *bench = bpf_map_lookup_elem(&ib_bench_map, &zero);
    struct ib_acceptor_regs *regs = bpf_map_lookup_elem(&ib_acceptor_map, &zero);
    if (!bench || !regs || bench->per_instance == 0)
        return XDP_ABORTED;
    ib_u32 len_bytes = bench->len_bytes;
    if (len_bytes < IB_XDP_FRAME_LEN_BYTES + IB_HEADER_LEN_BYTES ||
        len_bytes > sizeof(bench->frame))
        return XDP_ABORTED;
    int grow = (int)len_bytes - (int)bpf_xdp_get_buff_len(ctx);
    if (grow && bpf_xdp_adjust_tail(ctx, grow))
        return XDP_ABORTED;
    if (bpf_xdp_store_bytes(ctx, 0, bench->frame, len_bytes))
        return XDP_ABORTED;
    ib_u8 *payload = (ib_u8 *)(long)ctx->data + IB_XDP_FRAME_LEN_BYTES;
    if (payload + IB_HEADER_LEN_BYTES > (ib_u8 *)(long)ctx->data_end)
        return XDP_ABORTED;
    ib_u64 instance = bench->packets / bench->per_instance + 1;
    ib_u32 node = bench->first_node + (ib_u32)(bench->packets % bench->per_instance);
    bench->packets++;
    regs->floor = instance;
    IB_PUT64(payload, IB_COUNTED, instance);
    IB_PUT16(payload, node, (ib_u16)node);
    const struct ib_keys *keys = NULL;
    ib_u16 id = 0;
    if (ib_settings.authenticated) {
        keys = ib_keys();
        if (!keys)
            return XDP_ABORTED;
        id = (ib_u16)keys->active;
    }
    IB_PUT16(payload, key_id, id);
    ib_sign(payload, keys, id);
    bpf_tail_call(ctx, &ib_measured_map, 0);
    return XDP_DROP;
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
