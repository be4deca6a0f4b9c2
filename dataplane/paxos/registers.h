/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registers.h - the state of the roles. The same structs are BPF map values (mapped into the host's
 * process) and the soft switch's memory. Words are 64 bits and accessed atomically.
 *
 * Writers: the packet programs and, with the same atomic operations, the host's process.
 */
#ifndef INBAND_PAXOS_REGISTERS_H
#define INBAND_PAXOS_REGISTERS_H

#include "wire.h"

/* Leader, one per partition. The host writes in the order next, floor, epoch, then round. */
struct ib_leader_regs {
    ib_u64 round; /* 0: not active. Each activation uses a new round */
    ib_u64 next;  /* instance of the next value; never lowered within a round */
    ib_u64 floor; /* trim floor; the window ends at floor + ring_slots */
    ib_u64 epoch;
    ib_u64 reserved[4];
};

/* Acceptor, one per partition. promise, floor, highest and epoch only increase. */
struct ib_acceptor_regs {
    ib_u64 promise; /* highest round promised for the whole partition */
    ib_u64 floor;   /* every instance below is held durably by a majority of replicas */
    ib_u64 highest; /* no vote is stored above this instance (raised before the vote) */
    ib_u64 epoch;
    ib_u64 voting; /* 0: recovering, answers POSITION only */
    ib_u64 reserved[3];
};

/* The part of a slot that a role reads and writes. */
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
    IB_SLOT_VALUE_BYTES = 120, /* of a value are stored in the slot: it fills three cache lines */
    IB_TAIL_VALUE_BYTES = IB_VALUE_LEN_MAX_BYTES - IB_SLOT_VALUE_BYTES,
};

/*
 * One slot of an acceptor's ring. Odd sequence: locked. The rest of a long value is in the tail
 * with the same index, which belongs to the holder of the lock. The tail is separate because memory
 * accesses are the most expensive part of an acceptor: this keeps slots of short values close
 * together, and processors prefetch sequential memory.
 */
struct ib_slot {
    ib_u64 sequence;
    struct ib_vote vote;
    ib_u8 value[IB_SLOT_VALUE_BYTES];
};

struct ib_tail {
    ib_u8 value[IB_TAIL_VALUE_BYTES];
};

/* Quorum counter, one per host: the members of this epoch. */
struct ib_quorum_config {
    ib_u64 epoch;
    ib_u64 majority;
    ib_u8 member_bit[256]; /* node -> its bit + 1; 0: not a member */
};

/* The part of a count that the role reads and writes. */
struct ib_count {
    ib_u64 instance;
    ib_u64 epoch; /* of the counted votes; a round is meaningful only within it */
    ib_u64 round;
    ib_u64 digest;  /* of the value that they are for */
    ib_u64 members; /* bitmap of the members that voted */
    ib_u64 done;    /* the value has been delivered */
};

/* One slot of the quorum counter's ring. Odd sequence: locked. */
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
