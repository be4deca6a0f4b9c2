/* SPDX-License-Identifier: Apache-2.0 */
/* race_wait.h - for the race tests: called by shells wherever another CPU could interfere. */
#ifndef INBAND_GROUND_XDP_RACE_WAIT_H
#define INBAND_GROUND_XDP_RACE_WAIT_H

#ifdef IB_RACE_DELAY
#define IB_RACE_WAIT_STEPS 16 /* about 20 ns each */

/* Delays by a varying time. */
IB_INLINE void ib_race_wait(void) {
    ib_u32 steps = bpf_get_prandom_u32() % IB_RACE_WAIT_STEPS;
    for (ib_u32 i = 0; i < IB_RACE_WAIT_STEPS && i < steps; i++)
        bpf_ktime_get_ns();
}
#endif

#endif
