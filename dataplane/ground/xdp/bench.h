/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - drives a program in a test run: writes the frame anew (a test run repeats on the same
 * buffer, and a rewritten packet would take another way), moves on to the next number, tags the
 * packet, and tail-calls the program. With nothing to call it measures itself.
 */
#ifndef INBAND_GROUND_XDP_BENCH_H
#define INBAND_GROUND_XDP_BENCH_H

#include "frame.h"

struct ib_bench {
    ib_u64 packets;    /* sent so far */
    ib_u32 per_number; /* packets with the same number: as many as have senders of their own */
    ib_u32 first_node; /* the first sender's id */
    ib_u32 len_bytes;  /* of the frame */
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
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, ib_u32);
} ib_measured_map SEC(".maps");

/* The number of the next packet, which has the driver's frame; 0: the driver is set wrongly. */
IB_INLINE ib_u64 ib_bench_next(struct xdp_md *ctx, struct ib_bench *bench) {
    ib_u32 len_bytes = bench->len_bytes;
    if (bench->per_number == 0 || len_bytes < IB_XDP_FRAME_LEN_BYTES + IB_HEADER_LEN_BYTES ||
        len_bytes > sizeof(bench->frame))
        return 0;
    int grow = (int)len_bytes - (int)bpf_xdp_get_buff_len(ctx);
    if (grow && bpf_xdp_adjust_tail(ctx, grow))
        return 0;
    if (bpf_xdp_store_bytes(ctx, 0, bench->frame, len_bytes))
        return 0;
    return bench->packets / bench->per_number + 1;
}

/* Write `number` at `at_bytes` of the packet's header, then the sender and the tag, and go on. */
IB_INLINE int ib_bench_send(struct xdp_md *ctx, struct ib_bench *bench, ib_u64 number,
                            ib_u32 at_bytes) {
    ib_u8 *payload = (ib_u8 *)(long)ctx->data + IB_XDP_FRAME_LEN_BYTES;
    if (payload + IB_HEADER_LEN_BYTES > (ib_u8 *)(long)ctx->data_end)
        return XDP_ABORTED;
    ib_u32 node = bench->first_node + (ib_u32)(bench->packets % bench->per_number);
    bench->packets++;
    *(ib_wire64 *)(payload + at_bytes) = IB_NET64(number);
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

#endif
