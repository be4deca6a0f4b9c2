/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - the only definition of replicated memory's packet format (docs/memory.md).
 *
 * Memory is an array of lines of 64 bytes, each a linearizable register. 16 consecutive lines are a
 * chunk. A packet names a chunk and, in a bitmap, which of its lines it is about; its value
 * contains these lines in ascending order. Clients talk only to the switch, and the switch runs the
 * ABD protocol with the servers (section 2.3 and chapter 7 of the dissertation).
 */
#ifndef INBAND_MEMORY_WIRE_H
#define INBAND_MEMORY_WIRE_H

#include "../ground/frame.h"

enum ib_memory_limits {
    IB_MEMORY_LINE_LEN_BYTES = 64,
    IB_MEMORY_CHUNK_LINES = 16,
    IB_MEMORY_LINES_ALL = (1 << IB_MEMORY_CHUNK_LINES) - 1,
    IB_MEMORY_TIMESTAMP_LEN_BYTES = 8,
    /* A value with a timestamp for each line. */
    IB_MEMORY_VALUE_LEN_MAX_BYTES =
        IB_MEMORY_CHUNK_LINES * (IB_MEMORY_TIMESTAMP_LEN_BYTES + IB_MEMORY_LINE_LEN_BYTES),

    IB_MEMORY_SERVERS_MAX = 7,       /* nodes 1..=7 */
    IB_MEMORY_SESSION_MASK = 0xffff, /* of a session: its index at the switch */
    IB_MEMORY_SWITCH_FIRST = 16,
    IB_MEMORY_SWITCH_LAST = 31, /* nodes 16..=31 */

    /* A timestamp: an epoch, and the number of writes that the switch has numbered in it. */
    IB_MEMORY_COUNT_BITS = 39,
    IB_MEMORY_EPOCH_BITS = 64 - IB_MEMORY_COUNT_BITS,
    IB_MEMORY_EPOCH_MAX = (1 << IB_MEMORY_EPOCH_BITS) - 1,
    /* An epoch is pM + i: i is the node that proposed it, M is this. */
    IB_MEMORY_PROPOSERS = 32,
    /* An epoch so much higher than a node's own is not taken from a packet: one packet must not use
     * up the epochs. Half of what a server that replaces another skips, so that one packet to the
     * lost server does not exceed it. */
    IB_MEMORY_EPOCH_AHEAD_MAX = 512 * IB_MEMORY_PROPOSERS,
};

/* Message types. In brackets: sender and receiver. */
enum ib_memory_type {
    IB_MEMORY_HELLO = 18,         /* [client -> switch's process] requests a session */
    IB_MEMORY_WELCOME = 19,       /* [switch's process -> client] */
    IB_MEMORY_READ_REQUEST = 20,  /* [client -> switch] */
    IB_MEMORY_WRITE_REQUEST = 21, /* [client -> switch] value: lines */
    IB_MEMORY_READ_REPLY = 22,    /* [switch -> client] value: timestamps, lines */
    IB_MEMORY_WRITE_REPLY = 23,   /* [switch -> client] */
    IB_MEMORY_REFUSED = 24,       /* [switch -> client] no such session, or not active */
    IB_MEMORY_READ = 25,          /* [switch or recovering server -> server] */
    IB_MEMORY_READ_ANSWER = 26,   /* [server -> requester] value: timestamps, lines */
    IB_MEMORY_WRITE = 27,         /* [switch -> server] value: lines, all with `timestamp` */
    IB_MEMORY_WRITE_BACK = 28,    /* [switch -> server] value: timestamps, lines */
    IB_MEMORY_ACK = 29,           /* [server -> switch] to WRITE and WRITE_BACK */
    IB_MEMORY_GRANT = 30,         /* [process of a switch or server -> server] requests `epoch` */
    IB_MEMORY_EPOCH = 31, /* [server -> requester] its epoch: answers GRANT, refuses others */
};

/* Flags. */
enum ib_memory_flags {
    IB_MEMORY_F_TO_GRANT = 1,   /* EPOCH: answers GRANT; granted if `epoch` is the requested one */
    IB_MEMORY_F_ACTIVATE = 2,   /* HELLO: become active, unless an epoch above `epoch` is known */
    IB_MEMORY_F_NOT_ACTIVE = 4, /* WELCOME, REFUSED: try another switch */
};

/* READ_REQUEST and READ have the length of their answers, padded with bytes without meaning after
 * the header, because not every frame can grow on the way (in generic mode over a veth it is never
 * certain). The same holds for an ACK to WRITE_BACK, which may become READ_REPLY. A role that gets
 * an unpadded packet tries anyway, and drops the packet if there is no room. */

/* A server returns all fields of a request unchanged in its answer, except those that the answer
 * defines. */
struct ib_memory_header {
    ib_u32 magic;
    ib_u8 version;
    ib_u8 type;
    ib_u16 flags;
    ib_u16 space; /* 0: there is one */
    ib_u16 node;  /* sender; 0: a client */
    ib_u16 value_len_bytes;
    ib_u16 key_id;
    ib_u64 epoch;   /* of the switch, 0: none; EPOCH: of the server */
    ib_u64 session; /* of the client; its low 16 bits are its number at the switch */
    ib_u64 request; /* within the session, from 1, consecutive */
    ib_u64 chunk;   /* lines 16 * chunk to 16 * chunk + 15 */
    ib_u64
        timestamp; /* WRITE; EPOCH to GRANT: the highest epoch that a switch was granted before */
    ib_u32 lines;  /* bitmap: bit n is line n of the chunk */
    ib_u32 digest; /* ib_value_checksum of the value */
    ib_u32 slot;   /* of the switch; HELLO, WELCOME: allowed requests in flight */
    ib_u32 phase;  /* of the request at the switch */
    ib_u64 reserved[2];
    ib_u64 tag;
};

IB_IS_FRAME(ib_memory_header, space);

#endif
