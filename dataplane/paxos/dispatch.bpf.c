/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dispatch - the program on the interface of a host with several roles, or with none in the kernel.
 * Packets of other protocols pass untouched. Inband's packets are fully checked, and passed to the
 * program of their role. Invalid packets are dropped and counted here, whichever roles run.
 */
#include "msg.h"
#include "settings.h"

#define IB_SYSTEM_CHECK ib_paxos_check

#include "../ground/xdp/validate.h"

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, IB_PAXOS_DISPATCH_KEYS);
    __type(key, ib_u32);
    __type(value, ib_u32);
} ib_roles_map SEC(".maps");

SEC("xdp")
int ib_dispatch(struct xdp_md *ctx) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    int action = ib_validate(data, end);
    if (action != IB_VALID)
        return action;
    const ib_u8 *payload = data + IB_XDP_FRAME_LEN_BYTES;
    ib_u32 key = payload[__builtin_offsetof(struct ib_header, type)];
    if (IB_GET16(payload, flags) & IB_PAXOS_F_LEADER)
        key |= IB_PAXOS_DISPATCH_LEADER;
    bpf_tail_call(ctx, &ib_roles_map, key);
    /* No program handles it: the host's process receives it from its UDP socket. */
    ib_count_reason(IB_R_passed_up);
    return XDP_PASS;
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
