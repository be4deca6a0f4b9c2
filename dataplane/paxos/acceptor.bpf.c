/* SPDX-License-Identifier: Apache-2.0 */
/* acceptor - the XDP program around role_acceptor.h. */
/* variant: acceptor_alone IB_ALONE */
/* variant: acceptor_slow IB_RACE_DELAY */
/* variant: acceptor_no_exclusivity IB_MUTANT_NO_EXCLUSIVITY */
/* variant: acceptor_promise_before_slot IB_RACE_DELAY IB_MUTANT_PROMISE_BEFORE_SLOT */
/* variant: acceptor_no_second_read IB_RACE_DELAY IB_MUTANT_NO_SECOND_READ */
#include "xdp.h"

/* An acceptor delivers nothing. */
IB_INLINE int ib_value_up(struct ib_frame *frame, const struct ib_paxos_msg *m) {
    (void)frame;
    (void)m;
    return -1;
}

#include "../ground/xdp/race_wait.h"
#include "shell.h"
#include "prefetch.h"

IB_REGISTERS(ib_acceptor_map, struct ib_acceptor_regs);

/* Indexed by partition * ring_slots + (instance & (ring_slots - 1)). */
IB_REGISTERS(ib_ring_map, struct ib_slot);

/* Indexed like the ring. */
IB_REGISTERS(ib_tails_map, struct ib_tail);

IB_DEVMAP(ib_learners_map);

SEC("xdp")
int ib_acceptor_xdp(struct xdp_md *ctx) {
    struct ib_frame frame = {ctx, &ib_tails_map, 0, 0};
    struct ib_paxos_msg m = {0};
    int action = ib_paxos_read(ctx, &m);
    if (action != IB_VALID)
        return action;
    ib_u32 partition = m.partition;
    struct ib_acceptor_regs *regs = bpf_map_lookup_elem(&ib_acceptor_map, &partition);
    if (!regs)
        return XDP_ABORTED;
    struct ib_result result;
    if (!IB_RARE(!ib_acceptor_needs_slot(&m))) {
        ib_u32 ring_slots = ib_paxos_settings.ring_slots;
        frame.at = partition * ring_slots + ((ib_u32)m.instance & (ring_slots - 1));
        struct ib_slot *slot = bpf_map_lookup_elem(&ib_ring_map, &frame.at);
        if (!slot)
            return XDP_ABORTED;
        ib_tail_prefetch(&ib_tails_map, frame.at, m.value_len_bytes);
        result = ib_shell_acceptor_slot(&m, regs, slot, ring_slots, &frame);
        /* The next packet is probably for the next instance. */
        ib_u32 next = partition * ring_slots + ((ib_u32)(m.instance + 1) & (ring_slots - 1));
        ib_tail_prefetch(&ib_tails_map, next, m.value_len_bytes);
    } else {
        result = ib_shell_acceptor_partition(&m, regs);
    }
    return ib_paxos_send(&frame, &m, result, NULL, &ib_learners_map);
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
