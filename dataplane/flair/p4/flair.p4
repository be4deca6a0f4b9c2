/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flair.p4 - the header of wire.h, parser, and what is checked beyond the frame (ib_flair_check). The
 * switch does not read keys and values, so these may have any length.
 */
#include "../../ground/p4/frame.p4"

/* Without the first 16 bytes and the tag. */
header flair_h {
    bit<32> term;
    bit<32> client_address;
    bit<64> session;
    bit<64> seq;
    bit<64> log_index;
    bit<64> key_hash;
    bit<64> client_id;
    bit<64> client_seq;
    bit<16> client_port;
    bit<8> followers;
    bit<8> replica;
    bit<16> key_len_bytes;
    bit<16> window;
    bit<64> digest;
}

struct headers_t {
    ethernet_h ethernet;
    ipv4_h ipv4;
    udp_h udp;
    common_h common;
    flair_h flair;
    tag_h tag;
}

parser IbParser(packet_in packet, out headers_t hdr, IB_PARSER_REST) {
    IB_PARSER_LOCALS
#include "../../ground/p4/start.p4"
    state ours {
        packet.extract(hdr.common);
        packet.extract(hdr.flair);
        packet.extract(hdr.tag);
        transition accept;
    }
}

/* IB_FLAIR_FAMILY of msg.h. */
#define IB_TYPE_FIRST IB_FLAIR_READ
#define IB_TYPE_LAST IB_FLAIR_NACK
#define IB_IS_PADDED(type) false
#define IB_IS_FROM_CLIENT(type) (type == IB_FLAIR_READ || type == IB_FLAIR_WRITE)

#define IB_BODY(hdr)                                                                               \
    hdr.flair.term ++ hdr.flair.client_address, hdr.flair.session, hdr.flair.seq,                  \
        hdr.flair.log_index, hdr.flair.key_hash, hdr.flair.client_id, hdr.flair.client_seq,        \
        hdr.flair.client_port ++ hdr.flair.followers ++ hdr.flair.replica ++                       \
            hdr.flair.key_len_bytes ++ hdr.flair.window,                                           \
        hdr.flair.digest

#include "../../ground/p4/switch.p4"

/* The rest of ib_flair_check. */
control IbFlairCheck(in headers_t hdr, inout meta_t meta) {
    apply {
        if (hdr.flair.key_len_bytes > hdr.common.value_len_bytes) {
            meta.reason = IB_R_bad_length;
        } else if (hdr.flair.replica >= IB_FLAIR_REPLICAS_MAX) {
            meta.reason = IB_R_flair_bad_replica;
        }
    }
}
