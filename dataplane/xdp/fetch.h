/* SPDX-License-Identifier: Apache-2.0 */
/* fetch.h - the memory of a slot, asked for before it is used. Include after role.h. */
#ifndef INBAND_XDP_FETCH_H
#define INBAND_XDP_FETCH_H

/* By cache lines of 64 bytes. */
#define IB_FETCH(slot, line) ((void)*(const volatile ib_u64 *)((const ib_u8 *)(slot) + 64 * (line)))

/*
 * Have the processor fetch the cache lines of a slot that a value takes, all at once: taking the slot
 * is an atomic operation, which would wait for the first line before it asks for the next. No loop:
 * with an instruction for each line the processor learns the stride from slot to slot.
 */
IB_INLINE void ib_slot_fetch(const struct ib_slot *slot, ib_u32 value_len_bytes) {
    IB_FETCH(slot, 0);
    IB_FETCH(slot, 1);
    IB_FETCH(slot, 2);
    if (value_len_bytes <= 64)
        return;
    IB_FETCH(slot, 3);
    IB_FETCH(slot, 4);
    IB_FETCH(slot, 5);
    if (value_len_bytes <= 256)
        return;
    IB_FETCH(slot, 6);
    IB_FETCH(slot, 7);
    IB_FETCH(slot, 8);
    IB_FETCH(slot, 9);
    IB_FETCH(slot, 10);
    IB_FETCH(slot, 11);
    if (value_len_bytes <= 640)
        return;
    IB_FETCH(slot, 12);
    IB_FETCH(slot, 13);
    IB_FETCH(slot, 14);
    IB_FETCH(slot, 15);
    IB_FETCH(slot, 16);
    IB_FETCH(slot, 17);
    IB_FETCH(slot, 18);
    IB_FETCH(slot, 19);
    IB_FETCH(slot, 20);
    IB_FETCH(slot, 21);
}

#endif
