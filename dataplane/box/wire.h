/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - the only definition of the packet format of consensus in a box (docs/box.md).
 *
 * ZAB's broadcast (section 5 of "Consensus in a Box"): a leader numbers records with zxids, which
 * are dense from 1 over all epochs, proposes them to the followers, and commits those that a quorum
 * has acknowledged. Acknowledgements are cumulative.
 */
#ifndef INBAND_BOX_WIRE_H
#define INBAND_BOX_WIRE_H

#include "../ground/frame.h"

enum ib_box_limits {
    IB_BOX_NODES_MAX = 7, /* nodes 1..=7 */
    /* The origin of records that a leader's role makes from clients' SETs. Their session is the
     * epoch, which has one leader, so no two nodes have the same session. */
    IB_BOX_ORIGIN_ROLE = 8,
    /* Fits an MTU of 1,400 bytes with room for a tunnel. */
    IB_BOX_RECORD_LEN_MAX_BYTES = 1248,
    /* An epoch is pM + i: i is the node that proposed it, M is this. */
    IB_BOX_PROPOSERS = 32,
    /* Reject epochs so much higher than a node's: one packet must not use up the epoch numbers. */
    IB_BOX_EPOCH_AHEAD_MAX = 1 << 30,
};

/* Message types. In brackets: sender and receiver. */
enum ib_box_type {
    IB_BOX_SUBMIT = 56,  /* [node's process -> leader] value: a record's */
    IB_BOX_PROPOSE = 57, /* [leader -> followers] value: a record's */
    IB_BOX_ACK = 58,     /* [follower -> leader] everything up to `zxid` is in the log */
    IB_BOX_COMMIT = 59, /* [leader -> followers] everything up to `committed`; also the heartbeat */
    IB_BOX_REFUSED = 60, /* [role -> sender] flags give the reason */
    IB_BOX_CONTROL = 61, /* [process -> process] election and synchronisation; value: control.rs */
};

/* Flags. */
enum ib_box_flags {
    IB_BOX_F_NOT_LEADER = 1,  /* REFUSED: ask `leader`, if it is not 0 */
    IB_BOX_F_BUSY = 2,        /* REFUSED: the log is full of uncommitted or unapplied records */
    IB_BOX_F_EPOCH = 4,       /* REFUSED: `epoch` is higher than the sender's */
    IB_BOX_F_GAP = 8,         /* ACK: the record after `zxid` is missing */
    IB_BOX_F_ROUND = 16,      /* COMMIT: answer `round`; ACK: the answer */
    IB_BOX_F_RECOVERING = 32, /* ACK: from a node that lost its log; it does not count */
};

struct ib_box_header {
    ib_u32 magic;
    ib_u8 version;
    ib_u8 type;
    ib_u16 flags;
    ib_u16 group; /* 0: there is one */
    ib_u16 node;  /* sender */
    ib_u16 value_len_bytes;
    ib_u16 key_id;
    ib_u64 epoch;          /* of the leader; REFUSED: of the sender */
    ib_u64 zxid;           /* PROPOSE: of the record; ACK: acknowledged */
    ib_u64 record_epoch;   /* PROPOSE: epoch in which the record was first proposed */
    ib_u64 committed;      /* PROPOSE, COMMIT: of the leader; ACK: of the follower */
    ib_u64 time_ms;        /* PROPOSE: when the record was first proposed, by the leader's clock */
    ib_u64 round;          /* COMMIT and its ACK: of the leader, with F_ROUND */
    ib_u64 origin_session; /* SUBMIT, PROPOSE: of the gateway that submitted the record */
    ib_u64 origin_seq;     /* SUBMIT, PROPOSE: of the session, from 1 */
    ib_u32 digest;         /* ib_value_checksum of the value */
    ib_u16 origin;         /* SUBMIT, PROPOSE: node of the gateway; 0: none (a no-op) */
    ib_u16 leader;         /* REFUSED: the leader, as far as known; 0: unknown */
    ib_u64 tag;
};

IB_IS_FRAME(ib_box_header, group);

#endif
