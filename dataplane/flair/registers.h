/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flair/registers.h - what a FLAIR switch remembers: BPF map values, and the soft switch's memory.
 * Words are 64 bits, read and written whole. A new switch's are all zero: no session, and none that
 * any packet could be of.
 */
#ifndef INBAND_FLAIR_REGISTERS_H
#define INBAND_FLAIR_REGISTERS_H

#include "wire.h"

/*
 * One a set. The first cache line is what HEARTBEAT and INSTALL write, who take the sequence word
 * for it (odd: taken); the second what writes and their replies do, by themselves.
 */
struct ib_flair_session {
    ib_u64 sequence;
    ib_u64 session; /* 0: there has been none; only ever grows */
    ib_u64 log_index;
    ib_u64 weights; /* a byte a replica, replica 0's the lowest */
    ib_u64 step_down_ns;
    ib_u64
        deadline_ns; /* active before it, by the switch's clock; within a session it only grows */
    ib_u64 route; /* term 32 bits, leader, followers, replicas, policy 8 each, from the highest */
    ib_u64 reserved;
    ib_u64 seq;     /* the last given; never goes back, not even with a new session */
    ib_u64 replied; /* the highest of a write reply */
    ib_u64 reserved_too[6];
};

/*
 * One a key group: set * groups + group. Odd sequence: taken. A group whose session is not its
 * set's is as that session found it.
 */
struct ib_flair_group {
    ib_u64 sequence;
    ib_u64 session;
    ib_u64 seq; /* of the last write */
    ib_u64 stable;
    ib_u64 log_index; /* of the last write that was answered */
    ib_u64 followers; /* who holds it */
    ib_u64 reserved[2];
};

_Static_assert(sizeof(struct ib_flair_session) == 128, "two cache lines a set");
_Static_assert(sizeof(struct ib_flair_group) == 64, "one cache line a group");

#endif
