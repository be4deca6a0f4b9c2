/* SPDX-License-Identifier: Apache-2.0 */
/*
 * race - the driver of the race test, run by BPF_PROG_TEST_RUN on several CPUs. It makes a packet
 * for a hot slot of partition 0, near the promise and near the end of the log, and tail-calls the
 * acceptor's program. A test run reuses the buffer, so every run writes its packet again.
 */
#include "../ground/xdp/frame.h"
#include "msg.h"
#include "registers.h"
#include "settings.h"

#define IB_RACE_PACKETS 64

/* A PHASE2A with a value and its digest. The program sets instance and round. */
struct ib_race_packet {
    ib_u32 len_bytes;
    ib_u32 reserved;
    struct ib_paxos_header header;
    ib_u8 value[IB_VALUE_LEN_MAX_BYTES];
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, IB_RACE_PACKETS);
    __type(key, ib_u32);
    __type(value, struct ib_race_packet);
} ib_packets_map SEC(".maps");

IB_REGISTERS(ib_acceptor_map, struct ib_acceptor_regs);

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, IB_PAXOS_DISPATCH_KEYS); /* shared with dispatch */
    __type(key, ib_u32);
    __type(value, ib_u32);
} ib_roles_map SEC(".maps");

SEC("xdp")
int ib_race(struct xdp_md *ctx) {
    ib_u32 zero = 0, random = bpf_get_prandom_u32();
    ib_u32 which = (random >> 24) % IB_RACE_PACKETS;
    struct ib_race_packet *packet = bpf_map_lookup_elem(&ib_packets_map, &which);
    struct ib_acceptor_regs *regs = bpf_map_lookup_elem(&ib_acceptor_map, &zero);
    if (!packet || !regs)
        return XDP_ABORTED;
    ib_u32 len_bytes = packet->len_bytes;
    if (len_bytes < IB_HEADER_LEN_BYTES || len_bytes > IB_HEADER_LEN_BYTES + IB_VALUE_LEN_MAX_BYTES)
        return XDP_ABORTED;
    int grow = (int)(IB_XDP_FRAME_LEN_BYTES + len_bytes) - (int)bpf_xdp_get_buff_len(ctx);
    if (grow && bpf_xdp_adjust_tail(ctx, grow))
        return XDP_ABORTED;
    if (bpf_xdp_store_bytes(ctx, IB_XDP_FRAME_LEN_BYTES, &packet->header, len_bytes))
        return XDP_ABORTED;
    ib_u8 *data = (ib_u8 *)(long)ctx->data + IB_XDP_FRAME_LEN_BYTES;
    if (data + IB_HEADER_LEN_BYTES > (ib_u8 *)(long)ctx->data_end)
        return XDP_ABORTED;
    /* The next instance in half of the cases, otherwise one of the previous seven. */
    ib_u64 instance = *(volatile ib_u64 *)&regs->highest + 1;
    if (random & 1)
        instance -= random >> 1 & 7;
    /* From one below the promise to two above it. */
    ib_u64 round = *(volatile ib_u64 *)&regs->promise + (random >> 4 & 3) - 1;
    ib_u32 type = IB_PAXOS_PHASE2A;
    if ((random >> 8 & 0xf) == 0) {
        type = IB_PAXOS_PHASE1A;
        if (random >> 12 & 3)
            IB_PUT16(data, flags, (ib_u16)IB_PAXOS_F_SLOT);
    }
    data[__builtin_offsetof(struct ib_paxos_header, type)] = (ib_u8)type;
    IB_PAXOS_PUT64(data, instance, instance);
    IB_PAXOS_PUT64(data, round, round);
    bpf_tail_call(ctx, &ib_roles_map, type);
    return XDP_ABORTED;
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
