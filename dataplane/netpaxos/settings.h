/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - settings of the programs, set by the loader. */
#ifndef INBAND_NETPAXOS_SETTINGS_H
#define INBAND_NETPAXOS_SETTINGS_H

#include "../ground/xdp/settings.h"

/* The multicast group: a serializer's minions, or a minion's storage and learners. */
enum ib_netpaxos_group { IB_NETPAXOS_GROUP = 0 };

struct ib_netpaxos_settings {
    ib_u64 incarnation; /* of a minion */
};

#endif
