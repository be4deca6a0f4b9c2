/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest program: everything passes. A host with it behaves as one without, but its frames
 * take the same way as a host's with roles; benchmarks compare against it. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

SEC("xdp")
int lab_pass(struct xdp_md *ctx) {
    (void)ctx;
    return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
