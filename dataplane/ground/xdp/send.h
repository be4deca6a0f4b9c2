/* SPDX-License-Identifier: Apache-2.0 */
/* send.h - prepares packets that leave, whichever role has rewritten them. */
#ifndef INBAND_GROUND_XDP_SEND_H
#define INBAND_GROUND_XDP_SEND_H

#include "frame.h"

#define IB_VALUE_AT_BYTES (IB_XDP_FRAME_LEN_BYTES + IB_HEADER_LEN_BYTES)

/* Sets the length of the frame to exactly header and value. */
IB_INLINE int ib_frame_resize(struct xdp_md *ctx, ib_u32 value_len_bytes) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    int delta = (int)(IB_VALUE_AT_BYTES + value_len_bytes) - (int)ib_bytes_between(data, end);
    return IB_RARE(delta) ? bpf_xdp_adjust_tail(ctx, delta) : 0;
}

/* The frame, with room for exactly header and value; NULL on failure. */
IB_INLINE ib_u8 *ib_send_room(struct xdp_md *ctx, ib_u32 value_len_bytes) {
    if (IB_RARE(ib_frame_resize(ctx, value_len_bytes)))
        return NULL;
    ib_u8 *data = (ib_u8 *)(long)ctx->data;
    return data + IB_VALUE_AT_BYTES > (ib_u8 *)(long)ctx->data_end ? NULL : data;
}

/*
 * Must be called before the header of the message `m` is written: sets its sender, its key id and
 * `keys` (for signing), and makes room with ib_send_room. Returns from the enclosing function if
 * the packet cannot leave. A macro, because a function would have two results.
 */
#define IB_SEND_BEGIN(ctx, m, keys)                                                                \
    ({                                                                                             \
        if (ib_settings.authenticated) {                                                           \
            (keys) = ib_keys();                                                                    \
            if (!(keys))                                                                           \
                return XDP_ABORTED;                                                                \
            (m)->key_id = (ib_u16)(keys)->active;                                                  \
        }                                                                                          \
        (m)->node = (ib_u16)ib_settings.node;                                                      \
        ib_u8 *room = ib_send_room(ctx, (m)->value_len_bytes);                                     \
        if (IB_RARE(!room)) {                                                                      \
            ib_count_reason(IB_R_no_room);                                                         \
            return XDP_DROP;                                                                       \
        }                                                                                          \
        room;                                                                                      \
    })

/* After the header is written: sets its tag and the lengths in the outer headers. */
IB_INLINE void ib_send_finish(ib_u8 *data, const struct ib_keys *keys, ib_u16 key_id,
                              ib_u32 value_len_bytes) {
    ib_sign(data + IB_XDP_FRAME_LEN_BYTES, keys, key_id);
#ifndef IB_RAW_FRAMES
    ib_frame_sizes(data, IB_HEADER_LEN_BYTES + value_len_bytes);
#else
    (void)value_len_bytes;
#endif
}

/*
 * Writes the message `m` with `emit` over the packet that arrived, and completes it except for its
 * destination. Returns like IB_SEND_BEGIN.
 */
#define IB_SEND(ctx, m, emit)                                                                      \
    ({                                                                                             \
        const struct ib_keys *keys = NULL;                                                         \
        ib_u8 *data = IB_SEND_BEGIN(ctx, m, keys);                                                 \
        emit(data + IB_XDP_FRAME_LEN_BYTES, m);                                                    \
        ib_send_finish(data, keys, (m)->key_id, (m)->value_len_bytes);                             \
        data;                                                                                      \
    })

/* Leaves a note for tc, which sends the packet in generic mode (generic.bpf.c). */
IB_INLINE int ib_send_note(struct xdp_md *ctx, ib_u32 group) {
    if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(struct ib_note)))
        return XDP_ABORTED;
    struct ib_note *note = (struct ib_note *)(long)ctx->data_meta;
    if ((void *)(note + 1) > (void *)(long)ctx->data)
        return XDP_ABORTED;
    note->note = IB_XDP_NOTE;
    note->group = group;
    return XDP_PASS;
}

#endif
