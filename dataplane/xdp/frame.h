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

/* The headers of the frame at `data`. Not one packed struct: clang would load that byte by byte. */
#define IB_ETH(data) ((struct ethhdr *)(data))
#define IB_IP(data) ((struct iphdr *)((data) + ETH_HLEN))
#define IB_UDP(data) ((struct udphdr *)((data) + ETH_HLEN + sizeof(struct iphdr)))

_Static_assert(ETH_HLEN + sizeof(struct iphdr) + sizeof(struct udphdr) == IB_XDP_FRAME_LEN_BYTES,
               "Ethernet, IPv4, UDP");

#define IB_IPV4_NO_OPTIONS 0x45      /* version 4, header of five words */
#define IB_IPV4_FRAGMENT_MASK 0x3fff /* more fragments, or an offset */

/* In a section of its own: the map holds this struct and nothing else. */
const volatile struct ib_settings ib_settings SEC(".rodata.settings");

/* Counters by enum ib_reason. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, IB_REASONS_COUNT);
    __type(key, ib_u32);
    __type(value, ib_u64);
} ib_counters_map SEC(".maps");

IB_INLINE void ib_count_reason(ib_u32 reason) {
    ib_u64 *counter = bpf_map_lookup_elem(&ib_counters_map, &reason);
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
IB_INLINE void ib_frame_sizes(ib_u8 *data, ib_u32 payload_len_bytes) {
    IB_IP(data)->tot_len =
        bpf_htons(sizeof(struct iphdr) + sizeof(struct udphdr) + payload_len_bytes);
    IB_IP(data)->ttl = IB_XDP_TTL;
    IB_UDP(data)->len = bpf_htons(sizeof(struct udphdr) + payload_len_bytes);
    IB_UDP(data)->check = 0;
}

/* Back to whoever sent it. */
IB_INLINE void ib_frame_turn(ib_u8 *data) {
    struct ethhdr *eth = IB_ETH(data);
    struct iphdr *ip = IB_IP(data);
    struct udphdr *udp = IB_UDP(data);
    ib_u8 mac[ETH_ALEN];
    __builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
    __builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
    __builtin_memcpy(eth->h_source, mac, ETH_ALEN);
    ib_u32 address = ip->daddr;
    ip->daddr = ip->saddr;
    ip->saddr = address;
    ib_u16 port = udp->dest;
    udp->dest = udp->source;
    udp->source = port;
    ib_ip_finish(ip);
}

/* To one member of a group. */
IB_INLINE void ib_frame_address(ib_u8 *data, const struct ib_member *member) {
    struct ethhdr *eth = IB_ETH(data);
    struct iphdr *ip = IB_IP(data);
    struct udphdr *udp = IB_UDP(data);
    __builtin_memcpy(eth->h_dest, member->to_mac, ETH_ALEN);
    __builtin_memcpy(eth->h_source, member->from_mac, ETH_ALEN);
    ip->daddr = member->to_address;
    ip->saddr = member->from_address;
    udp->dest = member->to_port;
    udp->source = member->from_port;
    ib_ip_finish(ip);
}

#endif
