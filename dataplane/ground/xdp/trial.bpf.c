/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial - tests whether an interface sends the frames that XDP sends. Not every driver reports that
 * it drops them; a neighbour's answer is proof. The frames are ARP requests, which every neighbour
 * answers, whether or not it runs Inband.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "trial.h"

/* <linux/if_arp.h> defines them, but includes the C library. */
enum { IB_ARP_QUESTION = 1, IB_ARP_ANSWER = 2 };

struct ib_arp_frame {
    ib_u8 to[6];
    ib_u8 from[6];
    ib_u16 ethertype;
    ib_u16 hardware;
    ib_u16 protocol;
    ib_u8 hardware_len;
    ib_u8 protocol_len;
    ib_u16 operation;
    ib_u8 sender_mac[6];
    ib_u8 sender[4];
    ib_u8 target_mac[6];
    ib_u8 target[4];
} __attribute__((packed));

_Static_assert(sizeof(struct ib_arp_frame) == IB_TRIAL_FRAME_LEN_BYTES, "Ethernet, ARP");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, struct ib_trial);
} ib_trial_map SEC(".maps");

/* The interface under trial, once for each copy to make. */
struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, IB_TRIAL_COPIES);
    __type(key, ib_u32);
    __type(value, struct bpf_devmap_val);
} ib_trial_devices_map SEC(".maps");

static inline ib_u32 ib_address(const ib_u8 *at) {
    ib_u32 address;
    __builtin_memcpy(&address, at, sizeof(address));
    return address;
}

SEC("xdp")
int ib_trial_xdp(struct xdp_md *ctx) {
    struct ib_arp_frame *arp = (struct ib_arp_frame *)(long)ctx->data;
    if ((void *)(arp + 1) > (void *)(long)ctx->data_end)
        return XDP_PASS;
    ib_u32 zero = 0;
    struct ib_trial *trial = bpf_map_lookup_elem(&ib_trial_map, &zero);
    if (!trial || arp->ethertype != bpf_htons(ETH_P_ARP) || arp->protocol_len != 4)
        return XDP_PASS;
    ib_u32 sender = ib_address(arp->sender), target = ib_address(arp->target);
    /* Our own request: a live frame of the loader. */
    if (arp->operation == bpf_htons(IB_ARP_QUESTION) && sender == trial->address &&
        target == trial->neighbour)
        return (int)bpf_redirect_map(&ib_trial_devices_map, 0, BPF_F_BROADCAST);
    if (arp->operation != bpf_htons(IB_ARP_ANSWER) || target != trial->address)
        return XDP_PASS;
    if (!trial->neighbour) {
        __builtin_memcpy(trial->neighbour_mac, arp->sender_mac, sizeof(arp->sender_mac));
        trial->neighbour = sender;
    }
    if (sender != trial->neighbour)
        return XDP_PASS;
    __sync_fetch_and_add(&trial->answers, 1);
    if (!trial->transmits)
        return XDP_PASS;
    trial->transmits -= 1;
    __builtin_memcpy(arp->to, arp->sender_mac, sizeof(arp->to));
    __builtin_memcpy(arp->from, trial->mac, sizeof(arp->from));
    arp->operation = bpf_htons(IB_ARP_QUESTION);
    __builtin_memcpy(arp->sender_mac, trial->mac, sizeof(arp->sender_mac));
    __builtin_memcpy(arp->sender, &trial->address, sizeof(arp->sender));
    __builtin_memset(arp->target_mac, 0, sizeof(arp->target_mac));
    __builtin_memcpy(arp->target, &sender, sizeof(arp->target));
    return XDP_TX;
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
