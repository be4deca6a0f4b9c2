/* SPDX-License-Identifier: Apache-2.0 */
/*
 * switch.p4 - the controls around a role, the same in all systems. Before this file a system
 * defines `headers_t` (with ethernet, ipv4, udp, common, its own header, tag), its family
 * (IB_TYPE_FIRST, IB_TYPE_LAST, IB_PADDED_TYPES, IB_FROM_CLIENT: struct ib_family), and
 * IB_BODY(hdr), the nine words between the common ones and the tag.
 */

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

/* For systems that check nothing beyond the frame. */
@noWarn("unused") control IbNoCheck(in headers_t hdr, inout meta_t meta) {
    apply {}
}

/* What the IPv4 checksum covers. */
#define IB_IPV4_FIELDS(ipv4)                                                                       \
    {                                                                                              \
        ipv4.version_ihl, ipv4.service, ipv4.len_bytes, ipv4.id, ipv4.fragment, ipv4.ttl,          \
            ipv4.protocol, ipv4.from, ipv4.to                                                      \
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

control IbEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    IbCopies() copies;
    apply {
        copies.apply(hdr.ethernet, hdr.ipv4, hdr.udp, meta, standard);
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
                frame_check.apply(hdr.ipv4, hdr.udp, hdr.common, hdr.tag.isValid(),                \
                                  standard.packet_length, standard.checksum_error == 1,            \
                                  IB_TYPE_FIRST, IB_TYPE_LAST, IB_PADDED_TYPES, IB_FROM_CLIENT,    \
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
                forward.apply(hdr.ethernet, meta, standard);                                       \
            } else {                                                                               \
                mark_to_drop(standard);                                                            \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    V1Switch(IbParser(), IbIpVerify(), IbIngress(), IbEgress(), IbIpChecksum(), IbDeparser())      \
    main
