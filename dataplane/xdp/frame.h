/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.h - Ethernet, IPv4 and UDP around an Inband packet, for every XDP program.
 */
#ifndef INBAND_XDP_FRAME_H
#define INBAND_XDP_FRAME_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../inband/msg.h"
#include "../inband/registers.h"
#include "settings.h"

/* The three headers as they lie in the packet. Packed: IPv4 starts at an odd half word. */
struct ib_frame_headers {
    struct ethhdr eth;
    struct iphdr ip;
    struct udphdr udp;
} __attribute__((packed, aligned(2)));

_Static_assert(sizeof(struct ib_frame_headers) == IB_XDP_FRAME_LEN_BYTES, "no padding");

#define IB_IPV4_NO_OPTIONS 0x45    /* version 4, header of five words */
#define IB_IPV4_FRAGMENT_MASK 0x3fff /* more fragments, or an offset */

/* In a section of its own: the map holds this struct and nothing else. */
const volatile struct ib_settings ib_settings SEC(".rodata.settings");

/* Counters by enum ib_reason. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, IB_REASONS_COUNT);
    __type(key, ib_u32);
    __type(value, ib_u64);
} ib_counters SEC(".maps");

IB_INLINE void ib_count_reason(ib_u32 reason) {
    ib_u64 *counter = bpf_map_lookup_elem(&ib_counters, &reason);
    if (counter)
        *counter += 1;
}

/* The checksum of an IPv4 header whose checksum field is zero. */
IB_INLINE ib_u16 ib_ip_checksum(const struct iphdr *ip) {
    const ib_u16 *half = (const ib_u16 *)ip;
    ib_u32 sum = 0;
    for (int i = 0; i < 10; i++)
        sum += half[i];
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (ib_u16)~sum;
}

/* Call when everything else in the IPv4 header is right. */
IB_INLINE void ib_ip_finish(struct iphdr *ip) {
    ip->check = 0;
    ip->check = ib_ip_checksum(ip);
}

/*
 * Make the headers those of a packet of ours of the given payload. The IP checksum is left to
 * ib_ip_finish. UDP checksum 0 says "none" (legal over IPv4): the digest guards the value.
 */
IB_INLINE void ib_frame_sizes(struct ib_frame_headers *h, ib_u32 payload_len_bytes) {
    h->ip.tot_len = bpf_htons(sizeof(h->ip) + sizeof(h->udp) + payload_len_bytes);
    h->ip.ttl = IB_XDP_TTL;
    h->udp.len = bpf_htons(sizeof(h->udp) + payload_len_bytes);
    h->udp.check = 0;
}

/* Back to whoever sent it. */
IB_INLINE void ib_frame_turn(struct ib_frame_headers *h) {
    ib_u8 mac[ETH_ALEN];
    __builtin_memcpy(mac, h->eth.h_dest, ETH_ALEN);
    __builtin_memcpy(h->eth.h_dest, h->eth.h_source, ETH_ALEN);
    __builtin_memcpy(h->eth.h_source, mac, ETH_ALEN);
    ib_u32 address = h->ip.daddr;
    h->ip.daddr = h->ip.saddr;
    h->ip.saddr = address;
    ib_u16 port = h->udp.dest;
    h->udp.dest = h->udp.source;
    h->udp.source = port;
    ib_ip_finish(&h->ip);
}

/* To one member of a group. */
IB_INLINE void ib_frame_address(struct ib_frame_headers *h, const struct ib_member *member) {
    __builtin_memcpy(h->eth.h_dest, member->to_mac, ETH_ALEN);
    __builtin_memcpy(h->eth.h_source, member->from_mac, ETH_ALEN);
    h->ip.daddr = member->to_address;
    h->ip.saddr = member->from_address;
    h->udp.dest = member->to_port;
    h->udp.source = member->from_port;
    ib_ip_finish(&h->ip);
}

#endif
