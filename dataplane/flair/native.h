/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native.h - the native build of the FLAIR role, called by the soft switch, the simulator and the
 * vectors.
 */
#ifndef INBAND_FLAIR_NATIVE_H
#define INBAND_FLAIR_NATIVE_H

#include "../ground/native/role.h"
#include "msg.h"
#include "registers.h"

/*
 * A switch. The memory belongs to the caller and must outlive every call. Threads may share it: all
 * access is by the atomic operations of flair/shell.h.
 */
struct ib_flair_switch {
    ib_u32 node; /* this host's node id */
    ib_u32 sets;
    ib_u32 groups; /* per set */
    ib_u32 reserved;
    ib_u64 incarnation;
    struct ib_flair_session *sessions; /* [sets] */
    struct ib_flair_group *table;      /* [sets * groups] */
    ib_u64 *counters;                  /* [IB_REASONS_MAX] */
};

/* A packet leaves with IB_REPLY, IB_TO_REPLICA and IB_TO_CLIENT. */
IB_NATIVE_HANDLE(ib_flair_switch_handle, ib_flair_switch);
IB_NATIVE_CHECK(flair);

/* The group of a key, below `groups`. */
ib_u32 ib_flair_group_of_hash(ib_u64 key_hash, ib_u32 groups);

#endif
