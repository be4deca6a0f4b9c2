/* SPDX-License-Identifier: Apache-2.0 */
/*
 * validate.h - the first step of the program on an interface: checks that the frame is ours and
 * whole, and that its tag is valid.
 */
#ifndef INBAND_GROUND_XDP_VALIDATE_H
#define INBAND_GROUND_XDP_VALIDATE_H

#include "frame.h"

/* The check of the system's header, with the interface of ib_frame_check but the system's
 * family. */
#ifndef IB_SYSTEM_CHECK
#error "define IB_SYSTEM_CHECK before this file"
#endif

/* The check of its tag, with the interface of ib_verify. */
#ifndef IB_SYSTEM_VERIFY
#define IB_SYSTEM_VERIFY ib_verify
#endif

#define IB_VALID (-1) /* not an XDP action: the packet is ours and whole */

/* The reason to drop a packet whose payload has this length, or IB_R_none. */
IB_INLINE ib_u32 ib_validate_payload(const ib_u8 *data, const ib_u8 *end,
                                     ib_u32 payload_len_bytes) {
    const ib_u8 *payload = data + IB_XDP_FRAME_LEN_BYTES;
    ib_u32 reason = IB_SYSTEM_CHECK(payload, end, payload_len_bytes, ib_settings.partitions);
    if (IB_RARE(reason != IB_R_none))
        return reason;
    if (!ib_settings.authenticated)
        return IB_SYSTEM_VERIFY(payload, NULL);
    const struct ib_keys *keys = ib_keys();
    return keys ? IB_SYSTEM_VERIFY(payload, keys) : IB_R_bad_key;
}

/*
 * Whether the IPv4 header, without options, does not match its checksum. The kernel checks it too,
 * but only after XDP, and the tag does not cover the sender's address, to which roles reply.
 */
IB_INLINE int ib_ip_is_damaged(const struct iphdr *ip) {
    ib_u64 sum = 0;
    for (ib_u32 word = 0; word < sizeof(struct iphdr) / 4; word++)
        sum += ((const ib_wire32 *)ip)[word];
    sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16) != 0xffff;
}

/* The reason to drop the packet, or IB_R_none. Ethernet may have padded a frame, but never cut
 * it. */
IB_INLINE ib_u32 ib_validate_packet(const ib_u8 *data, const ib_u8 *end) {
    ib_u32 ip_len_bytes = bpf_ntohs(IB_IP(data)->tot_len);
    ib_u32 udp_len_bytes = bpf_ntohs(IB_UDP(data)->len);
    if (ETH_HLEN + ip_len_bytes > ib_bytes_between(data, end))
        return IB_R_bad_truncated;
    if (udp_len_bytes < sizeof(struct udphdr) ||
        sizeof(struct iphdr) + udp_len_bytes != ip_len_bytes)
        return IB_R_bad_length;
    if (IB_RARE(ib_ip_is_damaged(IB_IP(data))))
        return IB_R_bad_checksum;
    return ib_validate_payload(data, end, udp_len_bytes - sizeof(struct udphdr));
}

/* The program's return value for this reason to drop the packet; IB_VALID if there is no reason. */
IB_INLINE int ib_validated(ib_u32 reason) {
    if (IB_RARE(reason != IB_R_none)) {
        ib_count_reason(reason);
        return XDP_DROP;
    }
    return IB_VALID;
}

/* IB_VALID, or the program's return value. */
IB_INLINE int ib_validate(const ib_u8 *data, const ib_u8 *end) {
    if (data + IB_XDP_FRAME_LEN_BYTES > end || !ib_is_ours(data))
        return XDP_PASS;
    return ib_validated(ib_validate_packet(data, end));
}

/*
 * Reads the packet that arrived into the message `m` with `read_header`, and returns its frame.
 * Returns from the enclosing function if the packet is not ours or not valid.
 */
#define IB_RECEIVE(ctx, m, read_header)                                                            \
    ({                                                                                             \
        const ib_u8 *data = (const ib_u8 *)(long)(ctx)->data;                                      \
        const ib_u8 *end = (const ib_u8 *)(long)(ctx)->data_end;                                   \
        int action = ib_validate(data, end);                                                       \
        if (action != IB_VALID)                                                                    \
            return action;                                                                         \
        if (data + IB_XDP_FRAME_LEN_BYTES + IB_HEADER_LEN_BYTES > end)                             \
            return XDP_ABORTED;                                                                    \
        read_header(data + IB_XDP_FRAME_LEN_BYTES, m);                                             \
        data;                                                                                      \
    })

#endif
