/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native.h - the native build of the FLAIR role: the soft switch, the simulator and the vectors
 * call it.
 */
#ifndef INBAND_FLAIR_NATIVE_H
#define INBAND_FLAIR_NATIVE_H

#include "../ground/auth.h"
#include "msg.h"
#include "registers.h"

/*
 * A switch. The memory belongs to the caller and outlives every call; it may be shared by threads:
 * all access is by the atomic steps of flair/shell.h.
 */
struct ib_flair_switch {
    ib_u32 node; /* this host's node id */
    ib_u32 sets;
    ib_u32 groups; /* a set */
    ib_u32 reserved;
    ib_u64 incarnation;
    struct ib_flair_session *sessions; /* [sets] */
    struct ib_flair_group *table;      /* [sets * groups] */
    ib_u64 *counters;                  /* [IB_REASONS_MAX] */
};

/*
 * Handle one UDP payload of *len_bytes at `buffer`, which has room for a full one. With IB_REPLY,
 * IB_TO_REPLICA and IB_TO_CLIENT the packet to send is in the buffer and *len_bytes its length.
 * Thread-safe. Allocates nothing, never waits.
 */
struct ib_result ib_flair_switch_handle(const struct ib_flair_switch *sw, ib_u8 *buffer,
                                        ib_u32 *len_bytes, const struct ib_arrival *arrival);

/* As ib_paxos_keys_check, for packets of FLAIR. */
ib_u32 ib_flair_keys_check(const struct ib_keys *keys, const ib_u8 *packet, ib_u32 len_bytes,
                           ib_u32 sets);

/* The group of a key, below `groups`. */
ib_u32 ib_flair_group_of_hash(ib_u64 key_hash, ib_u32 groups);

/* The name of a reason of FLAIR; NULL if it has none of this number. Static, never freed. */
const char *ib_flair_reason_name(unsigned int reason);

#endif
