/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.p4 - what the programs of all systems have in common, on every target: headers, settings,
 * the keyless tag (ground/checksum.h), where a packet goes, and the addresses of copies.
 *
 * constants.p4 is made from the C headers by scripts/p4.
 */
#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#elif __TARGET_TOFINO__
#include <tna.p4>
#else
#include <v1model.p4>
#endif

#include "constants.p4"

/* What the parser of a system does at an IPv4 header and behind UDP (start.p4), by target. */
#ifdef __TARGET_TOFINO__
#define IB_PARSER_REST inout meta_t meta
#define IB_PARSER_LOCALS Checksum() ip_sum;
#define IB_AT_IPV4                                                                                 \
    ip_sum.add(hdr.ipv4);                                                                          \
    meta.ip_is_damaged = (bit<1>)ip_sum.verify();
/* A packet that ends within a header is lost in the parser, so only those of enough bytes are read. */
#define IB_BEHIND_UDP                                                                              \
    transition select(hdr.udp.len_bytes) {                                                         \
        0x68 &&& 0xfff8 : ours; /* 8 + IB_HEADER_LEN_BYTES */                                      \
        0x70 &&& 0xfff0 : ours;                                                                    \
        0 &&& 0xff80 : accept;                                                                     \
        default : ours;                                                                            \
    }
#else
#define IB_PARSER_REST inout meta_t meta, inout standard_metadata_t standard
#define IB_PARSER_LOCALS
#define IB_AT_IPV4
#define IB_BEHIND_UDP transition ours;
#endif

/* Headers of an IPv4 packet without options. */
header ethernet_h {
    bit<48> to;
    bit<48> from;
    bit<16> type;
}

header ipv4_h {
    bit<8> version_ihl;
    bit<8> service;
    bit<16> len_bytes;
    bit<16> id;
    bit<16> fragment;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> from;
    bit<32> to;
}

header udp_h {
    bit<16> from;
    bit<16> to;
    bit<16> len_bytes;
    bit<16> checksum;
}

/* What all headers begin with (struct ib_header of ground/frame.h), and what they end with. */
header common_h {
    bit<32> magic;
    bit<8> version;
    bit<8> type;
    bit<16> flags;
    bit<16> partition;
    bit<16> node;
    bit<16> value_len_bytes;
    bit<16> key_id;
}

header tag_h {
    bit<64> tag;
}

#define IB_ETHERTYPE_IPV4 0x0800
#define IB_PROTOCOL_UDP 17

/* Verdicts. */
#define IB_V_DROP 0
#define IB_V_PASS 1  /* to the host, unchanged */
#define IB_V_REPLY 2 /* rewritten, back to the sender */
#define IB_V_GROUP 3 /* rewritten, a copy to every member of the group */

struct meta_t {
    /* Settings of this switch: its own node id and address, the port to its host. */
    bit<16> node;
    bit<32> address;
    bit<16> udp_port;
    bit<9> host_port;

    bit<16> reason;
    bit<8> verdict;
    bit<1> rewritten;
    bit<1> ip_is_damaged;
    bit<1> has_value;          /* the parser has read the whole value */
    bit<9> sender_port;        /* a reply leaves by it */
    bit<48> now_us;            /* when it came in, by the switch's clock */
    bit<16> padding_len_bytes; /* after the value, kept in a rewritten packet */
    bit<16> out_len_bytes;     /* of a rewritten frame */
#ifdef IB_OWN_META
    IB_OWN_META /* of the system */
#endif
}

/* The byte order of ground/checksum.h, in which a word is little-endian. */
bit<64> ib_word(in bit<64> w) {
    return w[7:0] ++ w[15:8] ++ w[23:16] ++ w[31:24] ++ w[39:32] ++ w[47:40] ++ w[55:48] ++
           w[63:56];
}

bit<64> ib_sum_step(in bit<64> lane, in bit<64> word) {
    bit<64> product = (lane ^ word) * IB_SUM_MULTIPLIER;
    return product ^ (product >> 32);
}

bit<64> ib_sum_end(in bit<64> a, in bit<64> b, in bit<64> c, in bit<64> d) {
    return ib_sum_step(ib_sum_step(a, b), ib_sum_step(c, d));
}

/* IB_SUM_START(lane), modulo 2^64. */
#define IB_SUM_START_0 64w0x9e3779b97f4a7c15
#define IB_SUM_START_1 64w0xdaa66d2c7ddf743f
#define IB_SUM_START_2 64w0x1715609f7c746c69
#define IB_SUM_START_3 64w0x538454127b096493

/* The words of a header before its tag. */
struct ib_words_t {
    bit<64> w0;
    bit<64> w1;
    bit<64> w2;
    bit<64> w3;
    bit<64> w4;
    bit<64> w5;
    bit<64> w6;
    bit<64> w7;
    bit<64> w8;
    bit<64> w9;
    bit<64> w10;
}

/* The tag without a key. */
bit<64> ib_header_checksum(in ib_words_t w) {
    bit<64> a = ib_sum_step(IB_SUM_START_0, ib_word(w.w0));
    bit<64> b = ib_sum_step(IB_SUM_START_1, ib_word(w.w1));
    bit<64> c = ib_sum_step(IB_SUM_START_2, ib_word(w.w2));
    bit<64> d = ib_sum_step(IB_SUM_START_3, ib_word(w.w3));
    a = ib_sum_step(a, ib_word(w.w4));
    b = ib_sum_step(b, ib_word(w.w5));
    c = ib_sum_step(c, ib_word(w.w6));
    d = ib_sum_step(d, ib_word(w.w7));
    a = ib_sum_step(a, ib_word(w.w8));
    b = ib_sum_step(b, ib_word(w.w9));
    c = ib_sum_step(c, ib_word(w.w10));
    return ib_sum_end(a, b, c, d);
}

/* Set by the control plane. Without settings no packet is ours. */
control IbSettings(inout meta_t meta) {
    @name(".configure") action configure(bit<16> node, bit<32> address, bit<16> udp_port, bit<9> host_port) {
        meta.node = node;
        meta.address = address;
        meta.udp_port = udp_port;
        meta.host_port = host_port;
    }
    @name(".settings") table settings {
        actions = { configure; NoAction; }
        default_action = NoAction();
    }
    apply {
        settings.apply();
    }
}

/* Frames that are not ours: by destination address; to the host if it is not known. */
control IbForward(in ethernet_h ethernet, in meta_t meta, inout bit<9> out_port) {
    @name(".to_port") action to_port(bit<9> port) {
        out_port = port;
    }
    @name(".to_host") action to_host() {
        out_port = meta.host_port;
    }
    @name(".forward") table forward {
        key = { ethernet.to : exact; }
        actions = { to_port; to_host; }
        default_action = to_host();
        size = 1024;
    }
    apply {
        forward.apply();
    }
}

/* What the IPv4 checksum covers. */
#define IB_IPV4_FIELDS(ipv4)                                                                       \
    {                                                                                              \
        ipv4.version_ihl, ipv4.service, ipv4.len_bytes, ipv4.id, ipv4.fragment, ipv4.ttl,          \
            ipv4.protocol, ipv4.from, ipv4.to                                                      \
    }

/*
 * Turns a packet round that the role has rewritten. On Tofino no role changes the length, and sums at
 * the end of a packet's way take stages.
 */
control IbTurn(inout ethernet_h ethernet, inout ipv4_h ipv4, inout udp_h udp,
               in bit<16> value_len_bytes, inout meta_t meta) {
    apply {
        bit<48> mac = ethernet.to;
        bit<32> address = ipv4.to;
        bit<16> port = udp.to;
        ethernet.to = ethernet.from;
        ethernet.from = mac;
        ipv4.to = ipv4.from;
        ipv4.from = address;
        udp.to = udp.from;
        udp.from = port;
        udp.checksum = 0;
        ipv4.ttl = IB_XDP_TTL;
        meta.rewritten = 1;
#ifndef __TARGET_TOFINO__
        udp.len_bytes = 8 + IB_HEADER_LEN_BYTES + value_len_bytes + meta.padding_len_bytes;
        ipv4.len_bytes = 20 + udp.len_bytes;
        meta.out_len_bytes = 14 + ipv4.len_bytes;
#endif
    }
}

/* Addresses a copy to its member, by the number of the copy. */
control IbMembers(inout ethernet_h ethernet, inout ipv4_h ipv4, inout udp_h udp, in bit<16> copy) {
    @name(".address") action address(bit<48> to_mac, bit<48> from_mac, bit<32> to, bit<32> from, bit<16> to_port,
                   bit<16> from_port) {
        ethernet.to = to_mac;
        ethernet.from = from_mac;
        ipv4.to = to;
        ipv4.from = from;
        udp.to = to_port;
        udp.from = from_port;
    }
    @name(".members") table members {
        key = { copy : exact; }
        actions = { address; NoAction; }
        default_action = NoAction();
        size = IB_XDP_MEMBERS;
    }
    apply {
        members.apply();
    }
}
