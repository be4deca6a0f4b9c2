/* SPDX-License-Identifier: Apache-2.0 */
/* registers.h - the state of switch and servers: BPF map values, and the soft roles' memory. */
#ifndef INBAND_MEMORY_REGISTERS_H
#define INBAND_MEMORY_REGISTERS_H

#include "wire.h"

/* Server: one. Epochs only increase. */
struct ib_memory_server {
    ib_u64 epoch;        /* packets of an earlier one are refused */
    ib_u64 switch_epoch; /* the highest one granted to a switch */
    ib_u64 serving;      /* 0: it has lost its memory and answers no requests */
    ib_u64 reserved[5];
};

/* Server: a chunk of memory. */
struct ib_memory_chunk {
    ib_u64 sequence; /* seqlock.h */
    ib_u64 reserved[7];
    ib_u64 timestamp[IB_MEMORY_CHUNK_LINES]; /* in network order; 0: never written */
    ib_u8 line[IB_MEMORY_CHUNK_LINES][IB_MEMORY_LINE_LEN_BYTES];
};

/* Switch: one. */
struct ib_memory_switch {
    ib_u64 epoch;   /* granted to this switch; 0: none */
    ib_u64 deposed; /* the highest epoch in a server's refusal; if above `epoch`, the switch is not
                       active */
    ib_u64 nearly_used_up; /* a timestamp near the end of its epoch: a new epoch is needed */
    ib_u64 reserved[5];
};

/* Switch: a block of lines. */
struct ib_memory_block {
    ib_u64 timestamp; /* the last one assigned to a write of the block; only increases */
};

/* Switch: a client's session, indexed by the low bits of its number. Its slots are contiguous. */
struct ib_memory_session {
    ib_u64 session; /* 0: free */
    ib_u64 slot_first;
    ib_u64 window;   /* slots, a power of two: request r has slot_first + r % window */
    ib_u64 requests; /* the highest request seen: shows whether the session is alive */
};

enum ib_memory_phase {
    IB_MEMORY_FREE = 0,
    IB_MEMORY_READING = 1,
    IB_MEMORY_WRITING_BACK = 2,
    IB_MEMORY_WRITING = 3,
    IB_MEMORY_WRITTEN = 4,
    IB_MEMORY_HAS_READ = 5,
    IB_MEMORY_PHASE_BITS = 3, /* of `phase`; the higher bits are incremented by each phase */
};

/* The sender of a request, to which its answer goes. Host order. */
struct ib_memory_client {
    ib_u32 address;
    ib_u16 port;
    ib_u8 mac[6]; /* in the kernel: the frame's addresses and its ingress interface */
    ib_u8 own_mac[6];
    ib_u16 reserved;
    ib_u32 ifindex;
};

/* Switch: a request. Timestamps and lines are in the same order as in the value: the n-th line of
 * the bitmap is at index n. */
struct ib_memory_slot {
    ib_u64 sequence; /* seqlock.h */
    ib_u64 session;
    ib_u64 request;
    ib_u64 epoch; /* in which its present phase began */
    ib_u64 chunk;
    ib_u64 timestamp; /* of a write, the same for every transmission; 0: a read */
    ib_u32 lines;
    ib_u32 digest; /* of the request's value */
    ib_u32 phase;
    ib_u32 answered; /* bitmap of servers: bit n is node n + 1 */
    struct ib_memory_client client;
    ib_u8 holders[IB_MEMORY_CHUNK_LINES]; /* bitmap of servers whose answer had `version` */
    ib_u64 reserved[3];
    ib_u64 incoming[IB_MEMORY_CHUNK_LINES]; /* timestamps of the answer that is being counted */
    ib_u64 version[IB_MEMORY_CHUNK_LINES];  /* highest timestamp of any answer */
    ib_u8 line[IB_MEMORY_CHUNK_LINES][IB_MEMORY_LINE_LEN_BYTES];
};

_Static_assert(sizeof(struct ib_memory_server) == 64, "a cache line");
_Static_assert(sizeof(struct ib_memory_chunk) % 64 == 0, "whole cache lines");
_Static_assert(sizeof(struct ib_memory_slot) % 64 == 0, "whole cache lines");

/* Timestamps and lines are contiguous, so that all lines are copied in one piece. */
#define IB_MEMORY_IS_A_VALUE(in, timestamps)                                                       \
    _Static_assert(__builtin_offsetof(struct in, line) ==                                          \
                       __builtin_offsetof(struct in, timestamps) +                                 \
                           IB_MEMORY_CHUNK_LINES * IB_MEMORY_TIMESTAMP_LEN_BYTES,                  \
                   "timestamps and lines follow each other")
IB_MEMORY_IS_A_VALUE(ib_memory_chunk, timestamp);
IB_MEMORY_IS_A_VALUE(ib_memory_slot, version);

#endif
