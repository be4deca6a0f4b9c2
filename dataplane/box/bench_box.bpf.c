/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_box - drives a node in a test run (ground/xdp/steps.h). Each round is about the next
 * record, and a packet's `committed` is the record minus the step's own number.
 */
#include "../ground/xdp/frame.h"
#include "msg.h"

#define IB_STEPS_SET(payload, round, steps, step)                                                  \
    do {                                                                                           \
        IB_BOX_PUT64(payload, zxid, round);                                                        \
        IB_BOX_PUT64(payload, committed, (round) - (step)->own);                                   \
    } while (0)

#include "../ground/xdp/steps.h"
