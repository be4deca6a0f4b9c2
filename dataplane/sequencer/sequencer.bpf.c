/* SPDX-License-Identifier: Apache-2.0 */
/* sequencer - the sequencer as the program of an interface. */
#include "msg.h"
#include "settings.h"

#define IB_SYSTEM_CHECK ib_sequencer_check

#include "../ground/xdp/route.h"
#include "../ground/xdp/validate.h"
#include "shell.h"

const volatile struct ib_sequencer_settings ib_sequencer_settings SEC(".rodata.own");

IB_REGISTERS(ib_logs_map, struct ib_sequencer_log);

IB_INLINE int ib_sequencer_send(struct xdp_md *ctx, struct ib_sequencer_msg *m) {
    const struct ib_keys *keys = NULL;
    ib_u8 *data = IB_SEND_BEGIN(ctx, m, keys);
    ib_sequencer_emit(data + IB_XDP_FRAME_LEN_BYTES, m);
    ib_send_finish(data, keys, m->key_id, m->value_len_bytes);
    return ib_route_back(ctx, data);
}

SEC("xdp")
int ib_sequencer_xdp(struct xdp_md *ctx) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    int action = ib_validate(data, end);
    if (action != IB_VALID)
        return action;
    if (data + IB_VALUE_AT_BYTES > end)
        return XDP_ABORTED;
    struct ib_sequencer_msg m = {0};
    ib_sequencer_read_header(data + IB_XDP_FRAME_LEN_BYTES, &m);
    ib_u32 at = m.log;
    struct ib_sequencer_log *log = bpf_map_lookup_elem(&ib_logs_map, &at);
    if (!log)
        return XDP_ABORTED;
    struct ib_result result = ib_shell_sequencer(&m, log, ib_sequencer_settings.incarnation);
    ib_count_reason(result.reason);
    return result.verdict == IB_REPLY ? ib_sequencer_send(ctx, &m) : XDP_DROP;
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
