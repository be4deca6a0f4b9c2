/* SPDX-License-Identifier: Apache-2.0 */
/* bench_falcon - drives the scheduler (bench.h) with a new PULL every time. */
#include "../ground/xdp/bench.h"
#include "wire.h"

SEC("xdp")
int ib_bench_xdp(struct xdp_md *ctx) {
    ib_u32 zero = 0;
    struct ib_bench *bench = bpf_map_lookup_elem(&ib_bench_map, &zero);
    if (!bench)
        return XDP_ABORTED;
    ib_u64 pull_seq = ib_bench_next(ctx, bench);
    if (!pull_seq)
        return XDP_ABORTED;
    return ib_bench_send(ctx, bench, pull_seq,
                         __builtin_offsetof(struct ib_falcon_header, pull_seq));
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
