/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sets.h - where this node leads, proposes memcached's SETs over UDP without the process:
 * `set KEY FLAGS EXPTIME BYTES\r\n` and its data in one datagram, if the command fits one record.
 * Everything else passes to the process, unchanged.
 *
 * The request becomes a SUBMIT in its own frame, and then takes the way of all others (shell.h).
 * The process answers the client once the record is applied: only this node has the client, in
 * ib_clients_map.
 */
#ifndef INBAND_BOX_SETS_H
#define INBAND_BOX_SETS_H

#include "gets.h"

enum ib_box_sets {
    IB_BOX_SET_REQUEST_MAX_BYTES = 1400, /* as in the process */
    /* "KEY FLAGS EXPTIME BYTES\r": numbers of ten, ten, and four digits. */
    IB_BOX_SET_LINE_MAX_BYTES = IB_BOX_KEY_LEN_MAX_BYTES + 28,
    IB_BOX_SET_DIGITS_MAX = 10,
    IB_BOX_SET_VARINT_BYTES = 5,
    IB_BOX_SET_LENGTH_BYTES = 4, /* before each command (command.rs) */
    IB_BOX_SET_STORE = 1,        /* Command::Store and Mode::Set there */
    IB_BOX_SET_MODE = 0,
    IB_BOX_SET_REST_BYTES = 3, /* no cas, two flags that are off */
    IB_BOX_SET_EXPTIME_MAX_S = 0x7fffffff,
};

#define IB_BOX_SET_NO_NUMBER (~0ULL)

IB_REGISTERS(ib_clients_map, struct ib_box_client);

/* Called with the node's lock, so the process cannot apply the record before. */
IB_INLINE void ib_box_remember(const struct ib_box_here *here, const struct ib_box_msg *m) {
    ib_u32 slot = (ib_u32)(m->zxid & (ib_box_settings.capacity - 1));
    struct ib_box_client *client = bpf_map_lookup_elem(&ib_clients_map, &slot);
    if (!client)
        return;
    *client = here->client;
    client->zxid = m->zxid;
    client->epoch = m->record_epoch;
}

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
    if (IB_BOX_WORD64(s->request) >> 16 != 1ULL << 24)
        return 0;
    if (check == 0 || check == ib_box_fold(pseudo))
        return 1;
    ib_u32 sum = 0;
    IB_LOOP
    for (ib_u32 at = 0; at < IB_BOX_SET_REQUEST_MAX_BYTES; at += IB_BOX_GET_SUM_PART_BYTES) {
        if (at >= len_bytes)
            break;
        sum = ib_box_sum_part(s->request + at, len_bytes - at, sum);
    }
    return ib_box_fold(pseudo + ports + check + sum) == 0xffff;
}

/* Finds the ends of the line's words, which one space separates. Returns 0 if it has not four.
 * Their number is in memory, so that the verifier does not follow it. */
__attribute__((noinline)) int ib_box_set_words(void) {
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    if (!s)
        return 0;
    s->set.words = 0;
    IB_LOOP
    for (ib_u32 i = 0; i < IB_BOX_SET_LINE_MAX_BYTES; i++) {
        ib_u32 byte = s->request[IB_BOX_GET_COMMAND_BYTES + i];
        ib_u64 words = IB_LOAD(&s->set.words);
        s->set.word_end[words & 3] = i;
        if (byte > ' ')
            continue;
        if (byte != ' ')
            return byte == '\r' && words == 3;
        s->set.words = words + 1;
    }
    return 0;
}

/* The number between two places of the line, or IB_BOX_SET_NO_NUMBER, into the scratch memory. */
__attribute__((noinline)) int ib_box_set_number(ib_u32 from, ib_u32 to) {
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    if (!s)
        return 0;
    const ib_u8 *text = IB_BOX_IN_REQUEST(s, IB_BOX_GET_COMMAND_BYTES + from);
    ib_u32 len = to - from;
    ib_u64 number = 0, bad = ib_box_is_above(len, IB_BOX_SET_DIGITS_MAX) | (len == 0);
    _Pragma("clang loop unroll(full)") for (ib_u32 i = 0; i < IB_BOX_SET_DIGITS_MAX; i++) {
        ib_u32 digit = (ib_u32)text[i] - '0';
        ib_u64 is_within = ib_box_is_above(len, i);
        bad |= is_within & ib_box_is_above(digit, 9);
        number += (number * 9 + digit) & -is_within;
    }
    s->set.number = number | -bad;
    return 0;
}

/* Writes a number as the command's encoding has it, and returns its length. What follows is written
 * later. */
IB_INLINE ib_u32 ib_box_set_varint(struct ib_box_get_scratch *s, ib_u32 at, ib_u32 number) {
    ib_u8 *to = IB_BOX_IN_REPLY(s, at);
    ib_u32 len_bytes = 1;
    _Pragma("clang loop unroll(full)") for (ib_u32 i = 0; i < IB_BOX_SET_VARINT_BYTES; i++) {
        ib_u32 goes_on = i + 1 < IB_BOX_SET_VARINT_BYTES
                             ? ib_box_is_above(number, (1U << (7 * (i + 1) & 31)) - 1)
                             : 0;
        to[i] = (ib_u8)((number >> (7 * i) & 127) | goes_on << 7);
        len_bytes += goes_on;
    }
    return len_bytes;
}

/* Makes the record's value from the request. Returns 0 if it is for the process. */
__attribute__((noinline)) int ib_box_set_record(struct xdp_md *ctx) {
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    if (!s)
        return 0;
    ib_u32 key_len_bytes = s->set.word_end[0], line_end = s->set.word_end[3];
    ib_box_set_number(key_len_bytes + 1, s->set.word_end[1]);
    ib_u64 flags = s->set.number;
    ib_box_set_number(s->set.word_end[1] + 1, s->set.word_end[2]);
    ib_u64 exptime_s = s->set.number;
    ib_box_set_number(s->set.word_end[2] + 1, line_end);
    ib_u64 value_len_bytes = s->set.number;
    ib_u32 value_at = IB_BOX_GET_COMMAND_BYTES + line_end + 2;
    if (key_len_bytes == 0 || key_len_bytes > IB_BOX_KEY_LEN_MAX_BYTES || flags >> 32 ||
        exptime_s > IB_BOX_SET_EXPTIME_MAX_S || value_len_bytes > IB_BOX_RECORD_LEN_MAX_BYTES ||
        value_at + value_len_bytes + 2 != s->set.request_len_bytes ||
        IB_BOX_WORD16(IB_BOX_IN_REQUEST(s, value_at - 2)) != 0x0a0d ||
        IB_BOX_WORD16(IB_BOX_IN_REQUEST(s, value_at + value_len_bytes)) != 0x0a0d)
        return 0;
    s->reply[IB_BOX_SET_LENGTH_BYTES] = IB_BOX_SET_STORE;
    s->reply[IB_BOX_SET_LENGTH_BYTES + 1] = IB_BOX_SET_MODE;
    ib_u32 at = IB_BOX_SET_LENGTH_BYTES + 2;
    at += ib_box_set_varint(s, at, key_len_bytes);
    if (bpf_xdp_load_bytes(ctx, IB_XDP_FRAME_LEN_BYTES + IB_BOX_GET_COMMAND_BYTES,
                           IB_BOX_IN_REPLY(s, at),
                           IB_COPY_LEN(key_len_bytes, IB_BOX_KEY_LEN_MAX_BYTES)))
        return 0;
    at += key_len_bytes;
    at += ib_box_set_varint(s, at, (ib_u32)value_len_bytes);
    if (value_len_bytes &&
        bpf_xdp_load_bytes(ctx, IB_XDP_FRAME_LEN_BYTES + value_at, IB_BOX_IN_REPLY(s, at),
                           IB_COPY_LEN(value_len_bytes, IB_BOX_RECORD_LEN_MAX_BYTES)))
        return 0;
    at += (ib_u32)value_len_bytes;
    at += ib_box_set_varint(s, at, (ib_u32)flags);
    at += ib_box_set_varint(s, at, (ib_u32)exptime_s << 1); /* zigzag */
    IB_BOX_WORD32(IB_BOX_IN_REPLY(s, at)) = 0;
    at += IB_BOX_SET_REST_BYTES;
    IB_BOX_WORD32(s->reply) = at - IB_BOX_SET_LENGTH_BYTES;
    s->set.record_len_bytes = at;
    return at <= IB_BOX_RECORD_LEN_MAX_BYTES;
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
    if (!ib_box_settings.get_port || ib_settings.generic || !ib_box_is_get(data, end) ||
        (IB_IP(data)->saddr & ib_box_settings.get_from_mask) != ib_box_settings.get_from)
        return IB_R_none;
    client->address = IB_IP(data)->saddr;
    client->port = IB_UDP(data)->source;
    if (!ib_box_set_load(ctx))
        return IB_R_none;
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    struct ib_box_node *n = bpf_map_lookup_elem(&ib_node_map, &zero);
    if (!s || !n || IB_LOAD(&n->mode) != IB_BOX_LEADING || !ib_box_set_words() ||
        !ib_box_set_record(ctx))
        return IB_R_sets_other;
    if (!ib_box_set_frame(ctx))
        return IB_R_sets_no_room;
    client->request = IB_BOX_WORD16(s->request);
    m->is_own_set = 1;
    m->type = IB_BOX_SUBMIT;
    m->node = (ib_u16)ib_settings.node;
    m->origin = IB_BOX_ORIGIN_ROLE;
    m->value_len_bytes = (ib_u16)s->set.record_len_bytes;
    m->digest = (ib_u32)ib_box_sum(ctx, m->value_len_bytes);
    return IB_R_sets_proposed;
}

#endif
