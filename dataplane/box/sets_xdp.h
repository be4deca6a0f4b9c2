/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sets_xdp.h - a SET in a frame (sets.h). It becomes a SUBMIT in its own frame, and then takes the
 * way of all others (shell.h).
 *
 * The process answers the client once the record is applied: only this node has the client, in
 * ib_clients_map.
 */
#ifndef INBAND_BOX_SETS_XDP_H
#define INBAND_BOX_SETS_XDP_H

#include "gets.h"

typedef struct xdp_md ib_box_arrived;

#define ib_box_request_copy(arrived, at_bytes, to, len_bytes, max_bytes)                           \
    bpf_xdp_load_bytes((arrived), IB_XDP_FRAME_LEN_BYTES + (at_bytes), (to),                       \
                       IB_COPY_LEN((len_bytes), (max_bytes)))

#include "sets.h"

_Static_assert((int)IB_BOX_SET_REQUEST_MAX_BYTES <= (int)IB_BOX_GET_REPLY_MAX_BYTES,
               "ib_box_text_sum");

/* Reads the request into the scratch memory. Returns 0 if it is not a SET, or is damaged. */
__attribute__((noinline)) int ib_box_set_load(struct xdp_md *ctx) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    if (!s || data + IB_XDP_FRAME_LEN_BYTES + IB_BOX_GET_COMMAND_BYTES > end)
        return 0;
    const struct udphdr *udp = IB_UDP(data);
    ib_u32 ip_len_bytes = bpf_ntohs(IB_IP(data)->tot_len);
    ib_u32 udp_len_bytes = bpf_ntohs(udp->len);
    ib_u32 len_bytes = udp_len_bytes - sizeof(struct udphdr);
    if (IB_FRAME32(data, IB_XDP_FRAME_LEN_BYTES + IB_BOX_GET_FRAME_BYTES) != 0x20746573 ||
        sizeof(struct iphdr) + udp_len_bytes != ip_len_bytes ||
        ETH_HLEN + ip_len_bytes != ib_bytes_between(data, end) ||
        len_bytes <= IB_BOX_GET_COMMAND_BYTES || len_bytes > IB_BOX_SET_REQUEST_MAX_BYTES)
        return 0;
    ib_u64 pseudo = ib_box_pseudo_sum(IB_IP(data), udp->len), check = udp->check;
    ib_u64 ports = (ib_u64)udp->source + udp->dest + udp->len;
    if (bpf_xdp_load_bytes(ctx, 0, s->set.headers, IB_XDP_FRAME_LEN_BYTES) ||
        bpf_xdp_load_bytes(ctx, IB_XDP_FRAME_LEN_BYTES, s->request,
                           IB_COPY_LEN(len_bytes, IB_BOX_SET_REQUEST_MAX_BYTES)))
        return 0;
    IB_BOX_WORD64(IB_BOX_IN_REQUEST(s, len_bytes)) = 0;
    s->set.request_len_bytes = len_bytes;
    if (!ib_box_is_whole(s))
        return 0;
    if (check == 0 || check == ib_box_fold(pseudo))
        return 1;
    ib_u32 sum = ib_box_text_sum(s->request, len_bytes, 0);
    return ib_box_fold(pseudo + ports + check + sum) == 0xffff;
}

/* Makes the frame a packet between nodes, without its header. Returns 0 if there is no room, with
 * the frame unchanged. */
__attribute__((noinline)) int ib_box_set_frame(struct xdp_md *ctx) {
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    if (!s)
        return 0;
    ib_u32 len_bytes = s->set.record_len_bytes;
    ib_u32 more_bytes =
        IB_VALUE_AT_BYTES + len_bytes - IB_XDP_FRAME_LEN_BYTES - s->set.request_len_bytes;
    if (len_bytes == 0 || len_bytes > IB_BOX_RECORD_LEN_MAX_BYTES || more_bytes == 0 ||
        more_bytes > IB_BOX_GET_HEADROOM_BYTES || bpf_xdp_adjust_head(ctx, -(int)more_bytes))
        return 0;
    s->set.grown_bytes = more_bytes;
    ib_u8 *out = (ib_u8 *)(long)ctx->data;
    if (out + IB_VALUE_AT_BYTES > (ib_u8 *)(long)ctx->data_end)
        return 0;
    __builtin_memcpy(out, s->set.headers, IB_XDP_FRAME_LEN_BYTES);
    *(ib_wire16 *)IB_IP(out) = bpf_htons(0x4500);
    IB_IP(out)->id = 0; /* allowed, as it must not be fragmented */
    IB_IP(out)->frag_off = bpf_htons(0x4000);
    IB_UDP(out)->source = ib_settings.port;
    IB_UDP(out)->dest = ib_settings.port;
    bpf_xdp_store_bytes(ctx, IB_VALUE_AT_BYTES, s->reply,
                        IB_COPY_LEN(len_bytes, IB_BOX_RECORD_LEN_MAX_BYTES));
    return 1;
}

/* Makes the frame again what arrived, for the process. Returns the program's return value. */
__attribute__((noinline)) int ib_box_set_undo(struct xdp_md *ctx) {
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    if (!s || bpf_xdp_adjust_head(ctx, (int)s->set.grown_bytes) ||
        bpf_xdp_store_bytes(ctx, 0, s->set.headers, IB_XDP_FRAME_LEN_BYTES) ||
        bpf_xdp_store_bytes(ctx, IB_XDP_FRAME_LEN_BYTES, s->request,
                            IB_COPY_LEN(s->set.request_len_bytes, IB_BOX_SET_REQUEST_MAX_BYTES)))
        return XDP_ABORTED;
    ib_count_reason(IB_R_sets_busy);
    return XDP_PASS;
}

/* Makes a SUBMIT from a frame that is not a node's: IB_R_sets_proposed. Otherwise the frame is
 * unchanged: IB_R_none if it is no SET, or the reason to pass it. */
IB_INLINE ib_u32 ib_box_set(struct xdp_md *ctx, struct ib_box_client *client,
                            struct ib_box_msg *m) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    ib_u32 zero = 0;
    if (ib_settings.generic || !ib_box_is_datagram(data, end) || !ib_box_is_from_client(data))
        return IB_R_none;
    ib_u64 is_strong =
        ib_box_is_to(data, ib_box_settings.strong_address, ib_box_settings.strong_port);
    if (!is_strong &&
        !ib_box_is_to(data, ib_box_settings.local_address, ib_box_settings.local_port))
        return IB_R_none;
    IB_HIDE(is_strong); /* so that the verifier does not walk what follows for each port */
    client->address = IB_IP(data)->saddr;
    client->port = IB_UDP(data)->source;
    client->is_strong = is_strong;
    if (!ib_box_set_load(ctx))
        return IB_R_none;
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    struct ib_box_node *n = bpf_map_lookup_elem(&ib_node_map, &zero);
    if (!s || !n || IB_LOAD(&n->mode) != IB_BOX_LEADING || !ib_box_set_words() ||
        !ib_box_set_record(ctx))
        return IB_R_sets_other;
    if (!ib_box_set_frame(ctx))
        return IB_R_sets_no_room;
    ib_box_set_submit(s, (ib_u16)ib_settings.node, client, m);
    m->digest = (ib_u32)ib_box_sum(ctx, m->value_len_bytes);
    return IB_R_sets_proposed;
}

#endif
