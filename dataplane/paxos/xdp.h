/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xdp.h - the code around the shell in every role program: reads the packet before, and acts on the
 * verdict after.
 */
#ifndef INBAND_PAXOS_XDP_H
#define INBAND_PAXOS_XDP_H

#include "msg.h"

#define IB_SYSTEM_CHECK ib_paxos_check

#include "../ground/checksum.h"
#include "../ground/xdp/multicast.h"
#include "../ground/xdp/send.h"
#include "../ground/xdp/validate.h"
#include "registers.h"
#include "settings.h"

const volatile struct ib_paxos_settings ib_paxos_settings SEC(".rodata.own");

struct ib_frame {
    struct xdp_md *ctx;
    void *tails;   /* the map of the slots' tails, if the role has slots */
    ib_u32 at;     /* index of the slot */
    int new_value; /* a stored value has replaced the packet's */
};

/*
 * Copies the part of a value that is stored in the slot, with loads and stores of words. Unlike
 * with the helper's string instruction, the processor does not wait for each cache miss before the
 * next load. A value of n to 2n bytes is copied as its first n and its last n bytes.
 */
#define IB_WORDS_MIN_BYTES 8

/* Returns 1 if copied, 0 if shorter than `half` bytes, -1 if the packet is shorter than it
 * claims. */
IB_INLINE int ib_save_halves(const struct xdp_md *ctx, ib_u8 *to, ib_u32 len_bytes, ib_u32 half) {
    const ib_u8 *from = (const ib_u8 *)(long)ctx->data + IB_VALUE_AT_BYTES;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    if (len_bytes < half)
        return 0;
    ib_u32 rest = len_bytes - half;
    IB_HIDE(rest);
    if (rest > half || rest > IB_SLOT_VALUE_BYTES - half)
        return -1;
    const ib_u8 *last = from + rest;
    if (from + half > end || last + half > end)
        return -1;
    for (ib_u32 at = 0; at < half; at += 8)
        *(ib_wire64 *)(to + at) = *(const ib_wire64 *)(from + at);
    for (ib_u32 at = 0; rest && at < half; at += 8)
        *(ib_wire64 *)(to + rest + at) = *(const ib_wire64 *)(last + at);
    return 1;
}

/*
 * A global function, because inlined into an acceptor alone on its host it runs out of registers:
 * clang then recomputed the address of the last half after its check, which Linux 6.1 rejects.
 */
__attribute__((noinline)) int ib_save_words(struct xdp_md *ctx, struct ib_slot *slot,
                                            ib_u32 len_bytes) {
    if (!slot)
        return -1;
    ib_u8 *to = slot->value;
    int saved = ib_save_halves(ctx, to, len_bytes, 64);
    if (!saved)
        saved = ib_save_halves(ctx, to, len_bytes, 32);
    if (!saved)
        saved = ib_save_halves(ctx, to, len_bytes, 16);
    if (!saved)
        saved = ib_save_halves(ctx, to, len_bytes, IB_WORDS_MIN_BYTES);
    return saved == 1 ? 0 : -1;
}

/* The tail of the frame's slot. */
IB_INLINE struct ib_tail *ib_tail_of(const struct ib_frame *frame) {
    return frame->tails ? bpf_map_lookup_elem(frame->tails, &frame->at) : NULL;
}

/*
 * Whether the value of a packet does not match `checksum`. A global function, so that the verifier
 * processes the loop over the value once, separately from the paths of the role.
 */
__attribute__((noinline)) int ib_value_damaged(struct xdp_md *ctx, ib_u32 len_bytes,
                                               ib_u32 checksum) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    return ib_value_checksum(data + IB_VALUE_AT_BYTES, end, len_bytes) != checksum;
}

/* Hook of shell.h. */
IB_INLINE int ib_value_check(struct ib_frame *frame, const struct ib_paxos_msg *m) {
    return ib_value_damaged(frame->ctx, m->value_len_bytes, m->checksum);
}

/* Hook of shell.h: packet -> slot. Copies the tail first, which proves that the packet is long
 * enough. */
IB_INLINE int ib_value_save(struct ib_frame *frame, struct ib_slot *slot, ib_u32 len_bytes) {
    ib_u32 in_slot = len_bytes;
    if (len_bytes == 0)
        return 0;
    if (len_bytes > IB_SLOT_VALUE_BYTES) {
        ib_u32 in_tail = len_bytes - IB_SLOT_VALUE_BYTES;
        struct ib_tail *tail = ib_tail_of(frame);
        if (!tail || in_tail > IB_TAIL_VALUE_BYTES)
            return -1;
        if (bpf_xdp_load_bytes(frame->ctx, IB_VALUE_AT_BYTES + IB_SLOT_VALUE_BYTES, tail->value,
                               IB_COPY_LEN(in_tail, IB_TAIL_VALUE_BYTES)))
            return -1;
        in_slot = IB_SLOT_VALUE_BYTES;
    }
    if (in_slot >= IB_WORDS_MIN_BYTES)
        return ib_save_words(frame->ctx, slot, in_slot);
    return (int)bpf_xdp_load_bytes(frame->ctx, IB_VALUE_AT_BYTES, slot->value,
                                   IB_COPY_LEN(in_slot, IB_WORDS_MIN_BYTES - 1));
}

/* Hook of shell.h: slot -> packet. Sets the final length of the packet first. */
IB_INLINE int ib_value_load(struct ib_frame *frame, struct ib_slot *slot, ib_u32 len_bytes) {
    ib_u32 in_slot = len_bytes;
    frame->new_value = 1;
    if (len_bytes > IB_VALUE_LEN_MAX_BYTES || ib_frame_resize(frame->ctx, len_bytes))
        return -1;
    if (len_bytes == 0)
        return 0;
    if (len_bytes > IB_SLOT_VALUE_BYTES) {
        ib_u32 in_tail = len_bytes - IB_SLOT_VALUE_BYTES;
        struct ib_tail *tail = ib_tail_of(frame);
        if (!tail)
            return -1;
        if (bpf_xdp_store_bytes(frame->ctx, IB_VALUE_AT_BYTES + IB_SLOT_VALUE_BYTES, tail->value,
                                IB_COPY_LEN(in_tail, IB_TAIL_VALUE_BYTES)))
            return -1;
        in_slot = IB_SLOT_VALUE_BYTES;
    }
    return (int)bpf_xdp_store_bytes(frame->ctx, IB_VALUE_AT_BYTES, slot->value,
                                    IB_COPY_LEN(in_slot, IB_SLOT_VALUE_BYTES));
}

/*
 * Reads the packet. Returns IB_VALID, or the program's return value. After the tail call from
 * dispatch the verifier no longer knows the bounds, so these are checked again, but nothing else. A
 * role that is alone on its host (IB_ALONE) is the interface's own program: there is no tail call,
 * and nothing is checked twice.
 */
IB_INLINE int ib_paxos_read(struct xdp_md *ctx, struct ib_paxos_msg *m) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
#ifdef IB_ALONE
    int action = ib_validate(data, end);
    if (action != IB_VALID)
        return action;
#endif
    if (data + IB_VALUE_AT_BYTES > end)
        return XDP_ABORTED;
    ib_paxos_read_header(data + IB_XDP_FRAME_LEN_BYTES, m);
    return IB_VALID;
}

/* Counts the reason and executes the verdict. `acceptors` and `learners` are the role's devmaps. */
IB_INLINE int ib_paxos_send(const struct ib_frame *frame, struct ib_paxos_msg *m,
                            struct ib_result result, void *acceptors, void *learners) {
    struct xdp_md *ctx = frame->ctx;
    if (result.verdict == IB_DROP || result.verdict == IB_DELIVER) {
        ib_count_reason(result.reason);
        return XDP_DROP;
    }
    if (result.verdict == IB_PASS) {
        ib_count_reason(result.reason);
        return XDP_PASS;
    }
    const struct ib_keys *keys = NULL;
    ib_u8 *data = IB_SEND_BEGIN(ctx, m, keys);
    if (IB_RARE(frame->new_value))
        ib_paxos_emit(data + IB_XDP_FRAME_LEN_BYTES, m);
    else
        ib_paxos_emit_same_value(data + IB_XDP_FRAME_LEN_BYTES, m);
    ib_send_finish(data, keys, m->key_id, m->value_len_bytes);
    ib_count_reason(result.reason);
    ib_u32 group = result.verdict == IB_TO_ACCEPTORS  ? IB_PAXOS_ACCEPTORS_GROUP
                   : result.verdict == IB_TO_LEARNERS ? IB_PAXOS_LEARNERS_GROUP
                                                      : IB_XDP_SENDER;
    if (IB_RARE(group == IB_XDP_SENDER))
        ib_frame_turn(data);
    if (IB_RARE(ib_settings.generic))
        return ib_send_note(ctx, group);
    if (group == IB_XDP_SENDER)
        return XDP_TX;
    return group == IB_PAXOS_ACCEPTORS_GROUP ? ib_send_group(data, group, acceptors)
                                             : ib_send_group(data, group, learners);
}

#endif
