/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flair/wire.h - the packet format of FLAIR (docs/flair.md), its only definition.
 *
 * Ethernet / IPv4 / UDP / struct ib_flair_header / key / data. Its own types and fields in the
 * frame of all packets (frame.h).
 */
#ifndef INBAND_FLAIR_WIRE_H
#define INBAND_FLAIR_WIRE_H

#include "../ground/frame.h"

enum ib_flair_limits {
    IB_FLAIR_SETS_MAX = 64, /* replica sets of a switch */
    IB_FLAIR_GROUPS = 4096, /* key groups of a set, unless told otherwise */
    IB_FLAIR_GROUPS_MAX = 65536,
    IB_FLAIR_REPLICAS_MAX = 8, /* of a set: bitmaps of one byte */
};

/* Longest time that a session lives without a heartbeat. */
#define IB_FLAIR_STEP_DOWN_MAX_NS 60000000000ULL

/* Digest of a packet without data: XXH3-64 of nothing. */
#define IB_FLAIR_NO_DATA_DIGEST 0x2d06800538d394c2ULL

/* Message types. In brackets: who sends it to whom. */
enum ib_flair_type {
    IB_FLAIR_READ = 32,        /* [client -> switch -> replica] the value of the key */
    IB_FLAIR_WRITE = 33,       /* [client -> switch -> leader] put, delete, open a session */
    IB_FLAIR_READ_REPLY = 34,  /* [replica -> switch -> client] */
    IB_FLAIR_WRITE_REPLY = 35, /* [leader -> switch -> client] applied */
    IB_FLAIR_HEARTBEAT = 36,   /* [leader -> switch] lives; the answer tells the switch's time */
    IB_FLAIR_INSTALL = 37,     /* [leader -> switch] a new session */
    IB_FLAIR_NACK = 38,        /* [switch -> client] no session here, ask another switch */
};

/* Flags. Those of WRITE travel with the value. */
enum ib_flair_flags {
    IB_FLAIR_F_DELETE = 0x0001,           /* WRITE: there is no such key any more */
    IB_FLAIR_F_OPEN = 0x0002,             /* WRITE: opens a client's session */
    IB_FLAIR_F_WRITE_MASK = 0x0003,       /* what a client says; nothing else of it is believed */
    IB_FLAIR_F_LEADER_AVOIDANCE = 0x0004, /* HEARTBEAT, INSTALL: reads spare a leader that writes */
    IB_FLAIR_F_STABLE = 0x0100,           /* READ, READ_REPLY: a follower reads; to be compared */
    IB_FLAIR_F_REFUSED = 0x0200,          /* READ_REPLY: this replica cannot serve this read */
    IB_FLAIR_F_MISSING = 0x0400,          /* READ_REPLY: there is no such key */
    IB_FLAIR_F_REFRESH = 0x0800,          /* WRITE_REPLY: of no client */
    IB_FLAIR_F_NEUTRALISE = 0x0800,       /* INSTALL: no session is here any more */
    IB_FLAIR_F_ANSWER = 0x1000,           /* HEARTBEAT, INSTALL: this is the switch's answer */
};

/*
 * Offsets in bytes: 0 magic, 4 version, 5 type, 6 flags, 8 set, 10 node, 12 value_len_bytes,
 * 14 key_id, 16 term, 20 client_address, 24 session, 32 seq, 40 log_index, 48 key_hash,
 * 56 client_id, 64 client_seq, 72 client_port, 74 followers, 75 replica, 76 key_len_bytes,
 * 78 window, 80 digest, 88 tag.
 */
struct ib_flair_header {
    ib_u32 magic;
    ib_u8 version;
    ib_u8 type;
    ib_u16 flags;
    ib_u16 set;
    ib_u16 node;            /* sender, 1..=254; 0: a client */
    ib_u16 value_len_bytes; /* bytes of key and data behind the header */
    ib_u16 key_id;          /* authentication key, 0: none */
    ib_u32 term;            /* Raft's term of the session */
    ib_u32 client_address;  /* IPv4, noted by the switch */
    ib_u64 session;         /* from 1 */
    ib_u64 seq;             /* given to each write by the switch; HEARTBEAT, INSTALL: incarnation */
    ib_u64 log_index;       /* up to which a read must be applied; at which a write was committed */
    ib_u64 key_hash;        /* names the group; HEARTBEAT, INSTALL: weights, replica 0's lowest */
    ib_u64 client_id;       /* INSTALL: step_down_ns */
    ib_u64 client_seq;      /* HEARTBEAT, INSTALL: the switch's time in ns, 0: none */
    ib_u16 client_port;     /* noted by the switch */
    ib_u8 followers;        /* bitmap of who holds log_index, the leader included */
    ib_u8 replica;          /* who is to answer, or has; HEARTBEAT, INSTALL: the leader */
    ib_u16 key_len_bytes;
    ib_u16 window; /* client_seq minus the client's low-water mark; HEARTBEAT, INSTALL:
                      bitmap of the replicas that reads may go to */
    ib_u64 digest; /* of the data */
    ib_u64 tag;    /* of all before it; without a key, a checksum (auth.h) */
};

IB_IS_FRAME(ib_flair_header, set);

#endif
