/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paxos.p4 - what the roles of Paxos have in common: the header of wire.h, the value, parser,
 * deparser. Before this file a role defines IB_VALUE_TYPE, the type of message whose value it reads
 * (0: it reads no values), and IB_VOTES_IN_WORDS, if the numbers of votes are in registers.p4 too.
 */
#include "../../ground/p4/frame.p4"

#if IB_P4_RING_SLOTS & (IB_P4_RING_SLOTS - 1)
#error "a ring has a power of two of slots"
#endif

/* A switch chip has words of 32 bits; p4c-barefoot finds no place for longer fields that it compares. */
#define IB_NUMBER(field)                                                                           \
    bit<32> field##_high;                                                                          \
    bit<32> field##_low;
#define IB_NUMBER_OF(hdr, field) (hdr.paxos.field##_high ++ hdr.paxos.field##_low)
#ifdef IB_VOTES_IN_WORDS
#define IB_VOTE_NUMBER(field) IB_NUMBER(field)
#define IB_VOTE_NUMBER_OF(hdr, field) IB_NUMBER_OF(hdr, field)
#else
#define IB_VOTE_NUMBER(field) bit<64> field;
#define IB_VOTE_NUMBER_OF(hdr, field) hdr.paxos.field
#endif

/* Without the first 16 bytes and the tag. */
header paxos_h {
    bit<32> epoch;
    bit<32> checksum;
    IB_NUMBER(instance)
    IB_NUMBER(floor)
    IB_NUMBER(round)
    IB_VOTE_NUMBER(vround)
    IB_VOTE_NUMBER(client_id)
    IB_VOTE_NUMBER(client_seq)
    IB_VOTE_NUMBER(client_low)
    IB_NUMBER(digest)
}

/*
 * A value, in the pieces of its checksum (ground/checksum.h): stripes of 32 bytes, words of 8, then
 * 4, 2 and 1 bytes. P4 has no loops, so the length is limited: to all of these pieces, and on Tofino,
 * where they take too much of what carries a packet, to the last ones.
 */
#ifdef __TARGET_TOFINO__
#define IB_P4_VALUE_LEN_MAX_BYTES 7
#else
#define IB_P4_HAS_STRIPES
#define IB_P4_HAS_WORDS
#define IB_P4_VALUE_LEN_MAX_BYTES 127
#endif

header stripe_h {
    bit<32> a_high;
    bit<32> a_low;
    bit<32> b_high;
    bit<32> b_low;
    bit<32> c_high;
    bit<32> c_low;
    bit<32> d_high;
    bit<32> d_low;
}

header word_h {
    bit<32> w_high;
    bit<32> w_low;
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
    common_h common;
    paxos_h paxos;
    tag_h tag;
#if IB_VALUE_TYPE
#ifdef IB_P4_HAS_STRIPES
    stripe_h stripe0;
    stripe_h stripe1;
    stripe_h stripe2;
#endif
#ifdef IB_P4_HAS_WORDS
    word_h word0;
    word_h word1;
    word_h word2;
#endif
    four_h four;
    two_h two;
    one_h one;
#endif
}

/* Bits of a value's length that choose its pieces. */
#define IB_P4_LONGER (0xffff ^ IB_P4_VALUE_LEN_MAX_BYTES)
#define IB_P4_STRIPES 0x60
#define IB_P4_WORDS 0x18
#ifdef __TARGET_TOFINO__
#define IB_AT_PADDING                                                                              \
    (IB_PAXOS_PHASE1A, _) : header_and_padding;                                                    \
    (IB_PAXOS_LEARN, _) : header_and_padding;
#else
#define IB_AT_PADDING
#endif

parser IbParser(packet_in packet, out headers_t hdr, IB_PARSER_REST) {
    IB_PARSER_LOCALS
#include "../../ground/p4/start.p4"
    /* A switch chip keeps few bytes of what it has read to decide on later. */
    state ours {
        packet.extract(hdr.common);
#if IB_VALUE_TYPE
        transition select(hdr.common.magic) {
            IB_MAGIC : known;
            default : header_alone;
        }
    }
    state known {
        transition select(hdr.common.type, hdr.common.value_len_bytes) {
            (IB_VALUE_TYPE, 0 &&& IB_P4_LONGER) : header_and_value;
            IB_AT_PADDING
            default : header_alone;
        }
    }
    state header_and_value {
        packet.extract(hdr.paxos);
        packet.extract(hdr.tag);
        transition value;
    }
#ifdef __TARGET_TOFINO__
    /* As much padding as the longest value, whose place it has to give to one in the answer. All senders
     * pad these packets to full size, and one without as much is lost. */
    state header_and_padding {
        packet.extract(hdr.paxos);
        packet.extract(hdr.tag);
#ifdef IB_P4_HAS_WORDS
        packet.extract(hdr.word0);
        packet.extract(hdr.word1);
        packet.extract(hdr.word2);
#endif
        packet.extract(hdr.four);
        packet.extract(hdr.two);
        packet.extract(hdr.one);
        transition accept;
    }
#endif
    state header_alone {
        packet.extract(hdr.paxos);
        packet.extract(hdr.tag);
        transition accept;
    }
#ifdef IB_P4_HAS_STRIPES
    state value {
        transition select(hdr.common.value_len_bytes) {
            0 &&& IB_P4_STRIPES : words;
            default : stripe0;
        }
    }
    state stripe0 {
        packet.extract(hdr.stripe0);
        transition select(hdr.common.value_len_bytes) {
            0x20 &&& IB_P4_STRIPES : words;
            default : stripe1;
        }
    }
    state stripe1 {
        packet.extract(hdr.stripe1);
        transition select(hdr.common.value_len_bytes) {
            0x40 &&& IB_P4_STRIPES : words;
            default : stripe2;
        }
    }
    state stripe2 {
        packet.extract(hdr.stripe2);
        transition words;
    }
#else
    state value {
        transition words;
    }
#endif
#ifdef IB_P4_HAS_WORDS
    state words {
        transition select(hdr.common.value_len_bytes) {
            0 &&& IB_P4_WORDS : rest;
            default : word0;
        }
    }
    state word0 {
        packet.extract(hdr.word0);
        transition select(hdr.common.value_len_bytes) {
            0x8 &&& IB_P4_WORDS : rest;
            default : word1;
        }
    }
    state word1 {
        packet.extract(hdr.word1);
        transition select(hdr.common.value_len_bytes) {
            0x10 &&& IB_P4_WORDS : rest;
            default : word2;
        }
    }
    state word2 {
        packet.extract(hdr.word2);
        transition rest;
    }
#else
    state words {
        transition rest;
    }
#endif
    state rest {
        transition select(hdr.common.value_len_bytes) {
            4 &&& 4 : four;
            2 &&& 2 : two;
            1 &&& 1 : one;
            default : accept;
        }
    }
    state four {
        packet.extract(hdr.four);
        transition select(hdr.common.value_len_bytes) {
            2 &&& 2 : two;
            1 &&& 1 : one;
            default : accept;
        }
    }
    state two {
        packet.extract(hdr.two);
        transition select(hdr.common.value_len_bytes) {
            1 &&& 1 : one;
            default : accept;
        }
    }
    state one {
        packet.extract(hdr.one);
        transition accept;
    }
#else
        packet.extract(hdr.paxos);
        packet.extract(hdr.tag);
        transition accept;
    }
#endif
}

/* IB_PAXOS_FAMILY of msg.h. */
#define IB_TYPE_FIRST IB_PAXOS_REQUEST
#define IB_TYPE_LAST IB_PAXOS_ALIVE
#define IB_IS_PADDED(type) (type == IB_PAXOS_PHASE1A || type == IB_PAXOS_LEARN)
#define IB_IS_FROM_CLIENT(type) false

#define IB_BODY(hdr)                                                                               \
    hdr.paxos.epoch ++ hdr.paxos.checksum, IB_NUMBER_OF(hdr, instance),                            \
        IB_NUMBER_OF(hdr, floor), IB_NUMBER_OF(hdr, round), IB_VOTE_NUMBER_OF(hdr, vround),        \
        IB_VOTE_NUMBER_OF(hdr, client_id), IB_VOTE_NUMBER_OF(hdr, client_seq),                     \
        IB_VOTE_NUMBER_OF(hdr, client_low), IB_NUMBER_OF(hdr, digest)

#include "../../ground/p4/switch.p4"

/* The rest of ib_paxos_check. */
control IbPaxosCheck(in headers_t hdr, inout meta_t meta) {
#ifdef IB_VOTES_IN_WORDS
    bit<32> instance_excess;
    bit<32> floor_excess;
    bit<32> round_excess;
    bit<32> vround_excess;
    action mask() {
        instance_excess = hdr.paxos.instance_high & (0xffffffff ^ ((1 << (IB_INSTANCE_BITS - 32)) - 1));
        floor_excess = hdr.paxos.floor_high & (0xffffffff ^ ((1 << (IB_INSTANCE_BITS - 32)) - 1));
        round_excess = hdr.paxos.round_high & (0xffffffff ^ ((1 << (IB_ROUND_BITS - 32)) - 1));
        vround_excess = hdr.paxos.vround_high & (0xffffffff ^ ((1 << (IB_ROUND_BITS - 32)) - 1));
    }
    apply {
        mask();
        if (instance_excess != 0) {
            meta.reason = IB_R_bad_instance;
        } else if (floor_excess != 0) {
            meta.reason = IB_R_bad_instance;
        } else if (round_excess != 0) {
            meta.reason = IB_R_bad_round;
        } else if (vround_excess != 0) {
            meta.reason = IB_R_bad_round;
        }
    }
#else
    apply {
        if (IB_NUMBER_OF(hdr, instance)[63:IB_INSTANCE_BITS] != 0) {
            meta.reason = IB_R_bad_instance;
        } else if (IB_NUMBER_OF(hdr, floor)[63:IB_INSTANCE_BITS] != 0) {
            meta.reason = IB_R_bad_instance;
        } else if (IB_NUMBER_OF(hdr, round)[63:IB_ROUND_BITS] != 0) {
            meta.reason = IB_R_bad_round;
        } else if (IB_VOTE_NUMBER_OF(hdr, vround)[63:IB_ROUND_BITS] != 0) {
            meta.reason = IB_R_bad_round;
        }
    }
#endif
}

#if IB_VALUE_TYPE
/* Sets meta.reason if the value is longer than this program can read, or, except on Tofino, is not the
 * one sent. */
control IbValueCheck(in headers_t hdr, inout meta_t meta) {
    apply {
#ifndef __TARGET_TOFINO__
        bit<64> a = IB_SUM_START_0 ^ (bit<64>)hdr.common.value_len_bytes;
        bit<64> b = IB_SUM_START_1;
        bit<64> c = IB_SUM_START_2;
        bit<64> d = IB_SUM_START_3;
        bit<64> last = 0;
        if (hdr.stripe0.isValid()) {
            a = ib_sum_step(a, ib_word(hdr.stripe0.a_high ++ hdr.stripe0.a_low));
            b = ib_sum_step(b, ib_word(hdr.stripe0.b_high ++ hdr.stripe0.b_low));
            c = ib_sum_step(c, ib_word(hdr.stripe0.c_high ++ hdr.stripe0.c_low));
            d = ib_sum_step(d, ib_word(hdr.stripe0.d_high ++ hdr.stripe0.d_low));
        }
        if (hdr.stripe1.isValid()) {
            a = ib_sum_step(a, ib_word(hdr.stripe1.a_high ++ hdr.stripe1.a_low));
            b = ib_sum_step(b, ib_word(hdr.stripe1.b_high ++ hdr.stripe1.b_low));
            c = ib_sum_step(c, ib_word(hdr.stripe1.c_high ++ hdr.stripe1.c_low));
            d = ib_sum_step(d, ib_word(hdr.stripe1.d_high ++ hdr.stripe1.d_low));
        }
        if (hdr.stripe2.isValid()) {
            a = ib_sum_step(a, ib_word(hdr.stripe2.a_high ++ hdr.stripe2.a_low));
            b = ib_sum_step(b, ib_word(hdr.stripe2.b_high ++ hdr.stripe2.b_low));
            c = ib_sum_step(c, ib_word(hdr.stripe2.c_high ++ hdr.stripe2.c_low));
            d = ib_sum_step(d, ib_word(hdr.stripe2.d_high ++ hdr.stripe2.d_low));
        }
        if (hdr.word0.isValid()) {
            b = ib_sum_step(b, ib_word(hdr.word0.w_high ++ hdr.word0.w_low));
        }
        if (hdr.word1.isValid()) {
            b = ib_sum_step(b, ib_word(hdr.word1.w_high ++ hdr.word1.w_low));
        }
        if (hdr.word2.isValid()) {
            b = ib_sum_step(b, ib_word(hdr.word2.w_high ++ hdr.word2.w_low));
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
        if (hdr.common.value_len_bytes == 0) {
            checksum = 0;
        }
        if (checksum != hdr.paxos.checksum) {
            meta.reason = IB_R_bad_checksum;
        }
#endif
        if ((hdr.common.value_len_bytes & IB_P4_LONGER) != 0) {
            meta.reason = IB_R_no_room;
        }
    }
}
#endif
