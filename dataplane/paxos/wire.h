/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - the only definition of Paxos's packet format.
 *
 * Ethernet / IPv4 / UDP / struct ib_paxos_header / value. All messages have the same header,
 * because a switch can rewrite fields but cannot craft packets (CAANS, section 4: the header is the
 * union of the fields of all messages). All fields are naturally aligned within the header and in
 * network byte order. Rust sees this file through bindgen.
 */
#ifndef INBAND_PAXOS_WIRE_H
#define INBAND_PAXOS_WIRE_H

#include "../ground/frame.h"

enum ib_paxos_limits {
    IB_ACCEPTORS_MAX = 16, /* members of a quorum */
    IB_LEARNERS_MAX = 16,
    IB_RING_SLOTS_MIN = 64,
    IB_RING_SLOTS_MAX = 65536,
    IB_PAXOS_TYPE_MAX = 16, /* message types are below this */

    /* No log reaches such an instance in a hundred thousand years, and no sequence of leaders half
     * of such a round. A host that accepted such a number could not continue. */
    IB_INSTANCE_BITS = 62,
    IB_ROUND_BITS = 63,
};

/* Message types. In brackets: sender and receiver. */
enum ib_paxos_type {
    IB_PAXOS_REQUEST = 1, /* [proposer -> leader] please choose this value */
    IB_PAXOS_PHASE1A = 2, /* [new leader or recovering learner -> acceptor] promise `round` */
    IB_PAXOS_PHASE1B = 3, /* [acceptor -> its asker] promised; the vote, if any */
    IB_PAXOS_PHASE2A = 4, /* [leader -> acceptors] vote for this value */
    IB_PAXOS_PHASE2B = 5, /* [acceptor -> learners] voted */
    IB_PAXOS_NACK = 6,    /* [leader or acceptor -> sender] refused; flags say why */
    IB_PAXOS_BUSY = 7,    /* [leader -> proposer] window full, retry later */
    IB_PAXOS_LEARN = 8, /* [learner -> acceptor or replica] repeat the vote, or the decided value */
    IB_PAXOS_POSITION =
        9, /* [anyone -> acceptor or leader] where are you; answers carry IB_PAXOS_F_ANSWER */
    IB_PAXOS_TRIM =
        10, /* [replica -> acceptor or leader] everything below `floor` is held durably */
    IB_PAXOS_REPLY = 11, /* [replica -> replica] answer to LEARN: a decided value */
    IB_PAXOS_ALIVE = 12, /* [host -> host] applied position (`instance`) and known round; in the
                      value both, 8 bytes each, of the partitions behind the header's */
};

/* Flags. The low byte belongs to the value and is stored with the vote. */
enum ib_paxos_flags {
    IB_PAXOS_F_NOOP = 0x0001,       /* the value fills a hole */
    IB_PAXOS_F_OPEN = 0x0002,       /* the value opens a session */
    IB_PAXOS_F_VALUE_MASK = 0x00ff, /* flags stored with the vote */
    IB_PAXOS_F_SLOT = 0x0100,       /* PHASE1A/1B, NACK: one instance, not the partition */
    IB_PAXOS_F_VOTE = 0x0200,       /* PHASE1B: `vround` and the value are a vote */
    IB_PAXOS_F_REPEAT = 0x0400,     /* PHASE2B: answer to LEARN */
    IB_PAXOS_F_RECOVERY = 0x0800,   /* PHASE2A/2B of a recovering learner: answer the sender only */
    IB_PAXOS_F_ANSWER = 0x1000,     /* POSITION: this is the answer */
    IB_PAXOS_F_LEADER = 0x2000,     /* POSITION, TRIM, NACK: for the leader role, or sent by it */
    IB_PAXOS_F_PEER = 0x2000,       /* LEARN: to a replica's log, not to the acceptor on its host */
    IB_PAXOS_F_RECOVERING = 0x4000, /* POSITION answer: the acceptor does not vote */
    IB_PAXOS_F_BELOW_FLOOR = 0x8000, /* NACK: the instance is trimmed; `floor` says up to where */
};

/*
 * Offsets in bytes: 0 magic, 4 version, 5 type, 6 flags, 8 partition, 10 node, 12 value_len_bytes,
 * 14 key_id, 16 epoch, 20 checksum, 24 instance, 32 floor, 40 round, 48 vround, 56 client_id,
 * 64 client_seq, 72 client_low, 80 digest, 88 tag.
 */
struct ib_paxos_header {
    ib_u32 magic;
    ib_u8 version;
    ib_u8 type;
    ib_u16 flags;
    ib_u16 partition;
    ib_u16 node;            /* sender, 1..=254 */
    ib_u16 value_len_bytes; /* bytes of value after the header */
    ib_u16 key_id;          /* authentication key, 0: none */
    ib_u32 epoch;           /* configuration epoch */
    ib_u32 checksum;        /* of the value, for every hop that handles it (checksum.h) */
    ib_u64 instance;        /* position in the log, from 1 */
    ib_u64 floor;           /* trim floor: every instance below is held durably by a majority */
    ib_u64 round;           /* see below */
    ib_u64 vround;          /* round of the vote, 0: no vote */
    ib_u64 client_id;       /* session */
    ib_u64 client_seq;      /* sequence within the session, from 1 */
    ib_u64 client_low;      /* all lower sequences have been answered */
    ib_u64 digest;          /* of the value, made by the proposer, checked by the learner */
    ib_u64 tag;             /* over everything before it; without a key, a checksum (auth.h) */
};

/*
 * A round is counter (32 bits) | incarnation of its owner (24 bits) | node of its owner (8 bits).
 * An incarnation is durable and never reused, so two owners never make the same round
 * (schedules.md, 2). A counter or incarnation that would overflow is refused, never wrapped.
 */
enum ib_round_bits {
    IB_ROUND_NODE_BITS = 8,
    IB_ROUND_INCARNATION_BITS = 24,
    IB_ROUND_COUNTER_BITS = 32,
};

IB_IS_FRAME(ib_paxos_header, partition);

#endif
