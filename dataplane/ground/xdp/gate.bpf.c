/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate - one side of a gate, on the interface where packets enter: the keyed side if the settings
 * say that packets carry tags, otherwise the keyless side. The kernel forwards what passes, by a
 * bridge or a route. What is no packet of ours passes unchanged.
 */
#include "../gate.h"

#define IB_SYSTEM_CHECK ib_gate_check

#include "validate.h"

#define IB_MAGIC_LEN_BYTES 4

SEC("xdp")
int ib_gate_xdp(struct xdp_md *ctx) {
    ib_u8 *data = (ib_u8 *)(long)ctx->data;
    ib_u8 *end = (ib_u8 *)(long)ctx->data_end;
    ib_u8 *payload = data + IB_XDP_FRAME_LEN_BYTES;
    const struct ib_keys *keys = NULL;
    if (payload + IB_MAGIC_LEN_BYTES > end || !ib_is_whole_udp(data) || !ib_gate_concerns(payload))
        return XDP_PASS;
    int action = ib_validated(ib_validate_packet(data, end));
    if (action != IB_VALID)
        return action;
    if (!ib_settings.authenticated) {
        keys = ib_keys();
        if (!keys)
            return XDP_ABORTED;
    }
    if (payload + IB_HEADER_LEN_BYTES > end)
        return XDP_ABORTED;
    ib_count_reason(ib_gate_retag(payload, keys));
    IB_UDP(data)->check = 0;
    return XDP_PASS;
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
