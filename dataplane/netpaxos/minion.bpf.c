/* SPDX-License-Identifier: Apache-2.0 */
/* minion - a minion as a program on an interface; with IB_NETPAXOS_SERIALIZES, a serializer. */
/* variant: serializer IB_NETPAXOS_SERIALIZES */
#include "msg.h"
#include "settings.h"

#define IB_SYSTEM_CHECK ib_netpaxos_check

#include "../ground/xdp/validate.h"
#include "../ground/xdp/multicast.h"
#include "../ground/xdp/send.h"
#include "shell.h"

const volatile struct ib_netpaxos_settings ib_netpaxos_settings SEC(".rodata.own");

IB_REGISTERS(ib_switch_map, struct ib_netpaxos_switch);
IB_DEVMAP(ib_devices_map);

IB_INLINE struct ib_result ib_netpaxos_role(struct ib_netpaxos_msg *m,
                                            struct ib_netpaxos_switch *sw) {
#ifdef IB_NETPAXOS_SERIALIZES
    return ib_shell_netpaxos_serializer(m, sw);
#else
    return ib_shell_netpaxos_minion(m, sw, ib_netpaxos_settings.incarnation);
#endif
}

SEC("xdp")
int ib_netpaxos_xdp(struct xdp_md *ctx) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    const struct ib_keys *keys = NULL;
    ib_u32 zero = 0;
    int action = ib_validate(data, end);
    if (action != IB_VALID)
        return action;
    if (data + IB_VALUE_AT_BYTES > end)
        return XDP_ABORTED;
    struct ib_netpaxos_msg m = {0};
    ib_netpaxos_read_header(data + IB_XDP_FRAME_LEN_BYTES, &m);
    struct ib_netpaxos_switch *sw = bpf_map_lookup_elem(&ib_switch_map, &zero);
    if (!sw)
        return XDP_ABORTED;
    struct ib_result result = ib_netpaxos_role(&m, sw);
    ib_count_reason(result.reason);
    if (result.verdict == IB_DROP)
        return XDP_DROP;
    ib_u8 *out = IB_SEND_BEGIN(ctx, &m, keys);
    ib_netpaxos_emit(out + IB_XDP_FRAME_LEN_BYTES, &m);
    ib_send_finish(out, keys, m.key_id, m.value_len_bytes);
    if (IB_RARE(ib_settings.generic))
        return ib_send_note(ctx, IB_NETPAXOS_GROUP);
    return ib_send_group(out, IB_NETPAXOS_GROUP, &ib_devices_map);
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
