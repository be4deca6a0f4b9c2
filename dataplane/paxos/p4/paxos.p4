/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paxos.p4 - what the roles of Paxos have in common: the header of wire.h, the value, parser,
 * deparser. A role defines IB_VALUE_TYPE, the type of message whose value it checks, before this
 * file.
 */
#include "../../ground/p4/frame.p4"

header paxos_h {
    bit<32> magic;
    bit<8> version;
    bit<8> type;
    bit<16> flags;
    bit<16> partition;
    bit<16> node;
    bit<16> value_len_bytes;
    bit<16> key_id;
    bit<32> epoch;
    bit<32> checksum;
    bit<64> instance;
    bit<64> floor;
    bit<64> round;
    bit<64> vround;
    bit<64> client_id;
    bit<64> client_seq;
    bit<64> client_low;
    bit<64> digest;
    bit<64> tag;
}

/*
 * A value, in the pieces of its checksum (ground/checksum.h): stripes of 32 bytes, words of 8, then
 * 4, 2 and 1 bytes. P4 has no loops, so the length is limited.
 */
#define IB_P4_VALUE_LEN_MAX_BYTES 127

header stripe_h {
    bit<64> a;
    bit<64> b;
    bit<64> c;
    bit<64> d;
}

header word_h {
    bit<64> word;
}

header four_h {
    bit<32> bytes;
}

header two_h {
    bit<16> bytes;
}

header one_h {
    bit<8> bytes;
}

struct headers_t {
    ethernet_h ethernet;
    ipv4_h ipv4;
    udp_h udp;
    paxos_h paxos;
    stripe_h stripe0;
    stripe_h stripe1;
    stripe_h stripe2;
    word_h word0;
    word_h word1;
    word_h word2;
    four_h four;
    two_h two;
    one_h one;
}

/* Bits of a value's length that choose its pieces. */
#define IB_P4_LONGER (0xffff ^ IB_P4_VALUE_LEN_MAX_BYTES)
#define IB_P4_STRIPES 0x60
#define IB_P4_WORDS 0x18

parser IbParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            IB_ETHERTYPE_IPV4 : ipv4;
            default : accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        /* No options; not a fragment. */
        transition select(hdr.ipv4.version_ihl, hdr.ipv4.fragment, hdr.ipv4.protocol) {
            (0x45, 0 &&& 0x3fff, IB_PROTOCOL_UDP) : udp;
            default : accept;
        }
    }
    state udp {
        packet.extract(hdr.udp);
        transition paxos;
    }
    state paxos {
        packet.extract(hdr.paxos);
        transition select(hdr.paxos.magic, hdr.paxos.type, hdr.paxos.value_len_bytes) {
            (IB_MAGIC, IB_VALUE_TYPE, 0 &&& IB_P4_LONGER) : value;
            default : accept;
        }
    }
    state value {
        transition select(hdr.paxos.value_len_bytes) {
            0 &&& IB_P4_STRIPES : words;
            default : stripe0;
        }
    }
    state stripe0 {
        packet.extract(hdr.stripe0);
        transition select(hdr.paxos.value_len_bytes) {
            0x20 &&& IB_P4_STRIPES : words;
            default : stripe1;
        }
    }
    state stripe1 {
        packet.extract(hdr.stripe1);
        transition select(hdr.paxos.value_len_bytes) {
            0x40 &&& IB_P4_STRIPES : words;
            default : stripe2;
        }
    }
    state stripe2 {
        packet.extract(hdr.stripe2);
        transition words;
    }
    state words {
        transition select(hdr.paxos.value_len_bytes) {
            0 &&& IB_P4_WORDS : rest;
            default : word0;
        }
    }
    state word0 {
        packet.extract(hdr.word0);
        transition select(hdr.paxos.value_len_bytes) {
            0x8 &&& IB_P4_WORDS : rest;
            default : word1;
        }
    }
    state word1 {
        packet.extract(hdr.word1);
        transition select(hdr.paxos.value_len_bytes) {
            0x10 &&& IB_P4_WORDS : rest;
            default : word2;
        }
    }
    state word2 {
        packet.extract(hdr.word2);
        transition rest;
    }
    state rest {
        transition select(hdr.paxos.value_len_bytes) {
            4 &&& 4 : four;
            2 &&& 2 : two;
            1 &&& 1 : one;
            default : whole;
        }
    }
    state four {
        packet.extract(hdr.four);
        transition select(hdr.paxos.value_len_bytes) {
            2 &&& 2 : two;
            1 &&& 1 : one;
            default : whole;
        }
    }
    state two {
        packet.extract(hdr.two);
        transition select(hdr.paxos.value_len_bytes) {
            1 &&& 1 : one;
            default : whole;
        }
    }
    state one {
        packet.extract(hdr.one);
        transition whole;
    }
    state whole {
        meta.has_value = 1;
        transition accept;
    }
}

control IbNoChecksums(inout headers_t hdr, inout meta_t meta) {
    apply {}
}

/* Only the IPv4 checksum of what was rewritten: UDP checksum 0 means "none". */
control IbIpChecksum(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(meta.rewritten == 1,
                        { hdr.ipv4.version_ihl, hdr.ipv4.service, hdr.ipv4.len_bytes, hdr.ipv4.id,
                          hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.from,
                          hdr.ipv4.to },
                        hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control IbDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

control IbEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    IbCopies() copies;
    apply {
        copies.apply(hdr.ethernet, hdr.ipv4, hdr.udp, meta, standard);
    }
}

/* The types and the padded ones among them: IB_PAXOS_FAMILY of msg.h. */
#define IB_PADDED_TYPES ((64w1 << IB_PAXOS_PHASE1A) | (64w1 << IB_PAXOS_LEARN))

#define IB_PAXOS_WORD0(p) ((p).magic ++ (p).version ++ (p).type ++ (p).flags)
#define IB_PAXOS_WORD1(p) ((p).partition ++ (p).node ++ (p).value_len_bytes ++ (p).key_id)

control IbPaxosTag(in paxos_h p, out bit<64> tag) {
    apply {
        tag = ib_header_checksum(IB_PAXOS_WORD0(p), IB_PAXOS_WORD1(p), p.epoch ++ p.checksum,
                                 p.instance, p.floor, p.round, p.vround, p.client_id, p.client_seq,
                                 p.client_low, p.digest);
    }
}

/* The checks of ib_paxos_check and ib_verify. */
control IbPaxosCheck(in headers_t hdr, inout meta_t meta, in standard_metadata_t standard) {
    IbCheck() frame;
    IbPaxosTag() expected;
    apply {
        bit<64> tag;
        frame.apply(hdr.ipv4, hdr.udp, hdr.paxos.isValid(), IB_PAXOS_WORD0(hdr.paxos),
                    IB_PAXOS_WORD1(hdr.paxos), standard.packet_length, IB_PAXOS_REQUEST,
                    IB_PAXOS_ALIVE, IB_PADDED_TYPES, 0, meta);
        if (meta.reason == IB_R_none) {
            if (((hdr.paxos.instance | hdr.paxos.floor) >> IB_INSTANCE_BITS) != 0) {
                meta.reason = IB_R_bad_instance;
            } else if (((hdr.paxos.round | hdr.paxos.vround) >> IB_ROUND_BITS) != 0) {
                meta.reason = IB_R_bad_round;
            } else if (hdr.paxos.key_id != 0) {
                meta.reason = IB_R_bad_key;
            } else {
                expected.apply(hdr.paxos, tag);
                if (tag != hdr.paxos.tag) {
                    meta.reason = IB_R_bad_tag;
                }
            }
        }
    }
}

/* Sets meta.reason if the value is longer than this program can read, or is not the one sent. */
control IbValueCheck(in headers_t hdr, inout meta_t meta) {
    apply {
        bit<64> a = IB_SUM_START_0 ^ (bit<64>)hdr.paxos.value_len_bytes;
        bit<64> b = IB_SUM_START_1;
        bit<64> c = IB_SUM_START_2;
        bit<64> d = IB_SUM_START_3;
        bit<64> last = 0;
        if (hdr.stripe0.isValid()) {
            a = ib_sum_step(a, ib_word(hdr.stripe0.a));
            b = ib_sum_step(b, ib_word(hdr.stripe0.b));
            c = ib_sum_step(c, ib_word(hdr.stripe0.c));
            d = ib_sum_step(d, ib_word(hdr.stripe0.d));
        }
        if (hdr.stripe1.isValid()) {
            a = ib_sum_step(a, ib_word(hdr.stripe1.a));
            b = ib_sum_step(b, ib_word(hdr.stripe1.b));
            c = ib_sum_step(c, ib_word(hdr.stripe1.c));
            d = ib_sum_step(d, ib_word(hdr.stripe1.d));
        }
        if (hdr.stripe2.isValid()) {
            a = ib_sum_step(a, ib_word(hdr.stripe2.a));
            b = ib_sum_step(b, ib_word(hdr.stripe2.b));
            c = ib_sum_step(c, ib_word(hdr.stripe2.c));
            d = ib_sum_step(d, ib_word(hdr.stripe2.d));
        }
        if (hdr.word0.isValid()) {
            b = ib_sum_step(b, ib_word(hdr.word0.word));
        }
        if (hdr.word1.isValid()) {
            b = ib_sum_step(b, ib_word(hdr.word1.word));
        }
        if (hdr.word2.isValid()) {
            b = ib_sum_step(b, ib_word(hdr.word2.word));
        }
        if (hdr.four.isValid()) {
            last = (bit<64>)(hdr.four.bytes[7:0] ++ hdr.four.bytes[15:8] ++ hdr.four.bytes[23:16] ++
                             hdr.four.bytes[31:24]);
        }
        if (hdr.two.isValid()) {
            last = last << 16 | (bit<64>)(hdr.two.bytes[7:0] ++ hdr.two.bytes[15:8]);
        }
        if (hdr.one.isValid()) {
            last = last << 8 | (bit<64>)hdr.one.bytes;
        }
        bit<64> sum = ib_sum_end(ib_sum_step(a, last), b, c, d);
        sum = sum ^ (sum >> 32);
        bit<32> checksum = sum[31:0];
        if (hdr.paxos.value_len_bytes == 0) {
            checksum = 0;
        }
        if (meta.has_value == 0) {
            meta.reason = IB_R_no_room;
        } else if (checksum != hdr.paxos.checksum) {
            meta.reason = IB_R_bad_checksum;
        }
    }
}

/* Completes a packet that the role has rewritten, and sends it. */
control IbPaxosSend(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    IbPaxosTag() made;
    IbSend() send;
    apply {
        if (meta.verdict >= IB_V_REPLY) {
            bit<64> tag;
            hdr.paxos.version = IB_VERSION;
            hdr.paxos.node = meta.node;
            hdr.paxos.key_id = 0;
            made.apply(hdr.paxos, tag);
            hdr.paxos.tag = tag;
        }
        send.apply(hdr.ethernet, hdr.ipv4, hdr.udp, hdr.paxos.value_len_bytes, meta, standard);
    }
}

/*
 * The ingress control of a role: `Role` decides on valid packets of ours. It sets meta.verdict and
 * meta.reason; both are "drop" and "none" before.
 */
#define IB_PAXOS_SWITCH(Role)                                                                      \
    control IbIngress(inout headers_t hdr, inout meta_t meta,                                      \
                      inout standard_metadata_t standard) {                                        \
        IbSettings() settings;                                                                     \
        IbPaxosCheck() check;                                                                      \
        IbPaxosSend() send;                                                                        \
        IbForward() forward;                                                                       \
        Role() role;                                                                               \
        apply {                                                                                    \
            settings.apply(meta);                                                                  \
            if (hdr.udp.isValid() && hdr.udp.to == meta.udp_port &&                                \
                hdr.ipv4.to == meta.address) {                                                     \
                meta.verdict = IB_V_DROP;                                                          \
                check.apply(hdr, meta, standard);                                                  \
                if (meta.reason == IB_R_none) {                                                    \
                    role.apply(hdr, meta);                                                         \
                }                                                                                  \
                send.apply(hdr, meta, standard);                                                   \
            } else if (hdr.ethernet.isValid()) {                                                   \
                forward.apply(hdr.ethernet, meta, standard);                                       \
            } else {                                                                               \
                mark_to_drop(standard);                                                            \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    V1Switch(IbParser(), IbNoChecksums(), IbIngress(), IbEgress(), IbIpChecksum(), IbDeparser())   \
    main
