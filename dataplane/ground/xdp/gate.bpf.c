/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate - one side of a gate, on the interface where frames enter (ib_gate_settings). The program
 * itself sends what passes out of the other interface. So nothing passes unless both ends of the
 * way are there, and nothing passes a gate that has ended.
 */
#include "../gate.h"

#define IB_SYSTEM_CHECK ib_gate_check
#define IB_SYSTEM_VERIFY(data, keys)                                                               \
    ib_gate_verify(data, keys, (enum ib_gate_side)ib_gate_settings.side)

#include "frame.h"

const volatile struct ib_gate_settings ib_gate_settings SEC(".rodata.own");

#include "validate.h"

#define IB_MAGIC_LEN_BYTES 4

/* The interface of the other side. */
struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, ib_u32);
} ib_other_side_map SEC(".maps");

enum ib_gate_kind {
    IB_GATE_OURS,    /* a packet of ours */
    IB_GATE_OTHER,   /* certainly none */
    IB_GATE_REFUSED, /* a receiver might find one in it */
};

/*
 * Only what is known to contain no packet of ours passes unchecked. A host reassembles fragments,
 * skips IP options, and removes VLAN tags and the headers of tunnels.
 */
IB_INLINE enum ib_gate_kind ib_gate_kind(const ib_u8 *data, const ib_u8 *end) {
    const struct iphdr *ip = IB_IP(data);
    const ib_u8 *payload = data + IB_XDP_FRAME_LEN_BYTES;
    if (data + ETH_HLEN + sizeof(struct iphdr) > end)
        return IB_GATE_REFUSED;
    if (IB_ETH(data)->h_proto == bpf_htons(ETH_P_ARP))
        return IB_GATE_OTHER;
    if (IB_ETH(data)->h_proto != bpf_htons(ETH_P_IP) || *(const ib_u8 *)ip != 0x45 ||
        (ip->frag_off & bpf_htons(0x3fff)) != 0)
        return IB_GATE_REFUSED;
    if (ip->protocol == IPPROTO_TCP || ip->protocol == IPPROTO_ICMP)
        return IB_GATE_OTHER;
    if (ip->protocol != IPPROTO_UDP)
        return IB_GATE_REFUSED;
    if (payload + IB_MAGIC_LEN_BYTES > end || !ib_gate_concerns(payload))
        return IB_GATE_OTHER;
    return IB_GATE_OURS;
}

SEC("xdp")
int ib_gate_xdp(struct xdp_md *ctx) {
    ib_u8 *data = (ib_u8 *)(long)ctx->data;
    ib_u8 *end = (ib_u8 *)(long)ctx->data_end;
    ib_u8 *payload = data + IB_XDP_FRAME_LEN_BYTES;
    const struct ib_keys *keys = NULL;
    enum ib_gate_kind kind = ib_gate_kind(data, end);
    if (kind == IB_GATE_REFUSED)
        return ib_validated(IB_R_frame_refused);
    if (kind == IB_GATE_OURS) {
        if (payload > end)
            return XDP_ABORTED;
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
    }
    return (int)bpf_redirect_map(&ib_other_side_map, 0, XDP_DROP);
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
