/* SPDX-License-Identifier: Apache-2.0 */
/* drive.h - shared by programs that drive another one in a test run (bench.h, steps.h). */
#ifndef INBAND_GROUND_XDP_DRIVE_H
#define INBAND_GROUND_XDP_DRIVE_H

#include "frame.h"

#define IB_DRIVE_FRAME_LEN_BYTES 1520 /* the maximum, rounded up */

/* The driver's settings, of type `in`. */
#define IB_DRIVE_MAP(in)                                                                           \
    struct {                                                                                       \
        __uint(type, BPF_MAP_TYPE_ARRAY);                                                          \
        __uint(max_entries, 1);                                                                    \
        __type(key, ib_u32);                                                                       \
        __type(value, in);                                                                         \
    } ib_bench_map SEC(".maps")

/* The program to drive. */
struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, ib_u32);
} ib_measured_map SEC(".maps");

/* Replaces the packet by this frame. Returns 0 if that succeeded. */
IB_INLINE int ib_drive_write(struct xdp_md *ctx, ib_u8 *frame, ib_u32 len_bytes) {
    if (len_bytes < IB_XDP_FRAME_LEN_BYTES + IB_HEADER_LEN_BYTES ||
        len_bytes > IB_DRIVE_FRAME_LEN_BYTES)
        return -1;
    int grow = (int)len_bytes - (int)bpf_xdp_get_buff_len(ctx);
    if (grow && bpf_xdp_adjust_tail(ctx, grow))
        return -1;
    return (int)bpf_xdp_store_bytes(ctx, 0, frame,
                                    IB_COPY_LEN(len_bytes, IB_DRIVE_FRAME_LEN_BYTES));
}

/* Tags the packet and runs the program. Without a program, the driver measures its own overhead. */
IB_INLINE int ib_drive_send(struct xdp_md *ctx, ib_u8 *payload) {
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
