/* SPDX-License-Identifier: Apache-2.0 */
/* registers.h - a node's state: values of BPF maps, or memory of the soft role. */
#ifndef INBAND_BOX_REGISTERS_H
#define INBAND_BOX_REGISTERS_H

#include "wire.h"

enum ib_box_mode {
    IB_BOX_IDLE = 0, /* electing or recovering: takes no part in the broadcast */
    IB_BOX_FOLLOWING = 1,
    IB_BOX_LEADING = 2,
};

/* What a leader knows about a member; indexed by node id. */
struct ib_box_peer {
    ib_u64 matched;   /* last zxid acknowledged without F_RECOVERING; for our own node the same */
    ib_u64 recovered; /* last zxid acknowledged with F_RECOVERING: does not count */
    ib_u64 committed; /* as reported in its ACKs */
    ib_u64 round;     /* the last one that it has answered */
    ib_u64 heard_ns;
    ib_u64 reserved[3];
};

/* All fields change only under the lock `sequence`, except `higher_epoch`, `applied`, `time_ms`,
 * `advances`. */
struct ib_box_node {
    ib_u64 sequence; /* seqlock.h */
    ib_u64 epoch;    /* only grows; packets of an earlier one are refused */
    ib_u64 mode;
    ib_u64 leader;       /* node id, 0: unknown */
    ib_u64 first;        /* the oldest zxid in the ring */
    ib_u64 last;         /* the newest; first - 1: the ring is empty */
    ib_u64 last_epoch;   /* of the newest record, also if the ring is empty; 0: there is none */
    ib_u64 last_time_ms; /* likewise */
    ib_u64 matched;      /* FOLLOWING: up to here, our log equals the leader's */
    ib_u64 committed;
    ib_u64
        established_at; /* LEADING: the first zxid of our epoch; nothing is committed before it */
    ib_u64 members;     /* bitmap: bit n is node n */
    ib_u64 quorum;      /* how many members must have a record */
    ib_u64 window;      /* LEADING: this many records may be uncommitted */
    ib_u64 recovering;  /* FOLLOWING: our ACKs do not count */
    ib_u64 acks_by_process; /* the role passes up what must be acknowledged */
    ib_u64 heard_ns;        /* FOLLOWING: when the leader was last heard, by the role's clock */
    ib_u64 higher_epoch;    /* the highest epoch of another that a packet had */
    ib_u64 applied;         /* by the process: slots up to here may be reused */
    ib_u64 time_ms;         /* the process's clock */
    ib_u64 advances; /* how often the process was to be woken: committed or a round has advanced */
    ib_u64 guests;   /* bitmap: no members, but their packets are handled */
    /* The epoch in which the role last proposed a client's SET itself, and how many it has. */
    ib_u64 sets_epoch;
    ib_u64 sets_seq;
    /* FOLLOWING: when a packet came that only the leader's process can have made. Its role goes on
     * without the process as long as others submit. */
    ib_u64 process_heard_ns;
    ib_u64 reserved[7];
    struct ib_box_peer peer[IB_BOX_NODES_MAX + 1];
};

/* A record of the log; record z is in slot z % capacity. */
struct ib_box_record {
    ib_u64 sequence; /* seqlock.h: the process reads without the node's lock */
    ib_u64 zxid;     /* 0: never written */
    ib_u64 epoch;    /* in which it was first proposed */
    ib_u64 time_ms;
    ib_u64 origin_session;
    ib_u64 origin_seq;
    ib_u32 value_len_bytes;
    ib_u32 digest;
    ib_u32 origin;
    ib_u32 reserved;
    ib_u8 value[IB_BOX_RECORD_LEN_MAX_BYTES];
};

/* The client of a record that the packet program proposed itself; in the record's slot. Address and
 * port are in network order, the request's id is as in its datagram. */
struct ib_box_client {
    ib_u64 zxid;
    ib_u64 epoch;
    ib_u32 address;
    ib_u16 port;
    ib_u16 request;
    ib_u64 is_strong; /* it sent the SET to the port of strong reads */
};

_Static_assert(sizeof(struct ib_box_node) % 64 == 0, "whole cache lines");
_Static_assert(sizeof(struct ib_box_record) % 8 == 0, "whole words");

#endif
