/* SPDX-License-Identifier: Apache-2.0 */
/* role_server.h - the memory server: stores the newest version of each line. Pure; the shell locks
 * the chunk. */
#ifndef INBAND_MEMORY_ROLE_SERVER_H
#define INBAND_MEMORY_ROLE_SERVER_H

#include "msg.h"
#include "registers.h"

/* Whether the packet is for the server's process: an answer to the process's request, or GRANT. */
IB_INLINE int ib_memory_is_for_process(const struct ib_memory_msg *m, ib_u64 serving) {
    return m->type == IB_MEMORY_READ_ANSWER || m->type == IB_MEMORY_EPOCH ||
           (m->type == IB_MEMORY_GRANT && serving);
}

/* Whether the timestamp (host order) is of the packet's epoch or an earlier one, as all that a
 * switch sends are. No write could ever replace a line with a timestamp of the last epoch. */
IB_INLINE int ib_memory_is_of_epoch(const struct ib_memory_msg *m, ib_u64 timestamp) {
    return timestamp >> IB_MEMORY_COUNT_BITS <= m->epoch;
}

/* Returns IB_R_none if the request must be answered. */
IB_INLINE unsigned int ib_memory_is_not_answered(const struct ib_memory_msg *m, ib_u64 serving) {
    if (!serving)
        return IB_R_memory_recovering;
    if (m->type != IB_MEMORY_READ && m->type != IB_MEMORY_WRITE && m->type != IB_MEMORY_WRITE_BACK)
        return IB_R_memory_not_for_role;
    int of_epoch = m->type != IB_MEMORY_WRITE || ib_memory_is_of_epoch(m, m->timestamp);
    return m->epoch == 0 || !of_epoch ? IB_R_memory_bad_epoch : IB_R_none;
}

IB_INLINE struct ib_result ib_memory_answer(struct ib_memory_msg *m, ib_u8 type,
                                            ib_u32 value_len_bytes, unsigned int reason) {
    if (m->type != IB_MEMORY_WRITE_BACK || type != IB_MEMORY_ACK) /* it may become READ_REPLY */
        m->room_len_bytes = (ib_u16)value_len_bytes;
    m->type = type;
    m->flags = 0;
    m->value_len_bytes = (ib_u16)value_len_bytes;
    if (value_len_bytes == 0)
        m->digest = 0;
    return ib_verdict(IB_REPLY, reason);
}

/* The sender's epoch has ended. */
IB_INLINE struct ib_result ib_memory_refuse_epoch(struct ib_memory_msg *m, ib_u64 epoch) {
    m->epoch = epoch;
    return ib_memory_answer(m, IB_MEMORY_EPOCH, 0, IB_R_memory_old_epoch);
}

/* Whether a line with this timestamp (host order) replaces line `n` of the chunk. */
IB_INLINE int ib_memory_replaces(const struct ib_memory_chunk *chunk, ib_u32 n, ib_u64 timestamp) {
    return timestamp > IB_NET64(chunk->timestamp[n]);
}

#endif
