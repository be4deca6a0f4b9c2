/* SPDX-License-Identifier: Apache-2.0 */
/* prefetch.h - prefetches the memory of long values. Include after role.h. */
#ifndef INBAND_PAXOS_PREFETCH_H
#define INBAND_PAXOS_PREFETCH_H

/* In units of cache lines, of 64 bytes. */
#define IB_PREFETCH(tail, line) ((void)*(const volatile ib_u64 *)((tail)->value + 64 * (line)))

/*
 * Makes the processor fetch all cache lines of a value at once. Locking the slot is an atomic
 * operation, which waits for earlier loads; without the prefetch, the copy would wait for one line
 * after another. Not a loop: with a separate instruction for each line, the processor learns the
 * stride from tail to tail.
 */
IB_INLINE void ib_tail_prefetch(void *tails, ib_u32 at, ib_u32 value_len_bytes) {
    if (value_len_bytes <= IB_SLOT_VALUE_BYTES)
        return;
    const struct ib_tail *tail = bpf_map_lookup_elem(tails, &at);
    if (!tail)
        return;
    IB_PREFETCH(tail, 0);
    IB_PREFETCH(tail, 1);
    if (value_len_bytes <= IB_SLOT_VALUE_BYTES + 128)
        return;
    IB_PREFETCH(tail, 2);
    IB_PREFETCH(tail, 3);
    IB_PREFETCH(tail, 4);
    IB_PREFETCH(tail, 5);
    IB_PREFETCH(tail, 6);
    if (value_len_bytes <= IB_SLOT_VALUE_BYTES + 448)
        return;
    IB_PREFETCH(tail, 7);
    IB_PREFETCH(tail, 8);
    IB_PREFETCH(tail, 9);
    IB_PREFETCH(tail, 10);
    IB_PREFETCH(tail, 11);
    IB_PREFETCH(tail, 12);
    IB_PREFETCH(tail, 13);
    IB_PREFETCH(tail, 14);
    IB_PREFETCH(tail, 15);
    IB_PREFETCH(tail, 16);
    IB_PREFETCH(tail, 17);
    IB_PREFETCH(tail, 18);
    IB_PREFETCH(tail, 19);
}

#endif
