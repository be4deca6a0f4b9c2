/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registers.h - what the roles remember. The same structs are BPF map values (mapped into the
 * host's process) and the soft switch's memory. Words are 64 bits, read and written whole.
 *
 * Who writes: the packet programs and, through the same atomic steps, the host's own process.
 */
#ifndef INBAND_PAXOS_REGISTERS_H
#define INBAND_PAXOS_REGISTERS_H

#include "wire.h"

/* Leader, one a partition. Written by the host in the order next, floor, epoch, then round. */
struct ib_leader_regs {
    ib_u64 round; /* 0: not active. Each activation uses a round never used before */
    ib_u64 next;  /* instance of the next value; never lowered within a round */
    ib_u64 floor; /* trim floor; the window ends at floor + ring_slots */
    ib_u64 epoch;
    ib_u64 reserved[4];
};

/* Acceptor, one a partition. promise, floor, highest and epoch only ever grow. */
struct ib_acceptor_regs {
    ib_u64 promise; /* highest round promised for the whole partition */
    ib_u64 floor;   /* every instance below is held durably by a majority of replicas */
    ib_u64 highest; /* no vote is stored above this instance (raised before the vote) */
    ib_u64 epoch;
    ib_u64 voting; /* 0: recovering, answers POSITION only */
    ib_u64 reserved[3];
};

/* The part of a slot that a role sees and changes. */
struct ib_vote {
    ib_u64 instance; /* 0: never used */
    ib_u64 promise;  /* highest round promised for this instance alone */
    ib_u64 vround;   /* round of the vote, 0: no vote */
    ib_u64 digest;
    ib_u64 client_id;
    ib_u64 client_seq;
    ib_u64 client_low;
    ib_u16 value_len_bytes;
    ib_u16 flags; /* IB_PAXOS_F_VALUE_MASK of the value */
    ib_u32 checksum;
};

enum ib_slot_limits {
    IB_SLOT_VALUE_BYTES = 120, /* of a value are in the slot: it fills three cache lines */
    IB_TAIL_VALUE_BYTES = IB_VALUE_LEN_MAX_BYTES - IB_SLOT_VALUE_BYTES,
};

/*
 * One slot of an acceptor's ring. Odd sequence: taken. What a long value has more is in the tail of
 * the same index, which belongs to whoever has taken the slot. It is kept apart because memory
 * costs more than all else an acceptor does: so slots of short values lie close together, and one
 * after the other is what processors fetch ahead of being asked.
 */
struct ib_slot {
    ib_u64 sequence;
    struct ib_vote vote;
    ib_u8 value[IB_SLOT_VALUE_BYTES];
};

struct ib_tail {
    ib_u8 value[IB_TAIL_VALUE_BYTES];
};

/* Quorum counter, one a host: the members of this epoch. */
struct ib_quorum_config {
    ib_u64 epoch;
    ib_u64 majority;
    ib_u8 member_bit[256]; /* node -> its bit + 1; 0: not a member */
};

/* The part of a count that the role sees and changes. */
struct ib_count {
    ib_u64 instance;
    ib_u64 epoch; /* of the votes counted; a round means nothing without it */
    ib_u64 round;
    ib_u64 digest;  /* of the value that they are for */
    ib_u64 members; /* bitmap of who voted */
    ib_u64 done;    /* the value is safely up */
};

/* One slot of the quorum counter's ring. Odd sequence: taken. */
struct ib_count_slot {
    ib_u64 sequence;
    struct ib_count count;
    ib_u64 reserved;
};

_Static_assert(sizeof(struct ib_leader_regs) == 64, "one cache line a partition");
_Static_assert(sizeof(struct ib_acceptor_regs) == 64, "one cache line a partition");
_Static_assert(sizeof(struct ib_vote) == 64, "copied as eight words");
_Static_assert(sizeof(struct ib_slot) == 192, "three cache lines, shared with no other slot");
_Static_assert(sizeof(struct ib_count_slot) == 64, "one cache line, shared with no other count");
_Static_assert(sizeof(struct ib_tail) % 8 == 0, "tails stay aligned in the ring");

#endif
