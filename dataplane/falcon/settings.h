/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - settings of a Falcon scheduler, native or in the kernel. Rust sees it through
 * bindgen. */
#ifndef INBAND_FALCON_SETTINGS_H
#define INBAND_FALCON_SETTINGS_H

#include "../ground/frame.h"

/* The sets are the common settings' `partitions`. */
struct ib_falcon_config {
    ib_u32 policy;         /* enum ib_falcon_policy */
    ib_u32 slots_log2;     /* of each queue, at least 1 */
    ib_u32 workers;        /* per set, up to IB_FALCON_WORKERS_MAX */
    ib_u32 user_tasks_max; /* per user, in a set's queues */
    ib_u64 locality_wait_ns;
    ib_u64 incarnation; /* random, chosen at its start */
};

#endif
