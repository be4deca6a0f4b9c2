/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame.p4 - what the v1model programs of all systems have in common: headers, settings, the checks
 * on entry (ground/xdp/validate.h, ground/frame.h), the keyless tag (ground/checksum.h), where a
 * packet goes, and the addresses of copies.
 *
 * constants.p4 is made from the C headers by scripts/p4.
 */
#include <core.p4>
#include <v1model.p4>

#include "constants.p4"

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

/*
 * Sets meta.reason: IB_R_none, or why the packet is dropped. `has_header` is whether the parser has
 * read a whole header. The bitmaps are those of struct ib_family.
 */
control IbFrameCheck(in ipv4_h ipv4, in udp_h udp, in common_h common, in bool has_header,
                     in bit<32> frame_len_bytes, in bool ip_is_damaged, in bit<8> type_first,
                     in bit<8> type_last, in bit<64> padded, in bit<64> from_client,
                     inout meta_t meta) {
    apply {
        bit<32> payload_len_bytes = (bit<32>)udp.len_bytes - 8;
        bit<8> version = common.version;
        bit<8> type = common.type;
        bit<32> value_len_bytes = (bit<32>)common.value_len_bytes;
        bit<32> claimed = IB_HEADER_LEN_BYTES + value_len_bytes;
        bit<16> node = common.node;
        bit<64> type_bit = 64w1 << type;
        meta.reason = IB_R_none;
        if (14 + (bit<32>)ipv4.len_bytes > frame_len_bytes) {
            meta.reason = IB_R_bad_truncated;
        } else if (udp.len_bytes < 8 || 20 + (bit<32>)udp.len_bytes != (bit<32>)ipv4.len_bytes) {
            meta.reason = IB_R_bad_length;
        } else if (ip_is_damaged) {
            meta.reason = IB_R_bad_checksum;
        } else if (!has_header || payload_len_bytes < IB_HEADER_LEN_BYTES) {
            meta.reason = IB_R_bad_truncated;
        } else if (common.magic != IB_MAGIC) {
            meta.reason = IB_R_bad_magic;
        } else if (version < IB_VERSION_MIN || version > IB_VERSION) {
            meta.reason = IB_R_bad_version;
        } else if (type < type_first || type > type_last) {
            meta.reason = IB_R_bad_type;
        } else if (value_len_bytes > IB_VALUE_LEN_MAX_BYTES || claimed > payload_len_bytes) {
            meta.reason = IB_R_bad_length;
        } else if (claimed != payload_len_bytes && (padded & type_bit) == 0) {
            meta.reason = IB_R_bad_length;
        } else if (common.partition >= IB_P4_PARTITIONS) {
            meta.reason = IB_R_bad_partition;
        } else if (node >= IB_NODES_MAX || (node == 0 && (from_client & type_bit) == 0)) {
            meta.reason = IB_R_bad_node;
        }
    }
}

/* Frames that are not ours: by destination address; to the host if it is not known. */
control IbForward(in ethernet_h ethernet, in meta_t meta, inout standard_metadata_t standard) {
    @name(".to_port") action to_port(bit<9> port) {
        standard.egress_spec = port;
    }
    @name(".to_host") action to_host() {
        standard.egress_spec = meta.host_port;
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

/* Sends the packet where the verdict says, rewritten if it does not stay as it is. */
control IbSend(inout ethernet_h ethernet, inout ipv4_h ipv4, inout udp_h udp,
               in bit<16> value_len_bytes, inout meta_t meta, inout standard_metadata_t standard) {
    @name(".reasons") counter(IB_REASONS_MAX, CounterType.packets) reasons; /* of packets of ours */
    apply {
        reasons.count((bit<32>)meta.reason);
        if (meta.verdict == IB_V_DROP) {
            mark_to_drop(standard);
        } else if (meta.verdict == IB_V_PASS) {
            standard.egress_spec = meta.host_port;
        } else {
            bit<48> mac = ethernet.to;
            bit<32> address = ipv4.to;
            bit<16> port = udp.to;
            ethernet.to = ethernet.from;
            ethernet.from = mac;
            ipv4.to = ipv4.from;
            ipv4.from = address;
            udp.to = udp.from;
            udp.from = port;
            udp.len_bytes = 8 + IB_HEADER_LEN_BYTES + value_len_bytes + meta.padding_len_bytes;
            udp.checksum = 0;
            ipv4.len_bytes = 20 + udp.len_bytes;
            ipv4.ttl = IB_XDP_TTL;
            meta.rewritten = 1;
            meta.out_len_bytes = 14 + ipv4.len_bytes;
            if (meta.verdict == IB_V_REPLY) {
                standard.egress_spec = meta.sender_port;
            } else {
                standard.mcast_grp = 1;
            }
        }
    }
}

/* Addresses a copy to its member, by the number of the copy; cuts off padding. */
control IbCopies(inout ethernet_h ethernet, inout ipv4_h ipv4, inout udp_h udp, in meta_t meta,
                 in standard_metadata_t standard) {
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
        key = { standard.egress_rid : exact; }
        actions = { address; NoAction; }
        default_action = NoAction();
        size = IB_XDP_MEMBERS;
    }
    apply {
        if (meta.rewritten == 1) {
            if (meta.verdict == IB_V_GROUP) {
                members.apply();
            }
            truncate((bit<32>)meta.out_len_bytes);
        }
    }
}
