/* SPDX-License-Identifier: Apache-2.0 */
/*
 * switch.p4 - what surrounds a role, the same in all systems. Before this file a system defines
 * `headers_t` (with ethernet, ipv4, udp, common, its own header, tag), IbParser, its family
 * (IB_TYPE_FIRST, IB_TYPE_LAST, IB_IS_PADDED, IB_IS_FROM_CLIENT: struct ib_family), and
 * IB_BODY(hdr), the nine words between the common ones and the tag.
 */

/*
 * The checks on entry (ground/xdp/validate.h, ground/frame.h). Sets meta.reason: IB_R_none, or why
 * the packet is dropped. Differences are computed first, modulo 2^16, because a switch chip compares
 * a field with a constant only; in an action, or the compiler puts them back into the conditions.
 */
control IbFrameCheck(in headers_t hdr, in bool is_cut, inout meta_t meta) {
    bit<16> before_udp;
    bit<16> behind_headers;
    bit<16> behind_header;
    bit<16> padding;
    bit<16> value_excess;
    bit<16> node_excess;

    action subtract() {
        before_udp = hdr.ipv4.len_bytes - hdr.udp.len_bytes;
        behind_headers = hdr.ipv4.len_bytes - (20 + 8);
        behind_header = hdr.udp.len_bytes - (8 + IB_HEADER_LEN_BYTES);
        value_excess = hdr.common.value_len_bytes |-| IB_VALUE_LEN_MAX_BYTES;
        node_excess = hdr.common.node |-| (IB_NODES_MAX - 1);
    }
    action subtract_value() {
        padding = behind_header - hdr.common.value_len_bytes;
    }

    apply {
        bit<8> type = hdr.common.type;
        meta.reason = IB_R_none;
        subtract();
        subtract_value();
        if (is_cut) {
            meta.reason = IB_R_bad_truncated;
        } else if (behind_headers[15:15] == 1) {
            meta.reason = IB_R_bad_length;
        } else if (before_udp != 20) {
            meta.reason = IB_R_bad_length;
        } else if (meta.ip_is_damaged == 1) {
            meta.reason = IB_R_bad_checksum;
        } else if (!hdr.tag.isValid()) {
            meta.reason = IB_R_bad_truncated;
        } else if (behind_header[15:15] == 1) {
            meta.reason = IB_R_bad_truncated;
        } else if (hdr.common.magic != IB_MAGIC) {
            meta.reason = IB_R_bad_magic;
        } else if (hdr.common.version < IB_VERSION_MIN) {
            meta.reason = IB_R_bad_version;
        } else if (hdr.common.version > IB_VERSION) {
            meta.reason = IB_R_bad_version;
        } else if (type < IB_TYPE_FIRST) {
            meta.reason = IB_R_bad_type;
        } else if (type > IB_TYPE_LAST) {
            meta.reason = IB_R_bad_type;
        } else if (value_excess != 0) {
            meta.reason = IB_R_bad_length;
        } else if (padding[15:15] == 1) {
            meta.reason = IB_R_bad_length;
        } else if (padding != 0 && !IB_IS_PADDED(type)) {
            meta.reason = IB_R_bad_length;
        } else if (hdr.common.partition >= IB_P4_PARTITIONS) {
            meta.reason = IB_R_bad_partition;
        } else if (node_excess != 0) {
            meta.reason = IB_R_bad_node;
        } else if (hdr.common.node == 0 && !IB_IS_FROM_CLIENT(type)) {
            meta.reason = IB_R_bad_node;
        }
    }
}

/* For systems that check nothing beyond the frame. */
@noWarn("unused") control IbNoCheck(in headers_t hdr, inout meta_t meta) {
    apply {}
}

#ifdef __TARGET_TOFINO__
#include "tna.p4"
#else
#include "v1model.p4"
#endif
