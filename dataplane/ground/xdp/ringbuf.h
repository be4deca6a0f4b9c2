/* SPDX-License-Identifier: Apache-2.0 */
/* ringbuf.h - the ring buffer that delivers decided values to the host's learner. Include after
 * role.h. */
#ifndef INBAND_GROUND_XDP_RINGBUF_H
#define INBAND_GROUND_XDP_RINGBUF_H

#include "frame.h"

/* A record is the UDP payload as received, in one of the record sizes of IB_RINGBUF_DELIVER. */
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096); /* bytes, set by the loader */
} ib_ringbuf_map SEC(".maps");

/* Not 0: the host is polling the ring buffer and need not be woken. */
IB_REGISTERS(ib_polling_map, ib_u64);

#define IB_WAKE_ROOM_BYTES 8

/*
 * A wake-up costs an interrupt on this CPU even if the host is not sleeping, so the host is not
 * woken while it polls. Before it sleeps, it clears the flag and checks the ring once more; this
 * side commits and then checks the flag. So at least one of the two sees the other.
 */
IB_INLINE void ib_ringbuf_submit(void *record) {
    ib_u32 zero = 0;
    ib_u64 *polling = bpf_map_lookup_elem(&ib_polling_map, &zero);
    if (!polling || !*(volatile ib_u64 *)polling) {
        bpf_ringbuf_submit(record, 0);
        return;
    }
    bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP); /* a full barrier */
    if (*(volatile ib_u64 *)polling)
        return;
    void *wake = bpf_ringbuf_reserve(&ib_ringbuf_map, IB_WAKE_ROOM_BYTES, 0);
    if (wake)
        bpf_ringbuf_discard(wake, BPF_RB_FORCE_WAKEUP);
}

/* bpf_ringbuf_reserve needs a constant size: use the smallest that fits. */
#define IB_RINGBUF_IF_FITS(ctx, len_bytes, room_bytes)                                             \
    if (len_bytes <= (room_bytes)) {                                                               \
        void *record = bpf_ringbuf_reserve(&ib_ringbuf_map, (room_bytes), 0);                      \
        if (!record)                                                                               \
            return -1;                                                                             \
        if (bpf_xdp_load_bytes(ctx, IB_XDP_FRAME_LEN_BYTES, record,                                \
                               IB_COPY_LEN(len_bytes, (room_bytes)))) {                            \
            bpf_ringbuf_discard(record, 0);                                                        \
            return -1;                                                                             \
        }                                                                                          \
        ib_ringbuf_submit(record);                                                                 \
        return 0;                                                                                  \
    }

/*
 * Delivers a packet with a UDP payload of len_bytes and returns 0, or returns -1 without any effect
 * if the ring buffer is full. A macro, because a function would cost clang registers and enlarge
 * the program.
 */
#define IB_RINGBUF_DELIVER(ctx, len_bytes)                                                         \
    IB_RINGBUF_IF_FITS(ctx, len_bytes, 128)                                                        \
    IB_RINGBUF_IF_FITS(ctx, len_bytes, 192)                                                        \
    IB_RINGBUF_IF_FITS(ctx, len_bytes, 320)                                                        \
    IB_RINGBUF_IF_FITS(ctx, len_bytes, 576)                                                        \
    IB_RINGBUF_IF_FITS(ctx, len_bytes, 1024)                                                       \
    IB_RINGBUF_IF_FITS(ctx, len_bytes, IB_HEADER_LEN_BYTES + IB_VALUE_LEN_MAX_BYTES)               \
    return -1

#endif
