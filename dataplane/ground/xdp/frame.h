/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.h - Ethernet, IPv4 and UDP around an Inband packet, for every XDP program.
 */
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

/* The headers of the frame at `data`. Not one packed struct: clang would load that byte by byte. */
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

/* In a section of its own: the map holds this struct and nothing else. */
const volatile struct ib_settings ib_settings SEC(".rodata.settings");

/* Registers: an array that user space maps. The loader sets how many there are. */
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

/* Used only if the settings say so; otherwise the verifier takes the code out. */
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
 * Bytes between two addresses in a frame: these programs get none in fragments. In assembler,
 * because clang narrows a difference that is used as 32 bits, and the verifier allows none of
 * pointers.
 */
IB_INLINE ib_u32 ib_bytes_between(const ib_u8 *data, const ib_u8 *end) {
    __asm__ volatile("%0 -= %1" : "+r"(end) : "r"(data));
    return (ib_u32)(long)end;
}

/*
 * The helpers that copy want a length that the verifier knows to be from 1 to `max_bytes`. After a
 * comparison, Linux 6.1 knows that of the register compared, and not of its copy in the stack,
 * which clang may load for the call: so comparison and result are one piece of assembler. Callers
 * have refused any other length.
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

/* Bytes 12 to 15 of the frame: Ethernet's type, IP's version and length (and its type of service).
 */
#define IB_IPV4_MASK bpf_htonl(0xffffff00)
#define IB_IPV4 bpf_htonl(ETH_P_IP << 16 | 0x4500) /* a header of five words: no options */
/* Bytes 20 to 23: IP's fragment and (time to live and) protocol. Neither a fragment nor its first.
 */
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
 * Set addresses and checksum of the IPv4 header of a packet of ours, whose other fields are right
 * (ib_frame_sizes). Nothing is read back that was just written in pieces: that takes long.
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
 * Make the headers those of a packet of ours of the given payload. The IP checksum is left to
 * ib_ip_address. UDP checksum 0 says "none" (legal over IPv4): tag and checksum guard the packet.
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
    ib_ip_address(ip, ip->daddr, ip->saddr);
    ib_u16 port = udp->dest;
    udp->dest = udp->source;
    udp->source = port;
}

/* To one member of a group. */
IB_INLINE void ib_frame_address(ib_u8 *data, const struct ib_member *member) {
    struct iphdr *ip = IB_IP(data);
    struct udphdr *udp = IB_UDP(data);
    /* Both addresses at once: they lie in the member as in the frame. */
    for (ib_u32 at = 0; at < 2 * ETH_ALEN; at += 4)
        *(ib_wire32 *)(data + at) = *(const ib_wire32 *)(member->to_mac + at);
    ib_ip_address(ip, member->from_address, member->to_address);
    udp->dest = member->to_port;
    udp->source = member->from_port;
}

#endif
