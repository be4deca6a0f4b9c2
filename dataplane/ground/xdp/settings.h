/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settings.h - the settings that the loader passes to the XDP programs. Rust sees it through
 * bindgen.
 */
#ifndef INBAND_GROUND_XDP_SETTINGS_H
#define INBAND_GROUND_XDP_SETTINGS_H

#include "../frame.h"

/* Limits and sizes of the XDP backend. */
enum ib_xdp_limits {
    IB_XDP_TTL = 64,                           /* of packets we send */
    IB_XDP_FRAME_LEN_BYTES = 14 + 20 + 8,      /* Ethernet, IPv4 without options, UDP */
    IB_XDP_MEMBERS = 16,                       /* remote members of a multicast group */
    IB_XDP_GROUP_ENTRIES = IB_XDP_MEMBERS + 1, /* plus the one on this host */
    IB_XDP_NOTE = 0x49424e54,      /* marks our metadata from XDP to tc in generic mode */
    IB_XDP_RAW_ETHERTYPE = 0x88b5, /* of frames without IP and UDP: raw.h */
};

/* A packet's destination: one of up to IB_XDP_GROUPS multicast groups of a system, or the
 * sender. */
enum ib_xdp_group {
    IB_XDP_GROUPS = 2,
    IB_XDP_SENDER = 2, /* not a group: out of the ingress interface */
};

/* Constants of a loaded program, which the verifier uses to remove branches. A system's own
 * constants (its settings.h) are in the section .rodata.own. */
struct ib_settings {
    ib_u32 node;
    ib_u32 partitions;
    ib_u32 address;       /* this host's IPv4 address, network order */
    ib_u32 loop_ifindex;  /* our end of the veth pair to this host's own roles; 0: none */
    ib_u32 generic;       /* 1: generic mode, in which tc sends what XDP has rewritten */
    ib_u16 port;          /* UDP, network order */
    ib_u16 authenticated; /* 1: packets carry tags, the keys are in ib_keys_map */
};

/* The destination of one copy. Addresses and ports are in network order. */
struct ib_member {
    ib_u32 known; /* the MAC address is resolved */
    ib_u32 ifindex;
    ib_u32 to_address;
    ib_u32 from_address;
    ib_u16 to_port;
    ib_u16 from_port;
    ib_u8 to_mac[6];
    ib_u8 from_mac[6];
};

/* A multicast group. */
struct ib_group {
    ib_u32 count; /* remote members */
    ib_u32 has_local;
    struct ib_member local; /* the member on this host, through the veth pair */
    struct ib_member member[IB_XDP_MEMBERS];
};

/* For tests: the inputs that accompany packets. */
struct ib_given {
    ib_u64 now_ns;
    ib_u64 random;
};

/* From XDP to tc in generic mode, in the packet's metadata. */
struct ib_note {
    ib_u32 note;  /* IB_XDP_NOTE */
    ib_u32 group; /* enum ib_xdp_group */
};

#endif
