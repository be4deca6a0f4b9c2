/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native.h - the native build of the roles, called by the soft switch, the simulator and the
 * vectors.
 */
#ifndef INBAND_PAXOS_NATIVE_H
#define INBAND_PAXOS_NATIVE_H

#include "../ground/native/role.h"
#include "msg.h"
#include "registers.h"

/* Which roles a switch runs. */
enum ib_paxos_roles {
    IB_ROLE_LEADER = 1,
    IB_ROLE_ACCEPTOR = 2,
    IB_ROLE_QUORUM = 4,
};

/*
 * A switch. The memory belongs to the caller and must outlive every call. Threads may share it: all
 * access is by the atomic operations of shell.h.
 */
struct ib_paxos_switch {
    ib_u32 roles; /* enum ib_paxos_roles, or-ed */
    ib_u32 node;  /* this host's node id */
    ib_u32 partitions;
    ib_u32 ring_slots;     /* a power of two */
    ib_u32 hand_off_fails; /* tests: 1 makes every delivery of a value fail */
    ib_u32 reserved;
    struct ib_leader_regs *leader;     /* [partitions] */
    struct ib_acceptor_regs *acceptor; /* [partitions] */
    struct ib_slot *ring;              /* [partitions * ring_slots] */
    struct ib_tail *tails;             /* [partitions * ring_slots] */
    struct ib_quorum_config *quorum;   /* one */
    struct ib_count_slot *counts;      /* [partitions * ring_slots] */
    ib_u64 *counters;                  /* [IB_REASONS_MAX] */
};

/*
 * Handles one UDP payload of *len_bytes at `buffer`, which has room for a packet of maximum size
 * (IB_HEADER_LEN_BYTES + IB_VALUE_LEN_MAX_BYTES). With IB_REPLY, IB_TO_* and IB_DELIVER, the buffer
 * then contains the packet to send or the decided value, and *len_bytes is its length. Thread-safe.
 * Never allocates or blocks.
 */
struct ib_result ib_paxos_switch_handle(struct ib_paxos_switch *sw, ib_u8 *buffer,
                                        ib_u32 *len_bytes);

IB_NATIVE_CHECK(paxos);

#endif
