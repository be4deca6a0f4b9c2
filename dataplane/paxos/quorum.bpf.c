/* SPDX-License-Identifier: Apache-2.0 */
/* quorum - the XDP program around role_quorum.h: delivers decided values through a ring buffer. */
/* variant: quorum_alone IB_ALONE */
#include "xdp.h"
#include "../ground/xdp/ringbuf.h"

/* Hook of shell.h. If the ring buffer is full it fails, and the instance stays undecided here. */
IB_INLINE int ib_value_up(struct ib_frame *frame, const struct ib_paxos_msg *m) {
    ib_u32 len_bytes = IB_HEADER_LEN_BYTES + (ib_u32)m->value_len_bytes;
    IB_RINGBUF_DELIVER(frame->ctx, len_bytes);
}

#include "shell.h"

IB_REGISTERS(ib_config_map, struct ib_quorum_config);

/* Indexed by partition * ring_slots + (instance & (ring_slots - 1)). */
IB_REGISTERS(ib_counts_map, struct ib_count_slot);

SEC("xdp")
int ib_quorum_xdp(struct xdp_md *ctx) {
    struct ib_frame frame = {ctx, NULL, 0, 0};
    struct ib_paxos_msg m = {0};
    int action = ib_paxos_read(ctx, &m);
    if (action != IB_VALID)
        return action;
    ib_u32 ring_slots = ib_paxos_settings.ring_slots;
    ib_u32 at = (ib_u32)m.partition * ring_slots + ((ib_u32)m.instance & (ring_slots - 1));
    ib_u32 zero = 0;
    struct ib_quorum_config *config = bpf_map_lookup_elem(&ib_config_map, &zero);
    struct ib_count_slot *slot = bpf_map_lookup_elem(&ib_counts_map, &at);
    if (!config || !slot)
        return XDP_ABORTED;
    struct ib_result result = ib_shell_quorum(&m, config, slot, &frame);
    return ib_paxos_send(&frame, &m, result, NULL, NULL);
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
