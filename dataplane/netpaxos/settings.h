/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - what the loader tells the programs. */
#ifndef INBAND_NETPAXOS_SETTINGS_H
#define INBAND_NETPAXOS_SETTINGS_H

#include "../ground/xdp/settings.h"

/* The multicast group: a serializer's minions; a minion's storage and learners. */
enum ib_netpaxos_group { IB_NETPAXOS_GROUP = 0 };

struct ib_netpaxos_settings {
    ib_u64 incarnation; /* of a minion */
};

#endif
