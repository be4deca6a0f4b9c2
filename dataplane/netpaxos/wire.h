/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - the only definition of NetPaxos's packet format (docs/netpaxos.md).
 *
 * A proposer sends a REQUEST to the serializer, which copies it to all minions. Each minion assigns
 * it its next number and copies it, as NUMBERED, to its storage and to the learners. All other
 * packets are between processes: CONTROL, whose value crates/inband-netpaxos/src/control.rs
 * defines.
 */
#ifndef INBAND_NETPAXOS_WIRE_H
#define INBAND_NETPAXOS_WIRE_H

#include "../ground/frame.h"

enum ib_netpaxos_limits {
    IB_NETPAXOS_LOGS = 1,                   /* packets of other logs are refused */
    IB_NETPAXOS_MINIONS_MAX = 7,            /* 3f + 1 for f = 2 */
    IB_NETPAXOS_LEARNERS_MAX = 7,           /* plus a storage server: copies of a NUMBERED */
    IB_NETPAXOS_VALUE_LEN_MAX_BYTES = 1248, /* of a request: a CONTROL packet has room for it */
    IB_NETPAXOS_NUMBER_BITS = 62,           /* a minion stops there instead of wrapping around */
};

/* Message types. In brackets: sender and receiver. */
enum ib_netpaxos_type {
    IB_NETPAXOS_REQUEST = 39,  /* [proposer -> serializer -> minion] please choose this value */
    IB_NETPAXOS_NUMBERED = 40, /* [minion -> its storage, learners] the request, and its number */
    IB_NETPAXOS_REPLY = 41,    /* [learner -> proposer] delivered, or the reason why not */
    IB_NETPAXOS_CONTROL = 42,  /* [process -> process] not handled by the roles */
};

/* Flags of REQUEST and NUMBERED. */
enum ib_netpaxos_flag {
    IB_NETPAXOS_F_OPENS = 1, /* opens a session; its id is the instance that decides it */
};

/* Flags of REPLY. */
enum ib_netpaxos_reply_flag {
    IB_NETPAXOS_F_REFUSED = 2, /* the session does not exist (any more) */
};

struct ib_netpaxos_header {
    ib_u32 magic;
    ib_u8 version;
    ib_u8 type;
    ib_u16 flags;
    ib_u16 log;
    ib_u16 node; /* sender, 1..=254; 0: a proposer */
    ib_u16 value_len_bytes;
    ib_u16 key_id;
    ib_u64 client;      /* the proposer's session; OPENS: a random number */
    ib_u64 request;     /* its number within the session, from 1 */
    ib_u64 low;         /* all lower requests of the session have been answered */
    ib_u64 incarnation; /* NUMBERED: of the minion; increases at every start */
    ib_u64 number;      /* NUMBERED: from 1, unique in an incarnation */
    ib_u64 instance;    /* REPLY: where the request was decided */
    ib_u64 reply_to;    /* address and port of the proposer: 32 and 16 bits from the highest */
    ib_u64 digest;      /* of the value, made by the first sender */
    ib_u64 log_id;      /* of the cluster's log: receivers drop packets of another one */
    ib_u64 tag;
};

IB_IS_FRAME(ib_netpaxos_header, log);

#endif
