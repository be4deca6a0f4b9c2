/* SPDX-License-Identifier: Apache-2.0 */
/* bench_bare_quorum - the quorum of the baseline that has no protocol. */
#define IB_BARE_QUORUM
#include "bench_bare.h"
