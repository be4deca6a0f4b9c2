/* SPDX-License-Identifier: Apache-2.0 */
/* xdp.h - the code around the shell in both programs: moves values, reads and writes the packet. */
#ifndef INBAND_MEMORY_XDP_H
#define INBAND_MEMORY_XDP_H

#include "msg.h"

#define IB_SYSTEM_CHECK ib_memory_check

#include "../ground/xdp/route.h"
#include "../ground/xdp/validate.h"

#include "../ground/xdp/race_wait.h"
#include "registers.h"
#include "settings.h"

const volatile struct ib_memory_settings ib_memory_settings SEC(".rodata.own");

struct ib_memory_here {
    struct xdp_md *ctx;
};

/* Hooks of shell.h. Macros: the length's bound must be a constant. */
#define ib_memory_value_load(here, at, to, len_bytes, max_bytes)                                   \
    bpf_xdp_load_bytes((here)->ctx, IB_VALUE_AT_BYTES + (at), (to),                                \
                       IB_COPY_LEN((len_bytes), (max_bytes)))
#define ib_memory_value_store(here, at, from, len_bytes, max_bytes)                                \
    bpf_xdp_store_bytes((here)->ctx, IB_VALUE_AT_BYTES + (at), (void *)(from),                     \
                        IB_COPY_LEN((len_bytes), (max_bytes)))
#define ib_memory_value_resize(here, len_bytes) ib_frame_resize((here)->ctx, len_bytes)
#define ib_memory_value_sum(here, len_bytes) ((ib_u32)ib_memory_sum((here)->ctx, len_bytes))

/* A global function, so that the verifier processes the loop over the value once, separately from
 * the roles. */
__attribute__((noinline)) int ib_memory_sum(struct xdp_md *ctx, ib_u32 len_bytes) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    return (int)ib_value_checksum(data + IB_VALUE_AT_BYTES, end, len_bytes);
}

/* Returns IB_VALID, or the program's return value. */
IB_INLINE int ib_memory_packet(struct xdp_md *ctx, struct ib_memory_msg *m) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    int action = ib_validate(data, end);
    if (action != IB_VALID)
        return action;
    if (data + IB_VALUE_AT_BYTES > end)
        return XDP_ABORTED;
    ib_memory_read_header(data + IB_XDP_FRAME_LEN_BYTES,
                          bpf_ntohs(IB_UDP(data)->len) - sizeof(struct udphdr), m);
    return IB_VALID;
}

/* Writes the packet that leaves. Returns NULL if it cannot. */
IB_INLINE ib_u8 *ib_memory_rewrite(struct xdp_md *ctx, struct ib_memory_msg *m) {
    const struct ib_keys *keys = NULL;
    if (ib_settings.authenticated) {
        keys = ib_keys();
        if (!keys)
            return NULL;
        m->key_id = (ib_u16)keys->active;
    }
    m->node = (ib_u16)ib_settings.node;
    ib_u8 *data = ib_send_room(ctx, m->room_len_bytes);
    if (IB_RARE(!data)) {
        ib_count_reason(IB_R_no_room);
        return NULL;
    }
    ib_memory_emit(data + IB_XDP_FRAME_LEN_BYTES, m);
    ib_send_finish(data, keys, m->key_id, m->room_len_bytes);
    return data;
}

#endif
