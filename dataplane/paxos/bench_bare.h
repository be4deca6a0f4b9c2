/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_bare.h - the baseline without a protocol: a leader that stamps, an acceptor that stores the
 * value, and a counter that delivers every second copy. Nothing is checked (no epoch, promise,
 * floor, digest or address), and slots are not locked. Each program defines IB_BARE_<ROLE>.
 */
#ifndef INBAND_PAXOS_BENCH_BARE_H
#define INBAND_PAXOS_BENCH_BARE_H

#include "bench.h"
#include "xdp.h"
#include "../ground/xdp/ringbuf.h"

#define IB_FIELD(name) __builtin_offsetof(struct ib_paxos_header, name)

/* Copies are sent unaddressed. */
struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, IB_XDP_GROUP_ENTRIES);
    __type(key, ib_u32);
    __type(value, ib_u32);
} ib_bare_devices_map SEC(".maps");

#define IB_SHARED_ARRAY(name, struct_type)                                                         \
    struct {                                                                                       \
        __uint(type, BPF_MAP_TYPE_ARRAY);                                                          \
        __uint(map_flags, BPF_F_MMAPABLE);                                                         \
        __uint(max_entries, 1);                                                                    \
        __type(key, ib_u32);                                                                       \
        __type(value, struct_type);                                                                \
    } name SEC(".maps")

#if defined(IB_BARE_LEADER)
IB_SHARED_ARRAY(ib_leader_map, struct ib_leader_regs);

IB_INLINE int ib_bare(struct xdp_md *ctx, ib_u8 *payload) {
    (void)ctx;
    ib_u32 zero = 0;
    struct ib_leader_regs *regs = bpf_map_lookup_elem(&ib_leader_map, &zero);
    if (!regs)
        return XDP_ABORTED;
    payload[IB_FIELD(type)] = IB_PAXOS_PHASE2A;
    IB_PAXOS_PUT64(payload, instance, __sync_fetch_and_add(&regs->next, 1));
    return (int)bpf_redirect_map(&ib_bare_devices_map, 0, BPF_F_BROADCAST);
}

#elif defined(IB_BARE_ACCEPTOR)
IB_SHARED_ARRAY(ib_ring_map, struct ib_slot);
IB_SHARED_ARRAY(ib_tails_map, struct ib_tail);

IB_INLINE int ib_bare(struct xdp_md *ctx, ib_u8 *payload) {
    struct ib_frame frame = {ctx, &ib_tails_map, 0, 0};
    struct ib_paxos_msg m;
    ib_paxos_read_header(payload, &m);
    frame.at = (ib_u32)m.instance & (ib_paxos_settings.ring_slots - 1);
    struct ib_slot *slot = bpf_map_lookup_elem(&ib_ring_map, &frame.at);
    if (!slot)
        return XDP_ABORTED;
    slot->vote.instance = m.instance;
    slot->vote.vround = m.round;
    slot->vote.digest = m.digest;
    slot->vote.client_id = m.client_id;
    slot->vote.client_seq = m.client_seq;
    slot->vote.client_low = m.client_low;
    slot->vote.value_len_bytes = m.value_len_bytes;
    slot->vote.flags = m.flags;
    if (ib_value_save(&frame, slot, m.value_len_bytes))
        return XDP_ABORTED;
    payload = (ib_u8 *)(long)ctx->data + IB_XDP_FRAME_LEN_BYTES;
    if (payload + IB_HEADER_LEN_BYTES > (ib_u8 *)(long)ctx->data_end)
        return XDP_ABORTED;
    payload[IB_FIELD(type)] = IB_PAXOS_PHASE2B;
    IB_PUT16(payload, node, (ib_u16)ib_settings.node);
    IB_PAXOS_PUT64(payload, vround, m.round);
    return (int)bpf_redirect_map(&ib_bare_devices_map, 0, 0);
}

#elif defined(IB_BARE_QUORUM)
/* Hook of shell.h. If the ring buffer is full it fails, and the instance stays undecided here. */
IB_INLINE int ib_value_up(struct ib_frame *frame, const struct ib_paxos_msg *m) {
    ib_u32 len_bytes = IB_HEADER_LEN_BYTES + (ib_u32)m->value_len_bytes;
    IB_RINGBUF_DELIVER(frame->ctx, len_bytes);
}

IB_SHARED_ARRAY(ib_counts_map, struct ib_count_slot);

IB_INLINE int ib_bare(struct xdp_md *ctx, ib_u8 *payload) {
    struct ib_frame frame = {ctx, NULL, 0, 0};
    struct ib_paxos_msg m = {.value_len_bytes = IB_GET16(payload, value_len_bytes)};
    ib_u64 instance = IB_PAXOS_GET64(payload, instance);
    ib_u32 at = (ib_u32)instance & (ib_paxos_settings.ring_slots - 1);
    struct ib_count_slot *slot = bpf_map_lookup_elem(&ib_counts_map, &at);
    if (!slot)
        return XDP_ABORTED;
    if (slot->count.instance != instance) {
        slot->count.instance = instance;
        slot->count.members = 0;
    }
    slot->count.members += 1;
    if (slot->count.members == IB_BENCH_MAJORITY && ib_value_up(&frame, &m))
        return XDP_ABORTED;
    return XDP_DROP;
}
#endif

SEC("xdp")
int ib_bare_xdp(struct xdp_md *ctx) {
    ib_u8 *payload = (ib_u8 *)(long)ctx->data + IB_XDP_FRAME_LEN_BYTES;
    if (payload + IB_HEADER_LEN_BYTES > (ib_u8 *)(long)ctx->data_end)
        return XDP_ABORTED;
    return ib_bare(ctx, payload);
}

char ib_license[] SEC("license") = "Dual BSD/GPL";

#endif
