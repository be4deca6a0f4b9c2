/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start.p4 - the first states of every parser, for the inside of its braces. The system's own state
 * `ours` reads what follows UDP.
 */
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            IB_ETHERTYPE_IPV4 : ipv4;
            default : accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        IB_AT_IPV4
        /* No options; not a fragment. */
        transition select(hdr.ipv4.version_ihl, hdr.ipv4.fragment, hdr.ipv4.protocol) {
            (0x45, 0 &&& 0x3fff, IB_PROTOCOL_UDP) : udp;
            default : accept;
        }
    }
    state udp {
        packet.extract(hdr.udp);
        IB_BEHIND_UDP
    }
