/* SPDX-License-Identifier: Apache-2.0 */
/* frame.h - the Ethernet, IPv4 and UDP headers of Inband packets, for all XDP programs. */
#ifndef INBAND_GROUND_XDP_FRAME_H
#define INBAND_GROUND_XDP_FRAME_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../auth.h"
#include "settings.h"

/* The headers of the frame at `data`. Not one packed struct, which clang would load byte by
 * byte. */
#define IB_ETH(data) ((struct ethhdr *)(data))
#define IB_IP(data) ((struct iphdr *)((data) + ETH_HLEN))
#define IB_UDP(data) ((struct udphdr *)((data) + ETH_HLEN + sizeof(struct iphdr)))

#ifndef IB_RAW_FRAMES
_Static_assert(ETH_HLEN + sizeof(struct iphdr) + sizeof(struct udphdr) == IB_XDP_FRAME_LEN_BYTES,
               "Ethernet, IPv4, UDP");
#endif

_Static_assert(__builtin_offsetof(struct ib_member, from_mac) ==
                       __builtin_offsetof(struct ib_member, to_mac) + ETH_ALEN &&
                   __builtin_offsetof(struct ib_member, to_mac) % 4 == 0,
               "copied as three words");

/* In its own section, so that the map contains only this struct. */
const volatile struct ib_settings ib_settings SEC(".rodata.settings");

/* Registers: an array that user space maps. The loader sets its size. */
#define IB_REGISTERS(name, of)                                                                     \
    struct {                                                                                       \
        __uint(type, BPF_MAP_TYPE_ARRAY);                                                          \
        __uint(map_flags, BPF_F_MMAPABLE);                                                         \
        __uint(max_entries, 1);                                                                    \
        __type(key, ib_u32);                                                                       \
        __type(value, of);                                                                         \
    } name SEC(".maps")

/* Counters by reason. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, IB_REASONS_MAX);
    __type(key, ib_u32);
    __type(value, ib_u64);
} ib_counters_map SEC(".maps");

/* Used only if the settings say so; otherwise the verifier removes the code. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, struct ib_keys);
} ib_keys_map SEC(".maps");

IB_INLINE const struct ib_keys *ib_keys(void) {
    ib_u32 zero = 0;
    return bpf_map_lookup_elem(&ib_keys_map, &zero);
}

/*
 * The distance between two addresses in a frame; these programs get no fragmented buffers. In
 * assembler, because clang would narrow the difference to 32 bits if it is used as such, and the
 * verifier does not allow 32-bit arithmetic on pointers.
 */
IB_INLINE ib_u32 ib_bytes_between(const ib_u8 *data, const ib_u8 *end) {
    __asm__ volatile("%0 -= %1" : "+r"(end) : "r"(data));
    return (ib_u32)(long)end;
}

/*
 * The helpers that copy need a length that the verifier knows to be from 1 to `max_bytes`. After a
 * comparison, Linux 6.1 knows the range of the compared register, but not of its copy on the stack,
 * which clang may load for the call. So comparison and result are one piece of assembler. Callers
 * have already rejected other lengths.
 */
#define IB_COPY_LEN(len_bytes, max_bytes)                                                          \
    ({                                                                                             \
        ib_u64 known = (len_bytes) - 1;                                                            \
        __asm__ volatile("if %0 <= %1 goto +1\n%0 = %1\n%0 += 1"                                   \
                         : "+r"(known)                                                             \
                         : "i"((max_bytes) - 1));                                                  \
        known;                                                                                     \
    })

/* Four bytes of the frame, in network order. */
#define IB_FRAME32(data, at_bytes) (*(const ib_wire32 *)((data) + (at_bytes)))

/* Bytes 12 to 15 of the frame: Ethernet type, IP version and header length (and type of
 * service). */
#define IB_IPV4_MASK bpf_htonl(0xffffff00)
#define IB_IPV4 bpf_htonl(ETH_P_IP << 16 | 0x4500) /* a header of five words: no options */
/* Bytes 20 to 23: IP fragment fields (time to live) and protocol. Matches unfragmented packets
 * only. */
#define IB_WHOLE_UDP_MASK bpf_htonl(0x3fff00ff)
#define IB_WHOLE_UDP bpf_htonl(IPPROTO_UDP)

IB_INLINE int ib_is_ours(const ib_u8 *data) {
    return (IB_FRAME32(data, 12) & IB_IPV4_MASK) == IB_IPV4 &&
           (IB_FRAME32(data, 20) & IB_WHOLE_UDP_MASK) == IB_WHOLE_UDP &&
           IB_UDP(data)->dest == ib_settings.port && IB_IP(data)->daddr == ib_settings.address;
}

IB_INLINE void ib_count_reason(ib_u32 reason) {
    ib_u64 *counter = bpf_map_lookup_elem(&ib_counters_map, &reason);
    if (counter)
        *counter += 1;
}

/*
 * Sets addresses and checksum of the IPv4 header of a packet of ours whose other fields are already
 * set (ib_frame_sizes). It reads nothing that was just written in smaller pieces, which would be
 * slow.
 */
IB_INLINE void ib_ip_address(struct iphdr *ip, ib_u32 from, ib_u32 to) {
    ib_u32 sum = *(const ib_wire16 *)ip + ip->tot_len + ip->id + ip->frag_off +
                 bpf_htons(IB_XDP_TTL << 8 | IPPROTO_UDP) + (from & 0xffff) + (from >> 16) +
                 (to & 0xffff) + (to >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    ip->saddr = from;
    ip->daddr = to;
    ip->check = (ib_u16)~sum;
}

/*
 * Writes the headers of a packet of ours with this payload length. The IP checksum is left to
 * ib_ip_address. UDP checksum 0 means "none" (legal over IPv4): tag and checksum protect the
 * packet.
 */
IB_INLINE void ib_frame_sizes(ib_u8 *data, ib_u32 payload_len_bytes) {
    IB_IP(data)->tot_len =
        bpf_htons(sizeof(struct iphdr) + sizeof(struct udphdr) + payload_len_bytes);
    IB_IP(data)->ttl = IB_XDP_TTL;
    IB_UDP(data)->len = bpf_htons(sizeof(struct udphdr) + payload_len_bytes);
    IB_UDP(data)->check = 0;
}

/* Addresses the packet to its sender. */
IB_INLINE void ib_frame_turn(ib_u8 *data) {
    struct ethhdr *eth = IB_ETH(data);
    struct iphdr *ip = IB_IP(data);
    struct udphdr *udp = IB_UDP(data);
    ib_u8 mac[ETH_ALEN];
    __builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
    __builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
    __builtin_memcpy(eth->h_source, mac, ETH_ALEN);
    ib_ip_address(ip, ip->daddr, ip->saddr);
    ib_u16 port = udp->dest;
    udp->dest = udp->source;
    udp->source = port;
}

/* Addresses the packet to a member of a group. */
IB_INLINE void ib_frame_address(ib_u8 *data, const struct ib_member *member) {
    struct iphdr *ip = IB_IP(data);
    struct udphdr *udp = IB_UDP(data);
    /* Both addresses at once: they have the same layout in the member and in the frame. */
    for (ib_u32 at = 0; at < 2 * ETH_ALEN; at += 4)
        *(ib_wire32 *)(data + at) = *(const ib_wire32 *)(member->to_mac + at);
    ib_ip_address(ip, member->from_address, member->to_address);
    udp->dest = member->to_port;
    udp->source = member->from_port;
}

#endif
