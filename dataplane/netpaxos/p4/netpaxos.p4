/* SPDX-License-Identifier: Apache-2.0 */
/*
 * netpaxos.p4 - what NetPaxos's roles have in common: the header of wire.h and the parser. The roles
 * do not read values, so these may have any length.
 */
#include "../../ground/p4/frame.p4"

/* Without the first 16 bytes and the tag. */
header netpaxos_h {
    bit<64> client;
    bit<64> request;
    bit<64> low;
    bit<64> incarnation;
    bit<64> number;
    bit<64> instance;
    bit<64> reply_to;
    bit<64> digest;
    bit<64> log_id;
}

struct headers_t {
    ethernet_h ethernet;
    ipv4_h ipv4;
    udp_h udp;
    common_h common;
    netpaxos_h netpaxos;
    tag_h tag;
}

parser IbParser(packet_in packet, out headers_t hdr, IB_PARSER_REST) {
    IB_PARSER_LOCALS
#include "../../ground/p4/start.p4"
    state ours {
        packet.extract(hdr.common);
        packet.extract(hdr.netpaxos);
        packet.extract(hdr.tag);
        transition accept;
    }
}

/* IB_NETPAXOS_FAMILY of msg.h. */
#define IB_TYPE_FIRST IB_NETPAXOS_REQUEST
#define IB_TYPE_LAST IB_NETPAXOS_CONTROL
#define IB_IS_PADDED(type) false
#define IB_IS_FROM_CLIENT(type) (type == IB_NETPAXOS_REQUEST)

#define IB_BODY(hdr)                                                                               \
    hdr.netpaxos.client, hdr.netpaxos.request, hdr.netpaxos.low, hdr.netpaxos.incarnation,         \
        hdr.netpaxos.number, hdr.netpaxos.instance, hdr.netpaxos.reply_to, hdr.netpaxos.digest,    \
        hdr.netpaxos.log_id

#include "../../ground/p4/switch.p4"

/* ib_netpaxos_refuses: sets meta.reason if the role has nothing to do with the packet. */
control IbRequestCheck(in headers_t hdr, inout meta_t meta) {
    bit<16> value_excess;
    action subtract() {
        value_excess = hdr.common.value_len_bytes |-| IB_NETPAXOS_VALUE_LEN_MAX_BYTES;
    }
    apply {
        subtract();
        if (hdr.common.type != IB_NETPAXOS_REQUEST) {
            meta.reason = IB_R_netpaxos_not_for_role;
        } else if (value_excess != 0) {
            meta.reason = IB_R_netpaxos_value_too_long;
        }
    }
}
