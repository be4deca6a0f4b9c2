/* SPDX-License-Identifier: Apache-2.0 */
/* v1model.p4 - the controls around a role on v1model; included by switch.p4. */

#define IB_WORDS(hdr)                                                                              \
    {                                                                                              \
        hdr.common.magic ++ hdr.common.version ++ hdr.common.type ++ hdr.common.flags,             \
            hdr.common.partition ++ hdr.common.node ++ hdr.common.value_len_bytes ++               \
                hdr.common.key_id,                                                                 \
            IB_BODY(hdr)                                                                           \
    }

/* ib_verify of ground/auth.h, for a cluster without a key. */
control IbVerify(in headers_t hdr, inout meta_t meta) {
    apply {
        if (hdr.common.key_id != 0) {
            meta.reason = IB_R_bad_key;
        } else {
            ib_words_t words = IB_WORDS(hdr);
            if (ib_header_checksum(words) != hdr.tag.tag) {
                meta.reason = IB_R_bad_tag;
            }
        }
    }
}

/* Completes a packet that the role has rewritten: sender and tag. */
control IbSign(inout headers_t hdr, in meta_t meta) {
    apply {
        hdr.common.version = IB_VERSION;
        hdr.common.node = meta.node;
        hdr.common.key_id = 0;
        ib_words_t words = IB_WORDS(hdr);
        hdr.tag.tag = ib_header_checksum(words);
    }
}

/* The tag does not cover the sender's address, to which roles reply. */
control IbIpVerify(inout headers_t hdr, inout meta_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(), IB_IPV4_FIELDS(hdr.ipv4), hdr.ipv4.checksum,
                        HashAlgorithm.csum16);
    }
}

/* Only the IPv4 checksum of what was rewritten: UDP checksum 0 means "none". */
control IbIpChecksum(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(meta.rewritten == 1, IB_IPV4_FIELDS(hdr.ipv4), hdr.ipv4.checksum,
                        HashAlgorithm.csum16);
    }
}

control IbDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

/* Sends the packet where the verdict says, turned round if it does not stay as it is. */
control IbSend(inout ethernet_h ethernet, inout ipv4_h ipv4, inout udp_h udp,
               in bit<16> value_len_bytes, inout meta_t meta, inout standard_metadata_t standard) {
    @name(".reasons") counter(IB_REASONS_MAX, CounterType.packets) reasons; /* of packets of ours */
    IbTurn() turn;
    apply {
        reasons.count((bit<32>)meta.reason);
        if (meta.verdict == IB_V_DROP) {
            mark_to_drop(standard);
        } else if (meta.verdict == IB_V_PASS) {
            standard.egress_spec = meta.host_port;
        } else {
            turn.apply(ethernet, ipv4, udp, value_len_bytes, meta);
            if (meta.verdict == IB_V_REPLY) {
                standard.egress_spec = meta.sender_port;
            } else {
                standard.mcast_grp = 1;
            }
        }
    }
}

/* Addresses copies; cuts off padding. */
control IbEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    IbMembers() members;
    apply {
        if (meta.rewritten == 1) {
            if (meta.verdict == IB_V_GROUP) {
                members.apply(hdr.ethernet, hdr.ipv4, hdr.udp, standard.egress_rid);
            }
            truncate((bit<32>)meta.out_len_bytes);
        }
    }
}

/*
 * A switch with a role. `Check` is what a system checks beyond the frame, before the tag. `Role`
 * decides on valid packets of ours: it sets meta.verdict and meta.reason, which are "drop" and
 * "none" before. To reply to another host than the sender, it writes the addresses of one of that
 * host's frames into the headers, and the port into meta.sender_port.
 */
#define IB_SWITCH(Check, Role)                                                                     \
    control IbIngress(inout headers_t hdr, inout meta_t meta,                                      \
                      inout standard_metadata_t standard) {                                        \
        IbSettings() settings;                                                                     \
        IbFrameCheck() frame_check;                                                                \
        Check() own_check;                                                                         \
        IbVerify() tag_check;                                                                        \
        Role() role;                                                                               \
        IbSign() sign;                                                                             \
        IbSend() send;                                                                             \
        IbForward() forward;                                                                       \
        apply {                                                                                    \
            settings.apply(meta);                                                                  \
            if (hdr.udp.isValid() && meta.address != 0 && hdr.udp.to == meta.udp_port &&           \
                hdr.ipv4.to == meta.address) {                                                     \
                meta.verdict = IB_V_DROP;                                                          \
                meta.sender_port = standard.ingress_port;                                          \
                meta.now_us = standard.ingress_global_timestamp;                                   \
                meta.ip_is_damaged = (bit<1>)standard.checksum_error;                              \
                frame_check.apply(hdr, 14 + (bit<32>)hdr.ipv4.len_bytes > standard.packet_length,  \
                                  meta);                                                           \
                if (meta.reason == IB_R_none) {                                                    \
                    own_check.apply(hdr, meta);                                                    \
                }                                                                                  \
                if (meta.reason == IB_R_none) {                                                    \
                    tag_check.apply(hdr, meta);                                                    \
                }                                                                                  \
                if (meta.reason == IB_R_none) {                                                    \
                    role.apply(hdr, meta);                                                         \
                }                                                                                  \
                if (meta.verdict >= IB_V_REPLY) {                                                  \
                    sign.apply(hdr, meta);                                                         \
                }                                                                                  \
                send.apply(hdr.ethernet, hdr.ipv4, hdr.udp, hdr.common.value_len_bytes, meta,      \
                           standard);                                                              \
            } else if (hdr.ethernet.isValid()) {                                                   \
                forward.apply(hdr.ethernet, meta, standard.egress_spec);                           \
            } else {                                                                               \
                mark_to_drop(standard);                                                            \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    V1Switch(IbParser(), IbIpVerify(), IbIngress(), IbEgress(), IbIpChecksum(), IbDeparser())      \
    main
