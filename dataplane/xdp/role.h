/* SPDX-License-Identifier: Apache-2.0 */
/*
 * role.h - what every role program does around its shell: read the packet before, act on the
 * verdict after.
 */
#ifndef INBAND_XDP_ROLE_H
#define INBAND_XDP_ROLE_H

#include "frame.h"

struct ib_frame {
    struct xdp_md *ctx;
};

#define IB_VALUE_AT_BYTES (IB_XDP_FRAME_LEN_BYTES + IB_HEADER_LEN_BYTES)

/*
 * Multicast in native mode. An interface appears once per member; the egress program of each entry
 * (copies.bpf.c) finishes the copy.
 */
#define IB_DEVMAP(name)                                                                            \
    struct {                                                                                       \
        __uint(type, BPF_MAP_TYPE_DEVMAP);                                                         \
        __uint(max_entries, IB_XDP_GROUP_ENTRIES);                                                 \
        __type(key, ib_u32);                                                                       \
        __type(value, struct bpf_devmap_val);                                                      \
    } name SEC(".maps")

/* Make the frame exactly as long as header and value. */
IB_INLINE int ib_frame_resize(struct xdp_md *ctx, ib_u32 value_len_bytes) {
    int delta = (int)(IB_VALUE_AT_BYTES + value_len_bytes) - (int)bpf_xdp_get_buff_len(ctx);
    return delta ? bpf_xdp_adjust_tail(ctx, delta) : 0;
}

/*
 * The helpers that copy want a length that the verifier can see to be from 1 to the maximum. It
 * does not remember "not 0", so the check is made on length - 1, hidden from the compiler, which
 * would put the two together again.
 */
#define IB_HIDE(variable) __asm__ volatile("" : "+r"(variable))

/* Hook of shell.h: packet -> slot. */
IB_INLINE int ib_value_save(struct ib_frame *frame, struct ib_slot *slot, ib_u32 len_bytes) {
    ib_u32 last = len_bytes - 1;
    if (len_bytes == 0)
        return 0;
    IB_HIDE(last);
    if (last >= IB_VALUE_LEN_MAX_BYTES)
        return -1;
    IB_HIDE(last);
    return (int)bpf_xdp_load_bytes(frame->ctx, IB_VALUE_AT_BYTES, slot->value, last + 1);
}

/* Hook of shell.h: slot -> packet, which first gets the length that it will have. */
IB_INLINE int ib_value_load(struct ib_frame *frame, struct ib_slot *slot, ib_u32 len_bytes) {
    ib_u32 last = len_bytes - 1;
    if (len_bytes > IB_VALUE_LEN_MAX_BYTES || ib_frame_resize(frame->ctx, len_bytes))
        return -1;
    if (len_bytes == 0)
        return 0;
    IB_HIDE(last);
    if (last >= IB_VALUE_LEN_MAX_BYTES)
        return -1;
    IB_HIDE(last);
    return (int)bpf_xdp_store_bytes(frame->ctx, IB_VALUE_AT_BYTES, slot->value, last + 1);
}

/*
 * Read the packet that dispatch has checked. The verifier has forgotten what dispatch knew, so the
 * bounds are checked again; the rest is not.
 */
IB_INLINE int ib_role_read(struct xdp_md *ctx, struct ib_msg *m) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    if (data + IB_VALUE_AT_BYTES > end)
        return -1;
    ib_read(data + IB_XDP_FRAME_LEN_BYTES, m);
    return 0;
}

/* Leave a note for tc, which sends the packet in generic mode (generic.bpf.c). */
IB_INLINE int ib_role_note(struct xdp_md *ctx, ib_u32 group) {
    if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(struct ib_note)))
        return XDP_ABORTED;
    struct ib_note *note = (struct ib_note *)(long)ctx->data_meta;
    if ((void *)(note + 1) > (void *)(long)ctx->data)
        return XDP_ABORTED;
    note->note = IB_XDP_NOTE;
    note->group = group;
    return XDP_PASS;
}

/* Count the reason and do what the verdict says. `acceptors` and `learners`: the role's devmaps. */
IB_INLINE int ib_role_send(struct xdp_md *ctx, struct ib_msg *m, struct ib_result result,
                           void *acceptors, void *learners) {
    if (result.verdict == IB_DROP || result.verdict == IB_UP) {
        ib_count_reason(result.reason);
        return XDP_DROP;
    }
    if (result.verdict == IB_PASS) {
        ib_count_reason(result.reason);
        return XDP_PASS;
    }
    m->node = (ib_u16)ib_settings.node;
    if (ib_frame_resize(ctx, m->value_len_bytes))
        goto no_room;
    ib_u8 *data = (ib_u8 *)(long)ctx->data;
    if (data + IB_VALUE_AT_BYTES > (ib_u8 *)(long)ctx->data_end)
        goto no_room;
    ib_emit(data + IB_XDP_FRAME_LEN_BYTES, m);
    ib_frame_sizes(data, IB_HEADER_LEN_BYTES + (ib_u32)m->value_len_bytes);
    ib_count_reason(result.reason);
    ib_u32 group = result.verdict == IB_TO_ACCEPTORS  ? IB_XDP_ACCEPTORS
                   : result.verdict == IB_TO_LEARNERS ? IB_XDP_LEARNERS
                                                      : IB_XDP_SENDER;
    if (group == IB_XDP_SENDER)
        ib_frame_turn(data);
    if (ib_settings.generic)
        return ib_role_note(ctx, group);
    if (group == IB_XDP_SENDER)
        return XDP_TX;
    if (group == IB_XDP_ACCEPTORS)
        return acceptors ? bpf_redirect_map(acceptors, 0, BPF_F_BROADCAST) : XDP_ABORTED;
    return learners ? bpf_redirect_map(learners, 0, BPF_F_BROADCAST) : XDP_ABORTED;
no_room:
    ib_count_reason(IB_R_no_room);
    return XDP_DROP;
}

#endif
