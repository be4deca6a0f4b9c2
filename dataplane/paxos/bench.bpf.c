/* SPDX-License-Identifier: Apache-2.0 */
/* bench - drives a role's program (bench.h), and advances the acceptor's floor. */
#include "../ground/xdp/bench.h"
#include "registers.h"

IB_REGISTERS(ib_acceptor_map, struct ib_acceptor_regs);

SEC("xdp")
int ib_bench_xdp(struct xdp_md *ctx) {
    ib_u32 zero = 0;
    struct ib_bench *bench = bpf_map_lookup_elem(&ib_bench_map, &zero);
    struct ib_acceptor_regs *regs = bpf_map_lookup_elem(&ib_acceptor_map, &zero);
    if (!bench || !regs)
        return XDP_ABORTED;
    ib_u64 instance = ib_bench_next(ctx, bench);
    if (!instance)
        return XDP_ABORTED;
    regs->floor = instance;
    return ib_bench_send(ctx, bench, instance,
                         __builtin_offsetof(struct ib_paxos_header, instance));
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
