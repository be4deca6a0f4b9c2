/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - settings of the measurement programs. Rust sees it through bindgen. */
#ifndef INBAND_PAXOS_BENCH_H
#define INBAND_PAXOS_BENCH_H

#include "wire.h"
#include "../ground/xdp/settings.h"

enum ib_bench_limits {
    IB_BENCH_HEADERS_LEN_BYTES = 138, /* Ethernet, IPv4, UDP, Inband */
    IB_BENCH_HEADERS_ROOM_BYTES = 144,
    IB_BENCH_WINDOWS_MAX = 4096,
    IB_BENCH_MAJORITY = 2,
};

_Static_assert(IB_BENCH_HEADERS_LEN_BYTES == IB_XDP_FRAME_LEN_BYTES + IB_HEADER_LEN_BYTES,
               "what bench_feed writes anew");

/* The parameters of bench_feed, and the times that it recorded. */
struct ib_feed {
    ib_u64 packets;        /* sent in this run */
    ib_u64 window_packets; /* the clock is read after this many: a power of two */
    ib_u64 floor_packets;  /* after this many, floors are raised to this many behind the leader */
    ib_u64 windows;        /* completed in this run */
    ib_u64 last_ns;
    ib_u8 headers[IB_BENCH_HEADERS_ROOM_BYTES];
    ib_u64 window_ns[IB_BENCH_WINDOWS_MAX];
};

#endif
