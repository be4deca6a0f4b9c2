/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw.h - an Inband packet directly after the Ethernet header, on a point-to-point link between two
 * hosts, so neither needs the other's hardware address. A program with IB_RAW_FRAMES includes this
 * file before any other XDP header, and calls ib_raw_validate instead of ib_validate.
 */
#ifndef INBAND_GROUND_XDP_RAW_H
#define INBAND_GROUND_XDP_RAW_H

#include "settings.h"

/* IEEE's Ethertype for local experiments. */
#define IB_RAW_ETHERTYPE IB_XDP_RAW_ETHERTYPE
/* Replaces the enum's constant from here on. */
#define IB_XDP_FRAME_LEN_BYTES 14

#include "validate.h"

_Static_assert(ETH_HLEN == IB_XDP_FRAME_LEN_BYTES, "Ethernet alone");

/* Like ib_validate. None of our frames is short enough for Ethernet to pad it. */
IB_INLINE int ib_raw_validate(const ib_u8 *data, const ib_u8 *end) {
    if (data + ETH_HLEN > end || IB_ETH(data)->h_proto != bpf_htons(IB_RAW_ETHERTYPE))
        return XDP_PASS;
    return ib_validated(ib_validate_payload(data, end, ib_bytes_between(data, end) - ETH_HLEN));
}

/* Addresses the frame to the host at the other end, from the host with this node id. */
IB_INLINE void ib_raw_across(ib_u8 *data, ib_u32 node) {
    struct ethhdr *eth = IB_ETH(data);
    __builtin_memset(eth->h_dest, 0xff, ETH_ALEN);
    /* A locally administered address that contains "IB". */
    eth->h_source[0] = 0x02;
    eth->h_source[1] = 0x49;
    eth->h_source[2] = 0x42;
    eth->h_source[3] = 0;
    eth->h_source[4] = 0;
    eth->h_source[5] = (ib_u8)node;
}

#endif
