/* SPDX-License-Identifier: Apache-2.0 */
/* race_wait.h - for the race tests: what a shell calls wherever another thread's step might hurt.
 */
#ifndef INBAND_GROUND_NATIVE_RACE_WAIT_H
#define INBAND_GROUND_NATIVE_RACE_WAIT_H

#include <sched.h>

#include "../frame.h"

#define IB_RACE_YIELD_EVERY 8

/* Now and then let another thread have the CPU, also where there are few. */
static void ib_race_wait(void) {
    static _Thread_local ib_u32 word;
    if (word == 0)
        word = (ib_u32)(unsigned long)&word | 1; /* another start for each thread */
    word ^= word << 13;
    word ^= word >> 17;
    word ^= word << 5;
    if (word % IB_RACE_YIELD_EVERY == 0)
        sched_yield();
}

#endif
