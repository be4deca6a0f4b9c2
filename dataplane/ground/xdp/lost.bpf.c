/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lost - counts frames of Inband's programs that the kernel or the driver dropped instead of
 * sending. A program only returns a verdict on a frame; the kernel's tracepoints report failures
 * after that. A tracepoint fires for the whole machine, and two of these fire for every batch of
 * frames, so all hosts on one kernel share one instance of these programs.
 */
#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "lost.h"

/* The fields of the kernel's structs that are read; libbpf relocates them. */
struct ns_common {
    unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
    struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
    struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;

struct net_device {
    int ifindex;
    possible_net_t nd_net;
} __attribute__((preserve_access_index));

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
    __uint(max_entries, IB_LOST_INTERFACES_MAX);
    __type(key, struct ib_lost_interface);
    __type(value, struct ib_lost_counts);
} ib_lost_map SEC(".maps");

static __always_inline void ib_lost(const struct net_device *device, enum ib_lost_counter counter,
                                    ib_u64 count) {
    struct ib_lost_interface interface = {
        .namespace_inode = BPF_CORE_READ(device, nd_net.net, ns.inum),
        .ifindex = (ib_u32)BPF_CORE_READ(device, ifindex),
    };
    struct ib_lost_counts *lost = bpf_map_lookup_elem(&ib_lost_map, &interface);
    if (lost)
        lost->counts[counter] += count;
}

/* (device, program, action): also called for ABORTED, which the programs count themselves. */
SEC("raw_tp/xdp_exception")
int ib_lost_exception(struct bpf_raw_tracepoint_args *ctx) {
    if ((ib_u32)ctx->args[2] == XDP_TX)
        ib_lost((const struct net_device *)ctx->args[0], IB_LOST_TRANSMITS, 1);
    return 0;
}

/* (device, sent, dropped, error): virtual interfaces also send in batches. */
SEC("raw_tp/xdp_bulk_tx")
int ib_lost_transmits(struct bpf_raw_tracepoint_args *ctx) {
    int dropped = (int)ctx->args[2];
    if (dropped > 0)
        ib_lost((const struct net_device *)ctx->args[0], IB_LOST_TRANSMITS, (ib_u64)dropped);
    return 0;
}

/* (source device, program, target, error, ...) */
SEC("raw_tp/xdp_redirect_err")
int ib_lost_redirect(struct bpf_raw_tracepoint_args *ctx) {
    ib_lost((const struct net_device *)ctx->args[0], IB_LOST_COPIES, 1);
    return 0;
}

/* (source device, target device, sent, dropped, error): for every batch sent. */
SEC("raw_tp/xdp_devmap_xmit")
int ib_lost_copies(struct bpf_raw_tracepoint_args *ctx) {
    int dropped = (int)ctx->args[3];
    if (dropped > 0)
        ib_lost((const struct net_device *)ctx->args[1], IB_LOST_COPIES, (ib_u64)dropped);
    return 0;
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
