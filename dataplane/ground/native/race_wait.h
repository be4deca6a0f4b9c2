/* SPDX-License-Identifier: Apache-2.0 */
/* race_wait.h - for the race tests: called by shells wherever another thread could interfere. */
#ifndef INBAND_GROUND_NATIVE_RACE_WAIT_H
#define INBAND_GROUND_NATIVE_RACE_WAIT_H

#include <sched.h>

#include "../frame.h"

#define IB_RACE_YIELD_EVERY 8

/* Yields sometimes, so that threads interleave even on few CPUs. */
static void ib_race_wait(void) {
    static _Thread_local ib_u32 word;
    if (word == 0)
        word = (ib_u32)(unsigned long)&word | 1; /* a different seed for each thread */
    word ^= word << 13;
    word ^= word >> 17;
    word ^= word << 5;
    if (word % IB_RACE_YIELD_EVERY == 0)
        sched_yield();
}

#endif
