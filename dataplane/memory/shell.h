/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory/shell.h - the code around the roles on every backend: lock the slot or chunk, run the
 * role, move timestamps and lines, unlock.
 *
 * The rules and why:
 *  - A server raises its epoch before it locks the chunk, and checks the packet's epoch under the
 *    lock. If the check were outside, a write of an old epoch could be stored after a read of a
 *    newer epoch, and complete although no later read sees it.
 *  - Neither role takes over an epoch that is far above its own: its process asks the servers
 *    whether there is such an epoch. Otherwise one packet could use up all of them.
 *  - A switch reads its epoch, and the session again, under the slot's lock. The process closes a
 *    session before it clears the session's slots, so none of its requests begins in them later.
 *  - A block's last timestamp and epoch are one word: no timestamp is assigned twice, nor is a
 *    lower one assigned after a higher one, whichever epoch a CPU still has.
 *  - Every loop is bounded; on failure the packet is dropped. Loss is always safe.
 *
 * Before including this file a backend defines struct ib_memory_here, the accessors of registers
 * (which return NULL or 0 if there are none), and functions that move values. These return 0 on
 * success; on failure they return another value and have changed nothing. `max` is the constant
 * upper bound of `len`:
 *   ib_memory_value_load(here, at, to, len, max)      value's bytes from `at` -> registers
 *   ib_memory_value_store(here, at, from, len, max)   registers -> value's bytes from `at`
 *   ib_memory_value_resize(here, len)                 sets the value's length
 *   ib_memory_value_sum(here, len)                    returns its ib_value_checksum
 */
#ifndef INBAND_MEMORY_SHELL_H
#define INBAND_MEMORY_SHELL_H

#include "../ground/seqlock.h"
#include "role_server.h"
#include "role_switch.h"

#define IB_MEMORY_NUMBER_TRIES_MAX 16

enum ib_memory_sizes {
    IB_MEMORY_TIMESTAMPS_LEN_BYTES = IB_MEMORY_CHUNK_LINES * IB_MEMORY_TIMESTAMP_LEN_BYTES,
    IB_MEMORY_LINES_LEN_BYTES = IB_MEMORY_CHUNK_LINES * IB_MEMORY_LINE_LEN_BYTES,
};

#ifdef IB_MEMORY_SWITCH

IB_INLINE void ib_memory_look(struct ib_memory_view *v, const struct ib_memory_switch *regs,
                              ib_u32 servers) {
    v->epoch = IB_LOAD(&regs->epoch);
    v->deposed = IB_LOAD(&regs->deposed);
    v->majority = servers / 2 + 1;
}

/* Sets the next timestamp of a block. Returns a reason if that failed. */
IB_INLINE unsigned int ib_memory_number(struct ib_memory_switch *regs,
                                        struct ib_memory_block *block, ib_u64 epoch,
                                        ib_u64 *timestamp) {
    for (int i = 0; i < IB_MEMORY_NUMBER_TRIES_MAX; i++) {
        ib_u64 last = IB_LOAD(&block->timestamp);
        if (last >> IB_MEMORY_COUNT_BITS > epoch)
            break;
        *timestamp = ib_memory_next_timestamp(last, epoch);
        IB_RACE_WINDOW();
#ifdef IB_MUTANT_NUMBER_BY_STORE
        *(volatile ib_u64 *)&block->timestamp = *timestamp;
        return IB_R_none;
#endif
        if (IB_RARE(ib_memory_is_nearly_used_up(last)))
            *(volatile ib_u64 *)&regs->nearly_used_up = last;
        if (*timestamp == 0 || IB_CAS(&block->timestamp, last, *timestamp))
            return IB_R_none;
    }
    return IB_R_contended;
}

/* Copies the slot's timestamps and lines into the packet. Returns nonzero if there is no room. */
IB_INLINE int ib_memory_put_value(struct ib_memory_here *here, const struct ib_memory_msg *m,
                                  const struct ib_memory_slot *slot) {
    ib_u32 lines = ib_memory_count_bits(m->lines);
    ib_u32 timestamps_len_bytes = lines * IB_MEMORY_TIMESTAMP_LEN_BYTES;
    return ib_memory_value_resize(here, m->value_len_bytes) ||
           ib_memory_value_store(here, 0, slot->version, timestamps_len_bytes,
                                 IB_MEMORY_TIMESTAMPS_LEN_BYTES) ||
           ib_memory_value_store(here, timestamps_len_bytes, slot->line,
                                 lines * IB_MEMORY_LINE_LEN_BYTES, IB_MEMORY_LINES_LEN_BYTES);
}

/* READ_REQUEST and WRITE_REQUEST. */
IB_INLINE struct ib_result ib_shell_memory_request(struct ib_memory_here *here,
                                                   struct ib_memory_msg *m,
                                                   const struct ib_memory_client *client) {
    struct ib_memory_view v;
    ib_u64 timestamp = 0;
    int new_value = 0;
    struct ib_memory_switch *regs = ib_memory_switch_at(here);
    struct ib_memory_session *session =
        ib_memory_session_at(here, (ib_u32)(m->session & IB_MEMORY_SESSION_MASK));
    struct ib_memory_block *block = ib_memory_block_at(here, m->chunk);
    if (!block || !regs)
        return ib_verdict(IB_DROP, IB_R_memory_bad_chunk);
    ib_memory_look(&v, regs, ib_memory_servers(here));
    if (IB_RARE(!ib_memory_is_active(&v)))
        return ib_memory_refuse(m, &v, IB_MEMORY_F_NOT_ACTIVE, IB_R_memory_not_active);
    if (IB_RARE(!session || m->session == 0 || IB_LOAD(&session->session) != m->session))
        return ib_memory_refuse(m, &v, 0, IB_R_memory_no_session);
    m->slot = (ib_u32)IB_LOAD(&session->slot_first) +
              ((ib_u32)m->request & ((ib_u32)IB_LOAD(&session->window) - 1));
    struct ib_memory_slot *slot = ib_memory_slot_at(here, m->slot);
    if (IB_RARE(!slot))
        return ib_memory_refuse(m, &v, 0, IB_R_memory_no_session);
    IB_RACE_WINDOW();
    ib_u64 odd = ib_seq_lock(&slot->sequence);
    if (IB_RARE(!odd))
        return ib_verdict(IB_DROP, IB_R_contended);
    struct ib_result result = {IB_DROP, IB_R_contended};
#ifndef IB_MUTANT_SESSION_BEFORE_LOCK
    ib_memory_look(&v, regs, ib_memory_servers(here));
    if (IB_RARE(!ib_memory_is_active(&v) || IB_LOAD(&session->session) != m->session))
        goto release; /* it will be refused when it is retransmitted */
#endif
    if (IB_LOAD(&session->requests) < m->request)
        *(volatile ib_u64 *)&session->requests = m->request;
    int takes = ib_memory_takes_slot(m, slot);
    IB_RACE_WINDOW();
    if (m->type == IB_MEMORY_WRITE_REQUEST && takes &&
        IB_RARE(ib_memory_number(regs, block, v.epoch, &timestamp) != IB_R_none))
        goto release;
    result = ib_memory_request(m, &v, slot, timestamp);
    if (takes && result.verdict != IB_DROP) /* a replayed request must not divert an answer */
        slot->client = *client;
    new_value = m->type == IB_MEMORY_WRITE_BACK;
    if (new_value && IB_RARE(ib_memory_put_value(here, m, slot)))
        result = ib_verdict(IB_DROP, IB_R_no_room);
release:
    ib_seq_unlock(&slot->sequence, odd);
    if (new_value)
        m->digest = ib_memory_value_sum(here, m->value_len_bytes);
    return result;
}

/* Merges an answer into the slot. Returns nonzero if the packet is shorter than it claims. */
IB_INLINE int ib_memory_merge(struct ib_memory_here *here, const struct ib_memory_msg *m,
                              struct ib_memory_slot *slot, ib_u32 lines) {
    ib_u32 lines_at = lines * IB_MEMORY_TIMESTAMP_LEN_BYTES;
    if (slot->answered == 0) {
        for (ib_u32 n = 0; n < IB_MEMORY_CHUNK_LINES; n++)
            slot->holders[n] = (ib_u8)(1U << (m->node - 1));
        return ib_memory_value_load(here, 0, slot->version, lines_at,
                                    IB_MEMORY_TIMESTAMPS_LEN_BYTES) ||
               ib_memory_value_load(here, lines_at, slot->line, lines * IB_MEMORY_LINE_LEN_BYTES,
                                    IB_MEMORY_LINES_LEN_BYTES);
    }
    if (ib_memory_value_load(here, 0, slot->incoming, lines_at, IB_MEMORY_TIMESTAMPS_LEN_BYTES))
        return -1;
    IB_LOOP
    for (ib_u32 n = 0; n < IB_MEMORY_CHUNK_LINES; n++) {
        if (n >= lines)
            break;
        if (ib_memory_merge_line(slot, n, m->node) &&
            ib_memory_value_load(here, lines_at + n * IB_MEMORY_LINE_LEN_BYTES, slot->line[n],
                                 IB_MEMORY_LINE_LEN_BYTES, IB_MEMORY_LINE_LEN_BYTES))
            return -1;
    }
    return 0;
}

/* Whether a majority holds the version of each line. */
IB_INLINE int ib_memory_agrees(const struct ib_memory_slot *slot, ib_u32 lines, ib_u32 majority) {
    IB_LOOP
    for (ib_u32 n = 0; n < IB_MEMORY_CHUNK_LINES; n++) {
        if (n >= lines)
            break;
        if (ib_memory_count_bits(slot->holders[n]) < majority)
            return 0;
    }
    return 1;
}

/* Whether the answer that was just merged has the version of each line. */
IB_INLINE int ib_memory_is_newest(const struct ib_memory_slot *slot, ib_u32 lines) {
    IB_LOOP
    for (ib_u32 n = 0; n < IB_MEMORY_CHUNK_LINES; n++) {
        if (n >= lines)
            break;
        if (slot->incoming[n] != slot->version[n])
            return 0;
    }
    return 1;
}

/* A READ_ANSWER that counts. */
IB_INLINE struct ib_result ib_memory_read_answer(struct ib_memory_here *here,
                                                 struct ib_memory_msg *m,
                                                 const struct ib_memory_view *v,
                                                 struct ib_memory_slot *slot, int *new_value) {
    ib_u32 lines = ib_memory_count_bits(m->lines);
    int first = slot->answered == 0;
    if (IB_RARE(ib_memory_merge(here, m, slot, lines))) {
        ib_memory_begin_phase(v, slot, IB_MEMORY_FREE);
        return ib_verdict(IB_DROP, IB_R_no_room);
    }
    IB_RACE_WINDOW();
    if (!ib_memory_answered(m, v, slot))
        return ib_verdict(IB_DROP, IB_R_memory_read_counted);
    *new_value = !first && !ib_memory_is_newest(slot, lines);
    return ib_memory_have_read(m, v, slot, ib_memory_agrees(slot, lines, v->majority));
}

/* READ_ANSWER and ACK. With IB_MEMORY_TO_CLIENT, `client` is set to the destination. */
IB_INLINE struct ib_result ib_shell_memory_answer(struct ib_memory_here *here,
                                                  struct ib_memory_msg *m,
                                                  struct ib_memory_client *client) {
    struct ib_memory_view v;
    int new_value = 0;
    struct ib_memory_switch *regs = ib_memory_switch_at(here);
    struct ib_memory_slot *slot = ib_memory_slot_at(here, m->slot);
    if (!slot || !regs)
        return ib_verdict(IB_DROP, IB_R_memory_answer_late);
    if (m->node == 0 || m->node > ib_memory_servers(here))
        return ib_verdict(IB_DROP, IB_R_memory_not_for_role);
    ib_memory_look(&v, regs, ib_memory_servers(here));
    unsigned int reason = ib_memory_does_not_count(m, &v, slot);
    if (reason != IB_R_none) /* without locking; most of a read's last answers end here */
        return ib_verdict(IB_DROP, reason);
    if (m->type == IB_MEMORY_READ_ANSWER &&
        IB_RARE(ib_memory_value_sum(here, m->value_len_bytes) != m->digest))
        return ib_verdict(IB_DROP, IB_R_memory_bad_digest);
    IB_RACE_WINDOW();
    ib_u64 odd = ib_seq_lock(&slot->sequence);
    if (IB_RARE(!odd))
        return ib_verdict(IB_DROP, IB_R_contended);
    ib_memory_look(&v, regs, ib_memory_servers(here));
    struct ib_result result = {IB_DROP, ib_memory_does_not_count(m, &v, slot)};
    if (result.reason != IB_R_none)
        goto release;
    IB_RACE_WINDOW();
    if (m->type == IB_MEMORY_READ_ANSWER) {
        result = ib_memory_read_answer(here, m, &v, slot, &new_value);
    } else {
        result = ib_memory_ack(m, &v, slot);
        new_value = m->type == IB_MEMORY_READ_REPLY;
    }
    if (new_value && IB_RARE(ib_memory_put_value(here, m, slot)))
        result = ib_verdict(IB_DROP, IB_R_no_room);
    if (result.verdict == IB_MEMORY_TO_CLIENT)
        *client = slot->client;
release:
    ib_seq_unlock(&slot->sequence, odd);
    if (new_value)
        m->digest = ib_memory_value_sum(here, m->value_len_bytes);
    return result;
}

/* Handles any packet at a switch. `client` is the sender of a request; with IB_MEMORY_TO_CLIENT, it
 * is set to the destination. */
IB_INLINE struct ib_result ib_shell_memory_switch(struct ib_memory_here *here,
                                                  struct ib_memory_msg *m,
                                                  struct ib_memory_client *client) {
    if (m->type == IB_MEMORY_READ_ANSWER || m->type == IB_MEMORY_ACK)
        return ib_shell_memory_answer(here, m, client);
    if (m->type == IB_MEMORY_READ_REQUEST || m->type == IB_MEMORY_WRITE_REQUEST)
        return ib_shell_memory_request(here, m, client);
    if (m->type == IB_MEMORY_HELLO ||
        (m->type == IB_MEMORY_EPOCH && m->flags & IB_MEMORY_F_TO_GRANT))
        return ib_verdict(IB_PASS, IB_R_passed_up);
    if (m->type != IB_MEMORY_EPOCH)
        return ib_verdict(IB_DROP, IB_R_memory_not_for_role);
    struct ib_memory_switch *regs = ib_memory_switch_at(here);
    ib_u64 epoch = regs ? IB_LOAD(&regs->epoch) : 0;
    if (!regs || m->epoch <= epoch)
        return ib_verdict(IB_DROP, IB_R_memory_answer_late);
    if (ib_memory_is_ahead(m->epoch, epoch))
        return ib_verdict(IB_PASS, IB_R_memory_epoch_ahead);
    ib_atomic_max(&regs->deposed, m->epoch);
    return ib_verdict(IB_DROP, IB_R_memory_deposed);
}

#endif /* IB_MEMORY_SWITCH */

#ifdef IB_MEMORY_SERVER

/* The index of the chunk's n-th line among the packet's lines. */
IB_INLINE ib_u32 ib_memory_place(ib_u32 lines, ib_u32 n) {
    return ib_memory_count_bits(lines & ((1U << n) - 1));
}

/* Chunk -> packet. Returns nonzero if there is no room. */
IB_INLINE int ib_memory_read(struct ib_memory_here *here, const struct ib_memory_msg *m,
                             const struct ib_memory_chunk *chunk) {
    ib_u32 lines_at = ib_memory_count_bits(m->lines) * IB_MEMORY_TIMESTAMP_LEN_BYTES;
    if (m->lines == IB_MEMORY_LINES_ALL)
        return ib_memory_value_store(here, 0, chunk->timestamp, IB_MEMORY_VALUE_LEN_MAX_BYTES,
                                     IB_MEMORY_VALUE_LEN_MAX_BYTES);
    IB_LOOP
    for (ib_u32 n = 0; n < IB_MEMORY_CHUNK_LINES; n++) {
        if (!(m->lines >> n & 1))
            continue;
        ib_u32 place = ib_memory_place(m->lines, n);
        if (ib_memory_value_store(here, place * IB_MEMORY_TIMESTAMP_LEN_BYTES, &chunk->timestamp[n],
                                  IB_MEMORY_TIMESTAMP_LEN_BYTES, IB_MEMORY_TIMESTAMP_LEN_BYTES) ||
            ib_memory_value_store(here, lines_at + place * IB_MEMORY_LINE_LEN_BYTES, chunk->line[n],
                                  IB_MEMORY_LINE_LEN_BYTES, IB_MEMORY_LINE_LEN_BYTES))
            return -1;
    }
    return 0;
}

/* Whether this is a write of all lines, all of which are older. Then they are copied in one
 * piece. */
IB_INLINE int ib_memory_replaces_all(const struct ib_memory_msg *m,
                                     const struct ib_memory_chunk *chunk) {
    if (m->type != IB_MEMORY_WRITE || m->lines != IB_MEMORY_LINES_ALL)
        return 0;
    IB_LOOP
    for (ib_u32 n = 0; n < IB_MEMORY_CHUNK_LINES; n++)
        if (!ib_memory_replaces(chunk, n, m->timestamp))
            return 0;
    return 1;
}

/* Packet -> chunk, for newer lines. Returns IB_R_none, or why it ended before the last one: the
 * packet is shorter than it claims, or has a timestamp that no switch gives. */
IB_INLINE unsigned int ib_memory_write(struct ib_memory_here *here, const struct ib_memory_msg *m,
                                       struct ib_memory_chunk *chunk) {
    ib_u32 lines_at = 0;
    if (ib_memory_replaces_all(m, chunk)) {
        if (ib_memory_value_load(here, 0, chunk->line, IB_MEMORY_LINES_LEN_BYTES,
                                 IB_MEMORY_LINES_LEN_BYTES))
            return IB_R_no_room;
        for (ib_u32 n = 0; n < IB_MEMORY_CHUNK_LINES; n++)
            chunk->timestamp[n] = IB_NET64(m->timestamp);
        return IB_R_none;
    }
    if (m->type == IB_MEMORY_WRITE_BACK)
        lines_at = ib_memory_count_bits(m->lines) * IB_MEMORY_TIMESTAMP_LEN_BYTES;
    IB_LOOP
    for (ib_u32 n = 0; n < IB_MEMORY_CHUNK_LINES; n++) {
        if (!(m->lines >> n & 1))
            continue;
        ib_u32 place = ib_memory_place(m->lines, n);
        ib_u64 timestamp = IB_NET64(m->timestamp);
        if (m->type == IB_MEMORY_WRITE_BACK &&
            ib_memory_value_load(here, place * IB_MEMORY_TIMESTAMP_LEN_BYTES, &timestamp,
                                 IB_MEMORY_TIMESTAMP_LEN_BYTES, IB_MEMORY_TIMESTAMP_LEN_BYTES))
            return IB_R_no_room;
        if (!ib_memory_replaces(chunk, n, IB_NET64(timestamp)))
            continue;
        if (IB_RARE(!ib_memory_is_of_epoch(m, IB_NET64(timestamp))))
            return IB_R_memory_bad_epoch;
        if (ib_memory_value_load(here, lines_at + place * IB_MEMORY_LINE_LEN_BYTES, chunk->line[n],
                                 IB_MEMORY_LINE_LEN_BYTES, IB_MEMORY_LINE_LEN_BYTES))
            return IB_R_no_room;
        IB_RACE_WINDOW();
        chunk->timestamp[n] = timestamp;
    }
    return IB_R_none;
}

/* Handles any packet at a server. */
IB_INLINE struct ib_result ib_shell_memory_server(struct ib_memory_here *here,
                                                  struct ib_memory_msg *m) {
    struct ib_memory_server *regs = ib_memory_server_at(here);
    if (!regs)
        return ib_verdict(IB_DROP, IB_R_memory_recovering);
    ib_u64 serving = IB_LOAD(&regs->serving);
    if (ib_memory_is_for_process(m, serving))
        return ib_verdict(IB_PASS, IB_R_passed_up);
    struct ib_result result = {IB_DROP, ib_memory_is_not_answered(m, serving)};
    if (IB_RARE(result.reason != IB_R_none))
        return result;
    if (IB_RARE(ib_memory_is_ahead(m->epoch, IB_LOAD(&regs->epoch))))
        return ib_verdict(IB_PASS, IB_R_memory_epoch_ahead);
    struct ib_memory_chunk *chunk = ib_memory_chunk_at(here, m->chunk);
    if (IB_RARE(!chunk))
        return ib_verdict(IB_DROP, IB_R_memory_bad_chunk);
    int reads = m->type == IB_MEMORY_READ;
    ib_u32 lines = ib_memory_count_bits(m->lines);
    ib_u32 value_len_bytes = ib_memory_value_len_bytes(IB_MEMORY_READ_ANSWER, lines);
    if (reads) {
        if (IB_RARE(ib_memory_value_resize(here, value_len_bytes)))
            return ib_verdict(IB_DROP, IB_R_no_room);
    } else if (IB_RARE(ib_memory_value_sum(here, m->value_len_bytes) != m->digest)) {
        return ib_verdict(IB_DROP, IB_R_memory_bad_digest);
    }
    if (IB_RARE(!ib_atomic_max(&regs->epoch, m->epoch)))
        return ib_verdict(IB_DROP, IB_R_contended);
#ifdef IB_MUTANT_EPOCH_BEFORE_LOCK
    ib_u64 epoch = IB_LOAD(&regs->epoch);
#endif
    IB_RACE_WINDOW();
    ib_u64 odd = ib_seq_lock(&chunk->sequence);
    if (IB_RARE(!odd))
        return ib_verdict(IB_DROP, IB_R_contended);
#ifndef IB_MUTANT_EPOCH_BEFORE_LOCK
    ib_u64 epoch = IB_LOAD(&regs->epoch);
#endif
    IB_RACE_WINDOW();
    if (IB_RARE(m->epoch < epoch)) {
        result = ib_memory_refuse_epoch(m, epoch);
    } else if (reads) {
        result =
            ib_memory_read(here, m, chunk)
                ? ib_verdict(IB_DROP, IB_R_no_room)
                : ib_memory_answer(m, IB_MEMORY_READ_ANSWER, value_len_bytes, IB_R_memory_read);
    } else {
        result.reason = ib_memory_write(here, m, chunk);
        if (result.reason == IB_R_none)
            result = ib_memory_answer(m, IB_MEMORY_ACK, 0, IB_R_memory_written);
    }
    ib_seq_unlock(&chunk->sequence, odd);
    if (m->type == IB_MEMORY_READ_ANSWER)
        m->digest = ib_memory_value_sum(here, value_len_bytes);
    return result;
}

#endif /* IB_MEMORY_SERVER */

#endif
