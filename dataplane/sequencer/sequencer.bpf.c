/* SPDX-License-Identifier: Apache-2.0 */
/* sequencer - the sequencer as a program on an interface. */
#include "role.h"

#define IB_SYSTEM_CHECK ib_sequencer_check

#include "../ground/xdp/route.h"
#include "../ground/xdp/validate.h"

const volatile struct ib_sequencer_settings ib_sequencer_settings SEC(".rodata.own");

IB_REGISTERS(ib_logs_map, struct ib_sequencer_log);

SEC("xdp")
int ib_sequencer_xdp(struct xdp_md *ctx) {
    struct ib_sequencer_msg m = {0};
    IB_RECEIVE(ctx, &m, ib_sequencer_read_header);
    ib_u32 at = m.log;
    struct ib_sequencer_log *log = bpf_map_lookup_elem(&ib_logs_map, &at);
    if (!log)
        return XDP_ABORTED;
    struct ib_result result = ib_shell_sequencer(&m, log, ib_sequencer_settings.incarnation);
    ib_count_reason(result.reason);
    if (result.verdict != IB_REPLY)
        return XDP_DROP;
    return ib_route_back(ctx, IB_SEND(ctx, &m, ib_sequencer_emit));
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
