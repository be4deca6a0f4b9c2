/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - drives a program in a test run. It writes the frame again (a test run reuses the buffer,
 * and a rewritten packet would take another path), advances the number, tags the packet, and
 * tail-calls the program. Without a program it measures its own overhead.
 */
#ifndef INBAND_GROUND_XDP_BENCH_H
#define INBAND_GROUND_XDP_BENCH_H

#include "drive.h"

struct ib_bench {
    ib_u64 packets;    /* sent so far */
    ib_u32 per_number; /* packets with the same number, each from a different sender */
    ib_u32 first_node; /* the first sender's id */
    ib_u32 len_bytes;  /* length of the frame */
    ib_u32 reserved;
    ib_u8 frame[IB_DRIVE_FRAME_LEN_BYTES];
};

IB_DRIVE_MAP(struct ib_bench);

/* Writes the driver's frame and returns the number of the next packet; 0: wrong driver settings. */
IB_INLINE ib_u64 ib_bench_next(struct xdp_md *ctx, struct ib_bench *bench) {
    if (bench->per_number == 0 || ib_drive_write(ctx, bench->frame, bench->len_bytes))
        return 0;
    return bench->packets / bench->per_number + 1;
}

/* Writes `number` at `at_bytes` of the packet's header, then the sender and the tag, and
 * continues. */
IB_INLINE int ib_bench_send(struct xdp_md *ctx, struct ib_bench *bench, ib_u64 number,
                            ib_u32 at_bytes) {
    ib_u8 *payload = (ib_u8 *)(long)ctx->data + IB_XDP_FRAME_LEN_BYTES;
    if (payload + IB_HEADER_LEN_BYTES > (ib_u8 *)(long)ctx->data_end)
        return XDP_ABORTED;
    ib_u32 node = bench->first_node + (ib_u32)(bench->packets % bench->per_number);
    bench->packets++;
    *(ib_wire64 *)(payload + at_bytes) = IB_NET64(number);
    IB_PUT16(payload, node, (ib_u16)node);
    return ib_drive_send(ctx, payload);
}

#endif
