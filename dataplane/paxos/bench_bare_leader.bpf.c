/* SPDX-License-Identifier: Apache-2.0 */
/* bench_bare_leader - the leader of the baseline without a protocol. */
#define IB_BARE_LEADER
#include "bench_bare.h"
