/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bare - passes everything: the minimum cost of an attached program. A baseline for measurements,
 * and the program for testing whether programs can be loaded and attached at all.
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

SEC("xdp")
int ib_bare(struct xdp_md *ctx) {
    (void)ctx;
    return XDP_PASS;
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
