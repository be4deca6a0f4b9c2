/* SPDX-License-Identifier: Apache-2.0 */
/* bench_gate - drives one side of a gate (bench.h). The counter is in the first of a system's own
 * fields, which a gate does not read. */
#include "bench.h"

SEC("xdp")
int ib_bench_xdp(struct xdp_md *ctx) {
    ib_u32 zero = 0;
    struct ib_bench *bench = bpf_map_lookup_elem(&ib_bench_map, &zero);
    if (!bench)
        return XDP_ABORTED;
    ib_u64 number = ib_bench_next(ctx, bench);
    if (!number)
        return XDP_ABORTED;
    return ib_bench_send(ctx, bench, number, __builtin_offsetof(struct ib_header, own));
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
