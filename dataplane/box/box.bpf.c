/* SPDX-License-Identifier: Apache-2.0 */
/*
 * box - a node as a program on an interface.
 *
 * The process sleeps on a ring buffer that carries no data: whenever `committed` or a round
 * advances, an empty record wakes it, and it looks at the registers. Packets for the process pass.
 *
 * box_direct is the same for links between two nodes, with frames without IP and UDP (raw.h). It
 * shares all maps except its own.
 *
 * box_gets also answers memcached's clients (gets.h), and proposes their SETs (sets.h).
 */
/* variant: box_direct IB_RAW_FRAMES */
/* variant: box_gets IB_BOX_GETS */
/* variant: box_gets_slow IB_BOX_GETS IB_RACE_DELAY */
/* variant: box_gets_torn IB_BOX_GETS IB_RACE_DELAY IB_MUTANT_TORN */
/* variant: box_slow IB_RACE_DELAY */
/* variant: box_no_exclusivity IB_RACE_DELAY IB_MUTANT_NO_EXCLUSIVITY */
/* variant: box_given IB_GIVEN_ARRIVAL */
#define IB_SYSTEM_CHECK ib_box_check

#include "msg.h"
#include "registers.h"
#include "settings.h"
#ifdef IB_RAW_FRAMES
#include "../ground/xdp/raw.h"
#else
#include "../ground/xdp/validate.h"
#endif
#include "../ground/xdp/multicast.h"
#include "../ground/xdp/ringbuf.h"
#include "../ground/xdp/route.h"
#include "../ground/xdp/race_wait.h"
#include "../ground/xdp/given.h"

const volatile struct ib_box_settings ib_box_settings SEC(".rodata.own");

IB_REGISTERS(ib_node_map, struct ib_box_node);
IB_REGISTERS(ib_records_map, struct ib_box_record);
#ifdef IB_RAW_FRAMES
/* The links to the other nodes, and whether all of them are up. */
IB_DEVMAP(ib_links_map);
IB_REGISTERS(ib_links_up_map, ib_u64);
#else
IB_DEVMAP(ib_others_map);
#endif

struct ib_box_here {
    struct xdp_md *ctx;
    struct ib_box_client client; /* of a SET */
};

IB_INLINE ib_u64 ib_box_own(const struct ib_box_here *here) {
    (void)here;
    return ib_settings.node;
}

IB_INLINE ib_u64 ib_box_capacity(const struct ib_box_here *here) {
    (void)here;
    return ib_box_settings.capacity;
}

IB_INLINE struct ib_box_node *ib_box_node_at(const struct ib_box_here *here) {
    ib_u32 zero = 0;
    (void)here;
    return bpf_map_lookup_elem(&ib_node_map, &zero);
}

IB_INLINE struct ib_box_record *ib_box_record_at(const struct ib_box_here *here, ib_u64 zxid) {
    ib_u32 slot = (ib_u32)(zxid & (ib_box_settings.capacity - 1));
    (void)here;
    return bpf_map_lookup_elem(&ib_records_map, &slot);
}

#define ib_box_value_load(here, to, len_bytes)                                                     \
    bpf_xdp_load_bytes((here)->ctx, IB_VALUE_AT_BYTES, (to),                                       \
                       IB_COPY_LEN((len_bytes), IB_BOX_RECORD_LEN_MAX_BYTES))
#define ib_box_value_sum(here, len_bytes) ((ib_u32)ib_box_sum((here)->ctx, len_bytes))

/* A global function, so that the verifier processes the loop over the value once, separately from
 * the role. */
__attribute__((noinline)) int ib_box_sum(struct xdp_md *ctx, ib_u32 len_bytes) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    return (int)ib_value_checksum(data + IB_VALUE_AT_BYTES, end, len_bytes);
}

#ifdef IB_BOX_GETS
#include "sets_xdp.h"

IB_REGISTERS(ib_clients_map, struct ib_box_client);

IB_INLINE struct ib_box_client *ib_box_client_at(const struct ib_box_here *here, ib_u64 zxid) {
    ib_u32 slot = (ib_u32)(zxid & (ib_box_settings.capacity - 1));
    (void)here;
    return bpf_map_lookup_elem(&ib_clients_map, &slot);
}
#else
#define ib_box_client_at(here, zxid) NULL
#endif
#include "shell.h"

IB_INLINE ib_u64 ib_box_now_ns(void) {
#ifdef IB_GIVEN_ARRIVAL
    const struct ib_given *given = ib_given();
    return given ? given->now_ns : 0;
#else
    return bpf_ktime_get_ns();
#endif
}

/* Wakes the process unless it polls. ib_ringbuf_submit explains why no wake-up is lost. */
IB_INLINE void ib_box_wake(void) {
    ib_u32 zero = 0;
    ib_u64 *polling = bpf_map_lookup_elem(&ib_polling_map, &zero);
    if (polling && *(volatile ib_u64 *)polling)
        return;
    void *note = bpf_ringbuf_reserve(&ib_ringbuf_map, IB_WAKE_ROOM_BYTES, 0);
    if (note) /* otherwise the ring is full of records that will wake it */
        bpf_ringbuf_discard(note, 0);
}

#ifdef IB_RAW_FRAMES
/* Sends out of the ingress link, or of all links. If one is down, the process sends another way. */
IB_INLINE int ib_box_leave(ib_u8 *data, unsigned int verdict) {
    ib_u32 zero = 0;
    ib_raw_across(data, ib_settings.node);
    if (verdict == IB_REPLY)
        return XDP_TX;
    ib_u64 *are_up = bpf_map_lookup_elem(&ib_links_up_map, &zero);
    if (!are_up || !*(volatile ib_u64 *)are_up)
        return XDP_PASS;
    return (int)bpf_redirect_map(&ib_links_map, 0, BPF_F_BROADCAST);
}
#endif

IB_INLINE int ib_box_send(struct xdp_md *ctx, struct ib_box_msg *m, unsigned int verdict) {
    const struct ib_keys *keys = NULL;
    ib_u8 *data = IB_SEND_BEGIN(ctx, m, keys);
    ib_box_emit(data + IB_XDP_FRAME_LEN_BYTES, m);
#ifdef IB_BOX_GETS
    if (m->is_own_set)
        ib_box_emit_origin(data + IB_XDP_FRAME_LEN_BYTES, m);
#endif
    ib_send_finish(data, keys, m->key_id, m->value_len_bytes);
#ifdef IB_RAW_FRAMES
    return ib_box_leave(data, verdict);
#else
    if (verdict == IB_REPLY)
        return ib_route_back(ctx, data);
    if (IB_RARE(ib_settings.generic))
        return ib_send_note(ctx, IB_BOX_OTHERS_GROUP);
    return ib_send_group(data, IB_BOX_OTHERS_GROUP, &ib_others_map);
#endif
}

SEC("xdp")
int ib_box_xdp(struct xdp_md *ctx) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    struct ib_box_here here = {.ctx = ctx};
    struct ib_box_msg m = {0};
#ifdef IB_RAW_FRAMES
    int advances = 0, action = ib_raw_validate(data, end);
#else
    int advances = 0, action = ib_validate(data, end);
#endif
#ifdef IB_BOX_GETS
    if (action == XDP_PASS) {
        ib_u32 reason = ib_box_set(ctx, &here.client, &m);
        if (reason == IB_R_none)
            return ib_box_get(ctx);
        if (reason != IB_R_sets_proposed) {
            ib_count_reason(reason);
            return XDP_PASS;
        }
        action = IB_VALID;
    }
#endif
    if (action != IB_VALID)
        return action;
    if (!m.is_own_set) {
        if (data + IB_VALUE_AT_BYTES > end)
            return XDP_ABORTED;
        ib_box_read_header(data + IB_XDP_FRAME_LEN_BYTES, &m);
    }
    struct ib_result result = ib_shell_box(&here, &m, ib_box_now_ns(), &advances);
#ifdef IB_BOX_GETS
    if (m.is_own_set) {
        if (result.reason != IB_R_box_submitted)
            return ib_box_set_undo(ctx);
        ib_count_reason(IB_R_sets_proposed);
    }
#endif
    ib_count_reason(result.reason);
    if (advances)
        ib_box_wake();
    if (result.verdict == IB_DROP)
        return XDP_DROP;
    if (result.verdict == IB_PASS)
        return XDP_PASS;
    return ib_box_send(ctx, &m, result.verdict);
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
