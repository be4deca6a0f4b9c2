/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flair/wire.h - the only definition of FLAIR's packet format (docs/flair.md).
 *
 * Ethernet / IPv4 / UDP / struct ib_flair_header / key / data. FLAIR's own types and fields in the
 * frame of all packets (frame.h).
 */
#ifndef INBAND_FLAIR_WIRE_H
#define INBAND_FLAIR_WIRE_H

#include "../ground/frame.h"

enum ib_flair_limits {
    IB_FLAIR_SETS_MAX = 64, /* replica sets per switch */
    IB_FLAIR_GROUPS = 4096, /* default number of key groups per set */
    IB_FLAIR_GROUPS_MAX = 65536,
    IB_FLAIR_REPLICAS_MAX = 8, /* per set: bitmaps have one byte */
};

/* Maximum time that a session stays active without a heartbeat. */
#define IB_FLAIR_STEP_DOWN_MAX_NS 60000000000ULL

/* Digest of a packet without data: XXH3-64 of the empty string. */
#define IB_FLAIR_NO_DATA_DIGEST 0x2d06800538d394c2ULL

/* Message types. In brackets: sender and receiver. */
enum ib_flair_type {
    IB_FLAIR_READ = 32,        /* [client -> switch -> replica] get the value of the key */
    IB_FLAIR_WRITE = 33,       /* [client -> switch -> leader] put, delete, open a session */
    IB_FLAIR_READ_REPLY = 34,  /* [replica -> switch -> client] */
    IB_FLAIR_WRITE_REPLY = 35, /* [leader -> switch -> client] applied */
    IB_FLAIR_HEARTBEAT = 36,   /* [leader -> switch] alive; the answer has the switch's time */
    IB_FLAIR_INSTALL = 37,     /* [leader -> switch] a new session */
    IB_FLAIR_NACK = 38,        /* [switch -> client] no session here, try another switch */
};

/* Flags. Those of WRITE belong to the value. */
enum ib_flair_flags {
    IB_FLAIR_F_DELETE = 0x0001,           /* WRITE: delete the key */
    IB_FLAIR_F_OPEN = 0x0002,             /* WRITE: open a client session */
    IB_FLAIR_F_WRITE_MASK = 0x0003,       /* flags that a client may set; others are ignored */
    IB_FLAIR_F_LEADER_AVOIDANCE = 0x0004, /* HEARTBEAT, INSTALL: spare a busy leader */
    IB_FLAIR_F_STABLE = 0x0100,     /* READ, READ_REPLY: a follower reads; compare its reply */
    IB_FLAIR_F_REFUSED = 0x0200,    /* READ_REPLY: this replica cannot serve this read */
    IB_FLAIR_F_MISSING = 0x0400,    /* READ_REPLY: the key does not exist */
    IB_FLAIR_F_REFRESH = 0x0800,    /* WRITE_REPLY: for no client */
    IB_FLAIR_F_NEUTRALISE = 0x0800, /* INSTALL: end the session here */
    IB_FLAIR_F_ANSWER = 0x1000,     /* HEARTBEAT, INSTALL: this is the switch's answer */
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
    ib_u16 value_len_bytes; /* bytes of key and data after the header */
    ib_u16 key_id;          /* authentication key, 0: none */
    ib_u32 term;            /* Raft's term of the session */
    ib_u32 client_address;  /* IPv4, set by the switch */
    ib_u64 session;         /* from 1 */
    ib_u64 seq;         /* assigned to each write by the switch; HEARTBEAT, INSTALL: incarnation */
    ib_u64 log_index;   /* entries that a read needs applied; where a write was committed */
    ib_u64 key_hash;    /* selects the group; HEARTBEAT, INSTALL: weights, replica 0 lowest */
    ib_u64 client_id;   /* INSTALL: step_down_ns */
    ib_u64 client_seq;  /* HEARTBEAT, INSTALL: the switch's time in ns, 0: none */
    ib_u16 client_port; /* set by the switch */
    ib_u8 followers;    /* bitmap of replicas that hold log_index, including the leader */
    ib_u8 replica;      /* who must answer or has answered; HEARTBEAT, INSTALL: the leader */
    ib_u16 key_len_bytes;
    ib_u16 window; /* client_seq minus the client's low-water mark; HEARTBEAT, INSTALL:
                      bitmap of the replicas that reads may go to */
    ib_u64 digest; /* of the data */
    ib_u64 tag;    /* over everything before it; without a key, a checksum (auth.h) */
};

IB_IS_FRAME(ib_flair_header, set);

#endif
