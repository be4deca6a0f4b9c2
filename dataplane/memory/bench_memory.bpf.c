/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_memory - drives a role in a test run (ground/xdp/steps.h). Each round is the next request,
 * for a different chunk. A step's own number is the kind of phase that its packet answers.
 */
#include "../ground/xdp/frame.h"
#include "msg.h"
#include "registers.h"

/* Indices of the steps' own numbers. */
enum ib_memory_bench {
    IB_MEMORY_BENCH_TIMESTAMP = 0, /* the one before that of the first round */
    IB_MEMORY_BENCH_CHUNK_MASK = 1,
    IB_MEMORY_BENCH_WINDOW = 2, /* slots, a power of two */
};

#define IB_STEPS_SET(payload, round, steps, step)                                                  \
    do {                                                                                           \
        ib_u32 window = (ib_u32)(steps)->own[IB_MEMORY_BENCH_WINDOW];                              \
        ib_u32 slot = (ib_u32)(round) & (window - 1);                                              \
        ib_u32 phase = (ib_u32)(((round) - 1) / window) + 1;                                       \
        IB_MEMORY_PUT64(payload, request, round);                                                  \
        IB_MEMORY_PUT64(payload, chunk,                                                            \
                        (round) * 0x9e3779b1 >> 8 & (steps)->own[IB_MEMORY_BENCH_CHUNK_MASK]);     \
        IB_MEMORY_PUT64(payload, timestamp, (steps)->own[IB_MEMORY_BENCH_TIMESTAMP] + (round));    \
        IB_MEMORY_PUT64(payload, slot,                                                             \
                        (ib_u64)slot << 32 | phase << IB_MEMORY_PHASE_BITS | (step)->own);         \
    } while (0)

#include "../ground/xdp/steps.h"
