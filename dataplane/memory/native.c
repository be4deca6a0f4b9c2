/* SPDX-License-Identifier: Apache-2.0 */
/* variant: slow IB_RACE_DELAY */
/* variant: no_exclusivity IB_RACE_DELAY IB_MUTANT_NO_EXCLUSIVITY */
/* variant: epoch_before_lock IB_RACE_DELAY IB_MUTANT_EPOCH_BEFORE_LOCK */
/* variant: session_before_lock IB_RACE_DELAY IB_MUTANT_SESSION_BEFORE_LOCK */
/* variant: number_by_store IB_RACE_DELAY IB_MUTANT_NUMBER_BY_STORE */
#include <stddef.h>
#include <string.h>

#include "native.h"

#ifdef IB_VARIANT /* each variant has its own names for the functions */
#define IB_MEMORY_NAME_2(name, variant) name##_##variant
#define IB_MEMORY_NAME_1(name, variant) IB_MEMORY_NAME_2(name, variant)
#define ib_memory_switch_handle IB_MEMORY_NAME_1(ib_memory_switch_handle, IB_VARIANT)
#define ib_memory_server_handle IB_MEMORY_NAME_1(ib_memory_server_handle, IB_VARIANT)
#endif

#ifdef IB_RACE_DELAY
#include "../ground/native/race_wait.h"
#endif

#define IB_MEMORY_SWITCH
#define IB_MEMORY_SERVER
#define IB_MEMORY_SPACES 1

/* The context in which a packet is handled: one of the two roles. */
struct ib_memory_here {
    const struct ib_memory_soft_switch *sw;
    const struct ib_memory_soft_server *server;
    ib_u8 *value;
};

static inline struct ib_memory_switch *ib_memory_switch_at(const struct ib_memory_here *here) {
    return here->sw->registers;
}

static inline ib_u32 ib_memory_servers(const struct ib_memory_here *here) {
    return here->sw->servers;
}

static inline struct ib_memory_session *ib_memory_session_at(const struct ib_memory_here *here,
                                                             ib_u32 at) {
    return at < here->sw->sessions ? &here->sw->session[at] : NULL;
}

static inline struct ib_memory_block *ib_memory_block_at(const struct ib_memory_here *here,
                                                         ib_u64 chunk) {
    return chunk < here->sw->chunks ? &here->sw->block[chunk >> here->sw->block_shift] : NULL;
}

static inline struct ib_memory_slot *ib_memory_slot_at(const struct ib_memory_here *here,
                                                       ib_u32 at) {
    return at < here->sw->slots ? &here->sw->slot[at] : NULL;
}

static inline struct ib_memory_server *ib_memory_server_at(const struct ib_memory_here *here) {
    return here->server->registers;
}

static inline struct ib_memory_chunk *ib_memory_chunk_at(const struct ib_memory_here *here,
                                                         ib_u64 chunk) {
    return chunk < here->server->chunks ? &here->server->chunk[chunk] : NULL;
}

static inline int ib_memory_value_load(const struct ib_memory_here *here, ib_u32 at, void *to,
                                       ib_u32 len_bytes, ib_u32 max_bytes) {
    if (len_bytes > max_bytes || at + len_bytes > IB_VALUE_LEN_MAX_BYTES)
        return -1;
    memcpy(to, here->value + at, len_bytes);
    return 0;
}

static inline int ib_memory_value_store(const struct ib_memory_here *here, ib_u32 at,
                                        const void *from, ib_u32 len_bytes, ib_u32 max_bytes) {
    if (len_bytes > max_bytes || at + len_bytes > IB_VALUE_LEN_MAX_BYTES)
        return -1;
    memcpy(here->value + at, from, len_bytes);
    return 0;
}

static inline int ib_memory_value_resize(const struct ib_memory_here *here, ib_u32 len_bytes) {
    (void)here;
    return len_bytes > IB_VALUE_LEN_MAX_BYTES;
}

static inline ib_u32 ib_memory_value_sum(const struct ib_memory_here *here, ib_u32 len_bytes);

#include "shell.h"

static inline ib_u32 ib_memory_value_sum(const struct ib_memory_here *here, ib_u32 len_bytes) {
    return ib_value_checksum(here->value, here->value + len_bytes, len_bytes);
}

static int reads(ib_u8 *buffer, ib_u32 len_bytes, struct ib_memory_msg *m,
                 struct ib_result *result) {
    result->reason = ib_memory_check(buffer, buffer + len_bytes, len_bytes, IB_MEMORY_SPACES);
    if (result->reason != IB_R_none)
        return 0;
    ib_memory_read_header(buffer, len_bytes, m);
    return 1;
}

static struct ib_result finish(ib_u8 *buffer, ib_u32 *len_bytes, struct ib_memory_msg *m,
                               ib_u32 node, struct ib_result result, ib_u64 *counters) {
    if (result.verdict != IB_DROP && result.verdict != IB_PASS) {
        m->node = (ib_u16)node;
        ib_memory_emit(buffer, m);
        *len_bytes = IB_HEADER_LEN_BYTES + m->room_len_bytes;
    }
    __atomic_fetch_add(&counters[result.reason], 1, __ATOMIC_RELAXED);
    return result;
}

struct ib_result ib_memory_switch_handle(const struct ib_memory_soft_switch *sw, ib_u8 *buffer,
                                         ib_u32 *len_bytes, struct ib_memory_client *client) {
    struct ib_memory_msg m = {0};
    struct ib_memory_here here = {sw, NULL, buffer + IB_HEADER_LEN_BYTES};
    struct ib_result result = {IB_DROP, IB_R_none};
    if (reads(buffer, *len_bytes, &m, &result))
        result = ib_shell_memory_switch(&here, &m, client);
    return finish(buffer, len_bytes, &m, sw->node, result, sw->counters);
}

struct ib_result ib_memory_server_handle(const struct ib_memory_soft_server *server, ib_u8 *buffer,
                                         ib_u32 *len_bytes) {
    struct ib_memory_msg m = {0};
    struct ib_memory_here here = {NULL, server, buffer + IB_HEADER_LEN_BYTES};
    struct ib_result result = {IB_DROP, IB_R_none};
    if (reads(buffer, *len_bytes, &m, &result))
        result = ib_shell_memory_server(&here, &m);
    return finish(buffer, len_bytes, &m, server->node, result, server->counters);
}

#ifndef IB_VARIANT
ib_u32 ib_memory_keys_check(const struct ib_keys *keys, const ib_u8 *packet, ib_u32 len_bytes,
                            ib_u32 spaces) {
    ib_u32 reason = ib_memory_check(packet, packet + len_bytes, len_bytes, spaces);
    return reason == IB_R_none ? ib_verify(packet, keys) : reason;
}

IB_REASON_NAMES(ib_memory_reason_name, IB_MEMORY_REASONS_FIRST, IB_MEMORY_REASONS)
#endif
