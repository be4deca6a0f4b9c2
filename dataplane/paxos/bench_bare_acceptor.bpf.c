/* SPDX-License-Identifier: Apache-2.0 */
/* bench_bare_acceptor - the acceptor of the baseline without a protocol. */
#define IB_BARE_ACCEPTOR
#include "bench_bare.h"
