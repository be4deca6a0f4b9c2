/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seqlock.h - atomic operations of the shells: slots locked by one CPU at a time, and words that
 * only increase.
 *
 * IB_MUTANT_* build deliberately faulty shells, for the tests that must catch them. With
 * IB_RACE_DELAY the backend defines ib_race_wait(), which is called wherever another CPU could
 * interfere.
 */
#ifndef INBAND_GROUND_SEQLOCK_H
#define INBAND_GROUND_SEQLOCK_H

#include "frame.h"

#define IB_SEQ_LOCK_TRIES_MAX 64
#define IB_ATOMIC_MAX_TRIES_MAX 64

#ifdef IB_RACE_DELAY
#define IB_RACE_WINDOW() ib_race_wait()
#else
#define IB_RACE_WINDOW()
#endif

#define IB_COMPILER_BARRIER() __asm__ volatile("" ::: "memory")

/* One load, neither torn nor repeated. On x86 it is also an acquire, and a plain store a
 * release. */
#define IB_LOAD(p) (*(const volatile ib_u64 *)(p))

/* Orders the loads before it with those after it. */
#if defined(__bpf__) && !defined(__TARGET_ARCH_x86)
/* The only barrier in BPF is an atomic operation that returns a value. */
#define IB_LOADS_IN_ORDER()                                                                        \
    do {                                                                                           \
        ib_u64 word = 0;                                                                           \
        (void)__sync_lock_test_and_set(&word, 1);                                                  \
    } while (0)
#elif defined(__bpf__)
#define IB_LOADS_IN_ORDER() IB_COMPILER_BARRIER()
#else
#define IB_LOADS_IN_ORDER() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#endif

#if defined(__bpf__) && !defined(__TARGET_ARCH_x86)
/* BPF has no release store before -mcpu=v4: an exchange is a full barrier on every machine. */
#define IB_PUBLISH(p, v) ((void)__sync_lock_test_and_set((p), (v)))
#elif defined(__bpf__)
#define IB_PUBLISH(p, v)                                                                           \
    do {                                                                                           \
        IB_COMPILER_BARRIER();                                                                     \
        *(volatile ib_u64 *)(p) = (v);                                                             \
    } while (0)
#else
#define IB_PUBLISH(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#endif

#define IB_CAS(p, from, to) (__sync_val_compare_and_swap((p), (from), (to)) == (from))

/* Locks a slot: its sequence becomes odd. Returns the odd sequence, or 0 if others held the
 * lock. */
IB_INLINE ib_u64 ib_seq_lock(ib_u64 *sequence) {
#ifdef IB_MUTANT_NO_EXCLUSIVITY
    return IB_LOAD(sequence) | 1;
#else
    for (int i = 0; i < IB_SEQ_LOCK_TRIES_MAX; i++) {
        ib_u64 even = IB_LOAD(sequence);
        if (!(even & 1) && IB_CAS(sequence, even, even + 1))
            return even + 1;
    }
    return 0;
#endif
}

IB_INLINE void ib_seq_unlock(ib_u64 *sequence, ib_u64 odd) {
    IB_PUBLISH(sequence, odd + 1);
}

/* Raises a word to at least `value`. A full barrier if it changed the word. Returns 0 if it gave
 * up. */
IB_INLINE int ib_atomic_max(ib_u64 *word, ib_u64 value) {
    for (int i = 0; i < IB_ATOMIC_MAX_TRIES_MAX; i++) {
        ib_u64 now = IB_LOAD(word);
        if (now >= value || IB_CAS(word, now, value))
            return 1;
    }
    return 0;
}

#endif
