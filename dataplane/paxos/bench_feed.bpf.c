/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_feed - sends REQUESTs out of an interface, run by BPF_PROG_TEST_RUN with live frames. The
 * network finishes processing a frame on the same CPU before the next batch of frames is made. So
 * the time between two frames is the time of everything that one causes.
 *
 * Frames are recycled: the program rewrites the headers left by the last packet in the same memory.
 * Floors are raised directly in the registers, with the same effect as TRIM packets.
 */
#include "../ground/xdp/frame.h"
#include "bench.h"
#include "registers.h"

IB_REGISTERS(ib_feed_map, struct ib_feed);

#define IB_REGS_OF(role, name)                                                                     \
    struct {                                                                                       \
        __uint(type, BPF_MAP_TYPE_ARRAY);                                                          \
        __uint(map_flags, BPF_F_MMAPABLE);                                                         \
        __uint(max_entries, 1);                                                                    \
        __type(key, ib_u32);                                                                       \
        __type(value, struct ib_##role##_regs);                                                    \
    } name SEC(".maps")

/* Shared with the roles that receive the packets. */
IB_REGS_OF(leader, ib_leader_map);
IB_REGS_OF(acceptor, ib_acceptor_0_map);
IB_REGS_OF(acceptor, ib_acceptor_1_map);
IB_REGS_OF(acceptor, ib_acceptor_2_map);

#define IB_RAISE_FLOOR(map, to)                                                                    \
    do {                                                                                           \
        struct ib_acceptor_regs *regs = bpf_map_lookup_elem(&(map), &zero);                        \
        if (regs)                                                                                  \
            regs->floor = (to);                                                                    \
    } while (0)

IB_INLINE void ib_raise_floors(struct ib_leader_regs *leader, ib_u64 behind) {
    ib_u32 zero = 0;
    if (leader->next <= leader->floor + behind)
        return;
    ib_u64 floor = leader->next - behind;
    IB_RAISE_FLOOR(ib_acceptor_0_map, floor);
    IB_RAISE_FLOOR(ib_acceptor_1_map, floor);
    IB_RAISE_FLOOR(ib_acceptor_2_map, floor);
    leader->floor = floor;
}

IB_INLINE void ib_read_clock(struct ib_feed *feed) {
    ib_u64 now_ns = bpf_ktime_get_ns(), window = feed->windows;
    if (feed->last_ns && window < IB_BENCH_WINDOWS_MAX) {
        feed->window_ns[window] = now_ns - feed->last_ns;
        feed->windows = window + 1;
    }
    feed->last_ns = now_ns;
}

SEC("xdp")
int ib_feed_xdp(struct xdp_md *ctx) {
    ib_u8 *data = (ib_u8 *)(long)ctx->data;
    if (data + IB_BENCH_HEADERS_LEN_BYTES > (ib_u8 *)(long)ctx->data_end)
        return XDP_ABORTED;
    ib_u32 zero = 0;
    struct ib_feed *feed = bpf_map_lookup_elem(&ib_feed_map, &zero);
    struct ib_leader_regs *leader = bpf_map_lookup_elem(&ib_leader_map, &zero);
    if (!feed || !leader)
        return XDP_ABORTED;
    __builtin_memcpy(data, feed->headers, IB_BENCH_HEADERS_LEN_BYTES);
    ib_u64 packets = feed->packets;
    if ((packets & (feed->floor_packets - 1)) == 0)
        ib_raise_floors(leader, feed->floor_packets);
    if ((packets & (feed->window_packets - 1)) == 0)
        ib_read_clock(feed);
    feed->packets = packets + 1;
    return XDP_TX;
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
