/* SPDX-License-Identifier: Apache-2.0 */
/* registers.h - what a role remembers: a BPF map's value, and the soft switch's memory. */
#ifndef INBAND_NETPAXOS_REGISTERS_H
#define INBAND_NETPAXOS_REGISTERS_H

#include "wire.h"

/* One a role, in a cache line of its own. */
struct ib_netpaxos_switch {
    ib_u64 passed; /* requests; a minion's number is the count with it. Only grows */
    ib_u64 reserved[7];
};

_Static_assert(sizeof(struct ib_netpaxos_switch) == 64, "one cache line");

#endif
