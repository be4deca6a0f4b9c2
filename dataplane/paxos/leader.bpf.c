/* SPDX-License-Identifier: Apache-2.0 */
/* leader - the XDP program around role_leader.h. */
/* variant: leader_alone IB_ALONE */
/* variant: leader_slow IB_RACE_DELAY */
/* variant: leader_round_read_once IB_RACE_DELAY IB_MUTANT_ROUND_READ_ONCE */
#include "xdp.h"

/* A leader delivers nothing. */
IB_INLINE int ib_value_up(struct ib_frame *frame, const struct ib_paxos_msg *m) {
    (void)frame;
    (void)m;
    return -1;
}

#include "../ground/xdp/race_wait.h"
#include "shell.h"

IB_REGISTERS(ib_leader_map, struct ib_leader_regs);

IB_DEVMAP(ib_acceptors_map);

SEC("xdp")
int ib_leader_xdp(struct xdp_md *ctx) {
    struct ib_frame frame = {ctx, NULL, 0, 0};
    struct ib_paxos_msg m = {0};
    int action = ib_paxos_read(ctx, &m);
    if (action != IB_VALID)
        return action;
    ib_u32 partition = m.partition;
    struct ib_leader_regs *regs = bpf_map_lookup_elem(&ib_leader_map, &partition);
    if (!regs)
        return XDP_ABORTED;
    struct ib_result result = ib_shell_leader(&m, regs, ib_paxos_settings.ring_slots, &frame);
    return ib_paxos_send(&frame, &m, result, &ib_acceptors_map, NULL);
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
