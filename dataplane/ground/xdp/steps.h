/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steps.h - drives a program in a test run, like bench.h, with the packets of a round one after
 * another, then those of the next round.
 *
 * A system defines IB_STEPS_SET(payload, round, steps, step), which sets the fields of a packet
 * that depend on the round, and includes this file.
 */
#ifndef INBAND_GROUND_XDP_STEPS_H
#define INBAND_GROUND_XDP_STEPS_H

#include "drive.h"

#ifndef IB_STEPS_SET
#error "define IB_STEPS_SET before this file"
#endif

#define IB_STEPS_MAX 8 /* a power of two */

struct ib_step {
    ib_u32 len_bytes;
    ib_u32 own; /* for the system's use */
    ib_u8 frame[IB_DRIVE_FRAME_LEN_BYTES];
};

struct ib_steps {
    ib_u64 packets; /* sent so far */
    ib_u64 count;   /* of steps in a round */
    ib_u64 own[4];  /* for the system's use */
    struct ib_step step[IB_STEPS_MAX];
};

IB_DRIVE_MAP(struct ib_steps);

SEC("xdp")
int ib_bench_xdp(struct xdp_md *ctx) {
    ib_u32 zero = 0;
    struct ib_steps *steps = bpf_map_lookup_elem(&ib_bench_map, &zero);
    if (!steps || steps->count == 0)
        return XDP_ABORTED;
    ib_u64 round = steps->packets / steps->count + 1;
    struct ib_step *step =
        &steps->step[(ib_u32)(steps->packets % steps->count) & (IB_STEPS_MAX - 1)];
    if (ib_drive_write(ctx, step->frame, step->len_bytes))
        return XDP_ABORTED;
    ib_u8 *payload = (ib_u8 *)(long)ctx->data + IB_XDP_FRAME_LEN_BYTES;
    if (payload + IB_HEADER_LEN_BYTES > (ib_u8 *)(long)ctx->data_end)
        return XDP_ABORTED;
    steps->packets++;
    IB_STEPS_SET(payload, round, steps, step);
    return ib_drive_send(ctx, payload);
}

char ib_license[] SEC("license") = "Dual BSD/GPL";

#endif
