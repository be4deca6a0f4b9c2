/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.p4 - the header of wire.h, the value of a server's answer, parser, and what is checked
 * beyond the frame (ib_memory_check).
 */
#include "../../ground/p4/frame.p4"

/* Without the first 16 bytes and the tag. */
header memory_h {
    bit<64> epoch;
    bit<64> session;
    bit<64> request;
    bit<64> chunk;
    bit<64> timestamp;
    bit<32> lines;
    bit<32> digest;
    bit<32> slot;
    bit<32> phase;
    bit<64> reserved0;
    bit<64> reserved1;
}

/* Timestamp and line take nine words. P4 has no loops, so the number of lines is limited. */
#define IB_P4_LINES_MAX 2
#define IB_P4_EACH_LEN_BYTES (IB_MEMORY_TIMESTAMP_LEN_BYTES + IB_MEMORY_LINE_LEN_BYTES)

header nine_h {
    bit<64> w0;
    bit<64> w1;
    bit<64> w2;
    bit<64> w3;
    bit<64> w4;
    bit<64> w5;
    bit<64> w6;
    bit<64> w7;
    bit<64> w8;
}

struct headers_t {
    ethernet_h ethernet;
    ipv4_h ipv4;
    udp_h udp;
    common_h common;
    memory_h memory;
    tag_h tag;
    /* The value's words 0 to 8 and, of two lines, 9 to 17: first the timestamps, then the lines. */
    nine_h first;
    nine_h second;
}

parser IbParser(packet_in packet, out headers_t hdr, IB_PARSER_REST) {
    IB_PARSER_LOCALS
#include "../../ground/p4/start.p4"
    state ours {
        packet.extract(hdr.common);
        packet.extract(hdr.memory);
        packet.extract(hdr.tag);
        transition select(hdr.common.magic, hdr.common.type, hdr.common.value_len_bytes) {
            (IB_MAGIC, IB_MEMORY_READ_ANSWER, IB_P4_EACH_LEN_BYTES) : one_line;
            (IB_MAGIC, IB_MEMORY_READ_ANSWER, 2 * IB_P4_EACH_LEN_BYTES) : two_lines;
            default : accept;
        }
    }
    state one_line {
        packet.extract(hdr.first);
        transition accept;
    }
    state two_lines {
        packet.extract(hdr.first);
        packet.extract(hdr.second);
        transition accept;
    }
}

#define IB_P4_TYPE(name) (64w1 << IB_MEMORY_##name)

/* IB_MEMORY_FAMILY of msg.h. */
#define IB_TYPE_FIRST IB_MEMORY_HELLO
#define IB_TYPE_LAST IB_MEMORY_EPOCH
#define IB_IS_PADDED(type)                                                                         \
    (type == IB_MEMORY_READ_REQUEST || type == IB_MEMORY_READ || type == IB_MEMORY_ACK)
#define IB_IS_FROM_CLIENT(type)                                                                    \
    (type == IB_MEMORY_HELLO || type == IB_MEMORY_READ_REQUEST || type == IB_MEMORY_WRITE_REQUEST)

/* IB_MEMORY_WITH_LINES, IB_MEMORY_WITH_TIMESTAMPS and IB_MEMORY_ABOUT_LINES of msg.h. */
#define IB_P4_WITH_TIMESTAMPS                                                                      \
    (IB_P4_TYPE(READ_REPLY) | IB_P4_TYPE(READ_ANSWER) | IB_P4_TYPE(WRITE_BACK))
#define IB_P4_WITH_LINES (IB_P4_TYPE(WRITE_REQUEST) | IB_P4_TYPE(WRITE) | IB_P4_WITH_TIMESTAMPS)
#define IB_P4_ABOUT_LINES (IB_P4_TYPE(READ_REQUEST) | IB_P4_TYPE(READ) | IB_P4_WITH_LINES)

#define IB_BODY(hdr)                                                                               \
    hdr.memory.epoch, hdr.memory.session, hdr.memory.request, hdr.memory.chunk,                    \
        hdr.memory.timestamp, hdr.memory.lines ++ hdr.memory.digest,                               \
        hdr.memory.slot ++ hdr.memory.phase, hdr.memory.reserved0, hdr.memory.reserved1

#include "../../ground/p4/switch.p4"

/* The number of bits set, of eight or sixteen. */
#define IB_P4_BIT(bits, i) ((bit<16>)(bits)[i:i])
#define IB_P4_COUNT_8(bits)                                                                        \
    (IB_P4_BIT(bits, 0) + IB_P4_BIT(bits, 1) + IB_P4_BIT(bits, 2) + IB_P4_BIT(bits, 3) +           \
     IB_P4_BIT(bits, 4) + IB_P4_BIT(bits, 5) + IB_P4_BIT(bits, 6) + IB_P4_BIT(bits, 7))
#define IB_P4_COUNT_16(bits)                                                                       \
    (IB_P4_COUNT_8(bits) + IB_P4_BIT(bits, 8) + IB_P4_BIT(bits, 9) + IB_P4_BIT(bits, 10) +         \
     IB_P4_BIT(bits, 11) + IB_P4_BIT(bits, 12) + IB_P4_BIT(bits, 13) + IB_P4_BIT(bits, 14) +       \
     IB_P4_BIT(bits, 15))

/* The rest of ib_memory_check. */
control IbMemoryCheck(in headers_t hdr, inout meta_t meta) {
    apply {
        bit<64> of_type = 64w1 << hdr.common.type;
        bit<32> lines = hdr.memory.lines;
        bit<16> count = IB_P4_COUNT_16(lines);
        bit<16> len_bytes = 0;
        if ((of_type & IB_P4_WITH_TIMESTAMPS) != 0) {
            len_bytes = count * IB_P4_EACH_LEN_BYTES;
        } else if ((of_type & IB_P4_WITH_LINES) != 0) {
            len_bytes = count * IB_MEMORY_LINE_LEN_BYTES;
        }
        if (hdr.udp.len_bytes > 8 + IB_HEADER_LEN_BYTES + IB_MEMORY_VALUE_LEN_MAX_BYTES) {
            meta.reason = IB_R_bad_length;
        } else if (hdr.memory.epoch > IB_MEMORY_EPOCH_MAX) {
            meta.reason = IB_R_memory_bad_epoch;
        } else if ((of_type & IB_P4_ABOUT_LINES) == 0) {
            if (hdr.common.value_len_bytes != 0) {
                meta.reason = IB_R_bad_length;
            }
        } else if (lines == 0 || lines > IB_MEMORY_LINES_ALL ||
                   hdr.common.value_len_bytes != len_bytes) {
            meta.reason = IB_R_memory_bad_lines;
        }
    }
}

/* ib_value_checksum of timestamps and lines, of one or two lines. */
control IbValueSum(in headers_t hdr, out bit<32> checksum) {
    apply {
        bit<64> a = IB_SUM_START_0;
        bit<64> b = IB_SUM_START_1;
        bit<64> c = IB_SUM_START_2;
        bit<64> d = IB_SUM_START_3;
        if (hdr.second.isValid()) {
            a = a ^ 2 * IB_P4_EACH_LEN_BYTES;
        } else {
            a = a ^ IB_P4_EACH_LEN_BYTES;
        }
        a = ib_sum_step(a, ib_word(hdr.first.w0));
        b = ib_sum_step(b, ib_word(hdr.first.w1));
        c = ib_sum_step(c, ib_word(hdr.first.w2));
        d = ib_sum_step(d, ib_word(hdr.first.w3));
        a = ib_sum_step(a, ib_word(hdr.first.w4));
        b = ib_sum_step(b, ib_word(hdr.first.w5));
        c = ib_sum_step(c, ib_word(hdr.first.w6));
        d = ib_sum_step(d, ib_word(hdr.first.w7));
        if (hdr.second.isValid()) {
            a = ib_sum_step(a, ib_word(hdr.first.w8));
            b = ib_sum_step(b, ib_word(hdr.second.w0));
            c = ib_sum_step(c, ib_word(hdr.second.w1));
            d = ib_sum_step(d, ib_word(hdr.second.w2));
            a = ib_sum_step(a, ib_word(hdr.second.w3));
            b = ib_sum_step(b, ib_word(hdr.second.w4));
            c = ib_sum_step(c, ib_word(hdr.second.w5));
            d = ib_sum_step(d, ib_word(hdr.second.w6));
            b = ib_sum_step(b, ib_word(hdr.second.w7));
            b = ib_sum_step(b, ib_word(hdr.second.w8));
        } else {
            b = ib_sum_step(b, ib_word(hdr.first.w8));
        }
        bit<64> sum = ib_sum_end(ib_sum_step(a, 0), b, c, d);
        sum = sum ^ (sum >> 32);
        checksum = sum[31:0];
    }
}
