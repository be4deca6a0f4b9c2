/* SPDX-License-Identifier: Apache-2.0 */
/* registers.h - the state of a role: a BPF map's value, and the soft switch's memory. */
#ifndef INBAND_NETPAXOS_REGISTERS_H
#define INBAND_NETPAXOS_REGISTERS_H

#include "wire.h"

/* One per role, in its own cache line. */
struct ib_netpaxos_switch {
    ib_u64 passed; /* requests; including it, a minion's number for it. Only increases */
    ib_u64 reserved[7];
};

_Static_assert(sizeof(struct ib_netpaxos_switch) == 64, "one cache line");

#endif
