/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tna.p4 - the controls around a role on Tofino; included by switch.p4. There are no products, and so
 * no tags: nothing checks or makes one. A copy for the group is the packet as the role leaves it, but
 * for its addresses: a role that changes nothing sends the sender's node and tag, and a role that
 * changes packets writes its own node, and the tag is wrong until a gate makes it (docs/gate.md). A
 * role that replies defines IB_REPLIES: the others would pay for it.
 */

parser IbIngressParser(packet_in packet, out headers_t hdr, out meta_t meta,
                       out ingress_intrinsic_metadata_t arrival) {
    IbParser() frame;
    state start {
        packet.extract(arrival);
        packet.advance(PORT_METADATA_SIZE);
        meta.ip_is_damaged = 0;
        meta.verdict = IB_V_DROP;
        meta.reason = IB_R_none;
        meta.rewritten = 0;
        frame.apply(packet, hdr, meta);
        transition accept;
    }
}

control IbIngressDeparser(packet_out packet, inout headers_t hdr, in meta_t meta,
                          in ingress_intrinsic_metadata_for_deparser_t departure) {
#ifdef IB_REPLIES
    Checksum() ip_sum;
#endif
    apply {
#ifdef IB_REPLIES
        if (meta.rewritten == 1) {
            hdr.ipv4.checksum = ip_sum.update(IB_IPV4_FIELDS(hdr.ipv4));
        }
#endif
        packet.emit(hdr);
    }
}

/* What a copy's addresses are in; the rest follows as payload. */
struct copy_headers_t {
    ethernet_h ethernet;
    ipv4_h ipv4;
    udp_h udp;
}

struct copy_meta_t {
    bit<1> is_copy;
}

parser IbEgressParser(packet_in packet, out copy_headers_t hdr, out copy_meta_t meta,
                      out egress_intrinsic_metadata_t departure) {
    state start {
        packet.extract(departure);
        meta.is_copy = 0;
        transition select(departure.egress_rid) {
            0 : accept; /* only copies for the group have a number */
            default : copy;
        }
    }
    state copy {
        meta.is_copy = 1;
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        transition accept;
    }
}

control IbEgress(inout copy_headers_t hdr, inout copy_meta_t meta,
                 in egress_intrinsic_metadata_t departure,
                 in egress_intrinsic_metadata_from_parser_t from_parser,
                 inout egress_intrinsic_metadata_for_deparser_t for_deparser,
                 inout egress_intrinsic_metadata_for_output_port_t for_port) {
    IbMembers() members;
    apply {
        if (meta.is_copy == 1) {
            hdr.udp.checksum = 0;
            hdr.ipv4.ttl = IB_XDP_TTL;
            members.apply(hdr.ethernet, hdr.ipv4, hdr.udp, departure.egress_rid);
        }
    }
}

control IbEgressDeparser(packet_out packet, inout copy_headers_t hdr, in copy_meta_t meta,
                         in egress_intrinsic_metadata_for_deparser_t departure) {
    Checksum() ip_sum;
    apply {
        if (meta.is_copy == 1) {
            hdr.ipv4.checksum = ip_sum.update(IB_IPV4_FIELDS(hdr.ipv4));
        }
        packet.emit(hdr);
    }
}

#ifdef IB_REPLIES
#define IB_TURN IbTurn() turn;
#define IB_IF_REPLY                                                                                \
    if (meta.verdict == IB_V_REPLY) {                                                              \
        turn.apply(hdr.ethernet, hdr.ipv4, hdr.udp, hdr.common.value_len_bytes, meta);             \
        for_tm.ucast_egress_port = arrival.ingress_port;                                           \
    } else
#else
#define IB_TURN
#define IB_IF_REPLY
#endif

/*
 * A switch with a role. `Check` is what a system checks beyond the frame. `Role` decides on valid
 * packets of ours: it sets meta.verdict and meta.reason, which are "drop" and "none" before.
 */
#define IB_SWITCH(Check, Role)                                                                     \
    control IbIngress(inout headers_t hdr, inout meta_t meta,                                      \
                      in ingress_intrinsic_metadata_t arrival,                                     \
                      in ingress_intrinsic_metadata_from_parser_t from_parser,                     \
                      inout ingress_intrinsic_metadata_for_deparser_t for_deparser,                \
                      inout ingress_intrinsic_metadata_for_tm_t for_tm) {                          \
        @name(".reasons") Counter<bit<64>, bit<16>>(IB_REASONS_MAX, CounterType_t.PACKETS) reasons; \
        IbSettings() settings;                                                                     \
        IbFrameCheck() frame_check;                                                                \
        Check() own_check;                                                                         \
        Role() role;                                                                               \
        IB_TURN                                                                                    \
        IbForward() forward;                                                                       \
        bit<32> other_address;                                                                     \
        bit<16> other_port;                                                                        \
        bit<1> is_ours = 0;                                                                        \
        action compare() {                                                                         \
            other_address = hdr.ipv4.to ^ meta.address;                                            \
            other_port = hdr.udp.to ^ meta.udp_port;                                               \
        }                                                                                          \
        apply {                                                                                    \
            settings.apply(meta);                                                                  \
            if (hdr.udp.isValid()) {                                                               \
                compare();                                                                         \
                if (meta.address != 0) {                                                           \
                    if (other_address == 0) {                                                      \
                        if (other_port == 0) {                                                     \
                            is_ours = 1;                                                           \
                        }                                                                          \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
            if (is_ours == 1) {                                                                    \
                frame_check.apply(hdr, false, meta);                                               \
                if (meta.reason == IB_R_none) {                                                    \
                    own_check.apply(hdr, meta);                                                    \
                }                                                                                  \
                if (meta.reason == IB_R_none) {                                                    \
                    role.apply(hdr, meta);                                                         \
                }                                                                                  \
                reasons.count(meta.reason);                                                        \
                if (meta.verdict == IB_V_DROP) {                                                   \
                    for_deparser.drop_ctl = 1;                                                     \
                } else if (meta.verdict == IB_V_PASS) {                                            \
                    for_tm.ucast_egress_port = meta.host_port;                                     \
                } else IB_IF_REPLY {                                                               \
                    for_tm.mcast_grp_a = 1;                                                        \
                }                                                                                  \
            } else if (hdr.ethernet.isValid()) {                                                   \
                forward.apply(hdr.ethernet, meta, for_tm.ucast_egress_port);                       \
            } else {                                                                               \
                for_deparser.drop_ctl = 1;                                                         \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    Pipeline(IbIngressParser(), IbIngress(), IbIngressDeparser(), IbEgressParser(), IbEgress(),    \
             IbEgressDeparser()) pipe;                                                             \
    Switch(pipe) main
