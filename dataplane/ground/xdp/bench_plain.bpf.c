/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_plain - the baseline without any processing: forwards each packet unparsed to every
 * interface in its map, or drops it if there is none. Counts the packets.
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "settings.h"

struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, IB_XDP_GROUP_ENTRIES); /* same size as the roles' maps */
    __type(key, ib_u32);
    __type(value, ib_u32);
} ib_plain_map SEC(".maps");

/* Interfaces in the map. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, ib_u64);
} ib_fan_out_map SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, ib_u64);
} ib_came_map SEC(".maps");

SEC("xdp")
int ib_plain_xdp(struct xdp_md *ctx) {
    (void)ctx;
    ib_u32 zero = 0;
    ib_u64 *came = bpf_map_lookup_elem(&ib_came_map, &zero);
    ib_u64 *fan_out = bpf_map_lookup_elem(&ib_fan_out_map, &zero);
    if (!came || !fan_out)
        return XDP_ABORTED;
    *came += 1;
    if (*fan_out > 1)
        return (int)bpf_redirect_map(&ib_plain_map, 0, BPF_F_BROADCAST);
    return *fan_out ? (int)bpf_redirect_map(&ib_plain_map, 0, 0) : XDP_DROP;
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
