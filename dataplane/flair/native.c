/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"
#include "shell.h"

/* The group of a message's key in the table of all sets. */
#define IB_FLAIR_GROUP(sw, m)                                                                      \
    (&(sw)->table[(ib_u64)(m).set * (sw)->groups + ib_flair_group_of((m).key_hash, (sw)->groups)])

IB_NATIVE_HANDLE_IS(ib_flair_switch_handle, flair, ib_flair_switch, sw->sets,
                    ib_shell_flair(&m, &sw->sessions[m.set], IB_FLAIR_GROUP(sw, m), sw->incarnation,
                                   arrival))

ib_u32 ib_flair_group_of_hash(ib_u64 key_hash, ib_u32 groups) {
    return ib_flair_group_of(key_hash, groups);
}

IB_NATIVE_CHECK_IS(flair, IB_FLAIR_REASONS_FIRST, IB_FLAIR_REASONS)
