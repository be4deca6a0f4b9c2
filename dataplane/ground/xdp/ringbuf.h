/* SPDX-License-Identifier: Apache-2.0 */
/* up.h - the way of decided values to the host's learner: a ring buffer. Include after role.h. */
#ifndef INBAND_GROUND_XDP_RINGBUF_H
#define INBAND_GROUND_XDP_RINGBUF_H

#include "frame.h"

/* A record is the UDP payload as received, in a room of one of the sizes of IB_RINGBUF_DELIVER. */
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096); /* bytes, set by the loader */
} ib_ringbuf_map SEC(".maps");

/* Not 0: the host is polling the ring buffer and needs no waking. */
IB_REGISTERS(ib_polling_map, ib_u64);

#define IB_WAKE_ROOM_BYTES 8

/*
 * Waking costs an interrupt to ourselves, even if nobody sleeps. So while the host polls it is not
 * woken. It says that it stops, then looks once more, then sleeps; and we commit, then look whether
 * it has stopped: one of the two sees the other.
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

/* bpf_ringbuf_reserve wants a constant size: use the smallest that is enough. */
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
 * Deliver a packet of len_bytes of UDP payload, and return 0; or -1, having done nothing, if the
 * ring buffer is full. A macro: as a function it costs clang registers, and the program grows.
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
