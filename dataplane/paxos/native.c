/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>

#include "native.h"

struct ib_frame {
    ib_u8 *data;
    struct ib_tail *tail; /* tail of the slot that the packet is for */
    ib_u32 hand_off_fails;
};

/* The number of bytes of a value that are stored in its slot. */
static inline ib_u32 in_slot(ib_u32 len_bytes) {
    return len_bytes < IB_SLOT_VALUE_BYTES ? len_bytes : IB_SLOT_VALUE_BYTES;
}

static inline int ib_value_save(struct ib_frame *frame, struct ib_slot *slot, ib_u32 len_bytes) {
    const ib_u8 *from = frame->data + IB_HEADER_LEN_BYTES;
    ib_u32 head = in_slot(len_bytes);
    if (len_bytes > IB_VALUE_LEN_MAX_BYTES)
        return -1;
    memcpy(slot->value, from, head);
    memcpy(frame->tail->value, from + head, len_bytes - head);
    return 0;
}

static inline int ib_value_load(struct ib_frame *frame, struct ib_slot *slot, ib_u32 len_bytes) {
    ib_u8 *to = frame->data + IB_HEADER_LEN_BYTES;
    ib_u32 head = in_slot(len_bytes);
    if (len_bytes > IB_VALUE_LEN_MAX_BYTES)
        return -1;
    memcpy(to, slot->value, head);
    memcpy(to + head, frame->tail->value, len_bytes - head);
    return 0;
}

struct ib_paxos_msg;
static int ib_value_check(struct ib_frame *frame, const struct ib_paxos_msg *m);
static inline int ib_value_up(struct ib_frame *frame, const struct ib_paxos_msg *m) {
    (void)m; /* the value is in the caller's buffer already */
    return frame->hand_off_fails ? -1 : 0;
}

#include "shell.h"

static int ib_value_check(struct ib_frame *frame, const struct ib_paxos_msg *m) {
    const ib_u8 *value = frame->data + IB_HEADER_LEN_BYTES;
    return ib_value_checksum(value, value + m->value_len_bytes, m->value_len_bytes) != m->checksum;
}

static struct ib_result handle(struct ib_paxos_switch *sw, struct ib_paxos_msg *m,
                               struct ib_frame *frame) {
    ib_u64 at = (ib_u64)m->partition * sw->ring_slots + (m->instance & (sw->ring_slots - 1));
    switch (m->type) {
    case IB_PAXOS_REQUEST:
    case IB_PAXOS_NACK:
        if (sw->roles & IB_ROLE_LEADER)
            return ib_shell_leader(m, &sw->leader[m->partition], sw->ring_slots, frame);
        break;
    case IB_PAXOS_TRIM:
    case IB_PAXOS_POSITION:
        if (m->flags & IB_PAXOS_F_LEADER) {
            if (sw->roles & IB_ROLE_LEADER)
                return ib_shell_leader(m, &sw->leader[m->partition], sw->ring_slots, frame);
            break;
        }
        if (sw->roles & IB_ROLE_ACCEPTOR)
            return ib_shell_acceptor_partition(m, &sw->acceptor[m->partition]);
        break;
    case IB_PAXOS_PHASE1A:
    case IB_PAXOS_PHASE2A:
    case IB_PAXOS_LEARN:
        if (!(sw->roles & IB_ROLE_ACCEPTOR))
            break;
        if (ib_acceptor_needs_slot(m)) {
            frame->tail = &sw->tails[at];
            return ib_shell_acceptor_slot(m, &sw->acceptor[m->partition], &sw->ring[at],
                                          sw->ring_slots, frame);
        }
        return ib_shell_acceptor_partition(m, &sw->acceptor[m->partition]);
    case IB_PAXOS_PHASE2B:
        if (sw->roles & IB_ROLE_QUORUM)
            return ib_shell_quorum(m, sw->quorum, &sw->counts[at], frame);
        break;
    }
    return ib_verdict(IB_PASS, IB_R_passed_up);
}

struct ib_result ib_paxos_switch_handle(struct ib_paxos_switch *sw, ib_u8 *buffer,
                                        ib_u32 *len_bytes) {
    struct ib_paxos_msg m = {0};
    struct ib_frame frame = {buffer, NULL, sw->hand_off_fails};
    struct ib_result result = {IB_DROP, IB_R_none};
    result.reason = ib_paxos_parse(buffer, buffer + *len_bytes, *len_bytes, sw->partitions, &m);
    if (result.reason == IB_R_none)
        result = handle(sw, &m, &frame);
    if (result.verdict == IB_REPLY || result.verdict == IB_TO_ACCEPTORS ||
        result.verdict == IB_TO_LEARNERS) {
        m.node = (ib_u16)sw->node;
        ib_paxos_emit(buffer, &m);
        *len_bytes = IB_HEADER_LEN_BYTES + m.value_len_bytes;
    }
    __atomic_fetch_add(&sw->counters[result.reason], 1, __ATOMIC_RELAXED);
    return result;
}

IB_NATIVE_CHECK_IS(paxos, IB_PAXOS_REASONS_FIRST, IB_PAXOS_REASONS)
