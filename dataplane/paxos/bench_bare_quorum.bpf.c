/* SPDX-License-Identifier: Apache-2.0 */
/* bench_bare_quorum - the quorum counter of the baseline without a protocol. */
#define IB_BARE_QUORUM
#include "bench_bare.h"
