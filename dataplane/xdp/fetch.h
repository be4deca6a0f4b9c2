/* SPDX-License-Identifier: Apache-2.0 */
/* fetch.h - the memory of long values, asked for before it is used. Include after role.h. */
#ifndef INBAND_XDP_FETCH_H
#define INBAND_XDP_FETCH_H

/* By cache lines of 64 bytes. */
#define IB_FETCH(tail, line) ((void)*(const volatile ib_u64 *)((tail)->value + 64 * (line)))

/*
 * Have the processor fetch the cache lines that a value takes, all at once: taking the slot is an
 * atomic operation, which waits for what was asked for before, and the copy would wait for one line
 * after the other. No loop: with an instruction for each line the processor learns the stride from
 * tail to tail.
 */
IB_INLINE void ib_tail_fetch(void *tails, ib_u32 at, ib_u32 value_len_bytes) {
    if (value_len_bytes <= IB_SLOT_VALUE_BYTES)
        return;
    const struct ib_tail *tail = bpf_map_lookup_elem(tails, &at);
    if (!tail)
        return;
    IB_FETCH(tail, 0);
    IB_FETCH(tail, 1);
    if (value_len_bytes <= IB_SLOT_VALUE_BYTES + 128)
        return;
    IB_FETCH(tail, 2);
    IB_FETCH(tail, 3);
    IB_FETCH(tail, 4);
    IB_FETCH(tail, 5);
    IB_FETCH(tail, 6);
    if (value_len_bytes <= IB_SLOT_VALUE_BYTES + 448)
        return;
    IB_FETCH(tail, 7);
    IB_FETCH(tail, 8);
    IB_FETCH(tail, 9);
    IB_FETCH(tail, 10);
    IB_FETCH(tail, 11);
    IB_FETCH(tail, 12);
    IB_FETCH(tail, 13);
    IB_FETCH(tail, 14);
    IB_FETCH(tail, 15);
    IB_FETCH(tail, 16);
    IB_FETCH(tail, 17);
    IB_FETCH(tail, 18);
    IB_FETCH(tail, 19);
}

#endif
