/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flair/registers.h - the state of a FLAIR switch: BPF map values, and the soft switch's memory.
 * Words are 64 bits and accessed atomically. A new switch's state is all zero: no session, and none
 * that any packet could belong to.
 */
#ifndef INBAND_FLAIR_REGISTERS_H
#define INBAND_FLAIR_REGISTERS_H

#include "wire.h"

/*
 * One per set. The first cache line is written by HEARTBEAT and INSTALL, which lock the sequence
 * word for that (odd: locked). The second one is written by writes and their replies, with atomic
 * operations.
 */
struct ib_flair_session {
    ib_u64 sequence;
    ib_u64 session; /* 0: there has been none; only increases */
    ib_u64 log_index;
    ib_u64 weights; /* one byte per replica, replica 0 in the lowest */
    ib_u64 step_down_ns;
    ib_u64 deadline_ns; /* active until then (switch's clock); only increases in a session */
    ib_u64 route; /* term 32 bits, leader, followers, replicas, policy 8 each, from the highest */
    ib_u64 reserved;
    ib_u64 seq;     /* the last one assigned; never decreases, even with a new session */
    ib_u64 replied; /* the highest one of a write reply */
    ib_u64 reserved_too[6];
};

/*
 * One per key group, indexed by set * groups + group. Odd sequence: locked. If a group's session is
 * not the set's current one, the group is still as it was when that session began.
 */
struct ib_flair_group {
    ib_u64 sequence;
    ib_u64 session;
    ib_u64 seq; /* of the last write */
    ib_u64 stable;
    ib_u64 log_index; /* of the last write that was answered */
    ib_u64 followers; /* the replicas that hold it */
    ib_u64 reserved[2];
};

_Static_assert(sizeof(struct ib_flair_session) == 128, "two cache lines a set");
_Static_assert(sizeof(struct ib_flair_group) == 64, "one cache line a group");

#endif
