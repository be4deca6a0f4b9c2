/* SPDX-License-Identifier: Apache-2.0 */
/* variant: slow IB_RACE_DELAY */
/* variant: no_exclusivity IB_RACE_DELAY IB_MUTANT_NO_EXCLUSIVITY */
#include <sched.h>
#include <stddef.h>
#include <string.h>

#include "native.h"
#include "text.h"

#ifdef IB_VARIANT /* each variant has its own name for the function */
#define IB_BOX_NAME_2(name, variant) name##_##variant
#define IB_BOX_NAME_1(name, variant) IB_BOX_NAME_2(name, variant)
#define ib_box_handle IB_BOX_NAME_1(ib_box_handle, IB_VARIANT)
#endif

#ifdef IB_RACE_DELAY
#include "../ground/native/race_wait.h"
#endif

#define IB_BOX_GROUPS 1

struct ib_box_here {
    const struct ib_box_soft *soft;
    const ib_u8 *value;
    struct ib_box_client client; /* of a SET */
};

static inline ib_u64 ib_box_own(const struct ib_box_here *here) {
    return here->soft->node;
}

static inline ib_u64 ib_box_capacity(const struct ib_box_here *here) {
    return here->soft->capacity;
}

static inline struct ib_box_node *ib_box_node_at(const struct ib_box_here *here) {
    return here->soft->registers;
}

static inline struct ib_box_record *ib_box_record_at(const struct ib_box_here *here, ib_u64 zxid) {
    return &here->soft->record[zxid & (here->soft->capacity - 1)];
}

static inline int ib_box_value_load(const struct ib_box_here *here, ib_u8 *to, ib_u32 len_bytes) {
    if (len_bytes > IB_BOX_RECORD_LEN_MAX_BYTES)
        return -1;
    memcpy(to, here->value, len_bytes);
    return 0;
}

static inline struct ib_box_client *ib_box_client_at(const struct ib_box_here *here, ib_u64 zxid) {
    struct ib_box_client *client = here->soft->client;
    return client ? &client[zxid & (here->soft->capacity - 1)] : NULL;
}

static inline ib_u32 ib_box_value_sum(const struct ib_box_here *here, ib_u32 len_bytes);

#include "shell.h"

static inline ib_u32 ib_box_value_sum(const struct ib_box_here *here, ib_u32 len_bytes) {
    return ib_value_checksum(here->value, here->value + len_bytes, len_bytes);
}

struct ib_result ib_box_handle(const struct ib_box_soft *soft, ib_u8 *buffer, ib_u32 *len_bytes,
                               const struct ib_arrival *arrival) {
    struct ib_box_msg m = {0};
    struct ib_box_here here = {.soft = soft, .value = buffer + IB_HEADER_LEN_BYTES};
    struct ib_result result = {IB_DROP, IB_R_none};
    int advances;
    result.reason = ib_box_check(buffer, buffer + *len_bytes, *len_bytes, IB_BOX_GROUPS);
    if (result.reason == IB_R_none) {
        ib_box_read_header(buffer, &m);
        result = ib_shell_box(&here, &m, arrival->now_ns, &advances);
    }
    if (result.verdict != IB_DROP && result.verdict != IB_PASS) {
        m.node = (ib_u16)soft->node;
        ib_box_emit(buffer, &m);
        *len_bytes = IB_HEADER_LEN_BYTES + m.value_len_bytes;
    }
    __atomic_fetch_add(&soft->counters[result.reason], 1, __ATOMIC_RELAXED);
    return result;
}

#ifndef IB_VARIANT
typedef struct ib_box_get_scratch ib_box_arrived;

static struct ib_box_get_scratch *ib_box_get_scratch(void) {
    static _Thread_local struct ib_box_get_scratch scratch;
    return &scratch;
}

static int ib_box_request_copy(const ib_box_arrived *arrived, ib_u32 at_bytes, ib_u8 *to,
                               ib_u64 len_bytes, ib_u32 max_bytes) {
    if (len_bytes == 0 || len_bytes > max_bytes ||
        at_bytes + len_bytes > arrived->set.request_len_bytes)
        return -1;
    memcpy(to, arrived->request + at_bytes, len_bytes);
    return 0;
}

#include "sets.h"

/* Makes the record of the SET in the scratch memory. Returns IB_R_none, or the reason to pass. */
static unsigned int record_of(const struct ib_box_soft *soft, const ib_u8 *datagram,
                              ib_u32 len_bytes) {
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    if (len_bytes <= IB_BOX_GET_COMMAND_BYTES || len_bytes > IB_BOX_SET_REQUEST_MAX_BYTES)
        return IB_R_sets_other;
    memcpy(s->request, datagram, len_bytes);
    IB_BOX_WORD64(s->request + len_bytes) = 0;
    s->set.request_len_bytes = len_bytes;
    if (!ib_box_is_whole(s) || memcmp(s->request + IB_BOX_GET_FRAME_BYTES, "set ", 4) != 0 ||
        IB_LOAD(&soft->registers->mode) != IB_BOX_LEADING || !ib_box_set_words() ||
        !ib_box_set_record(s))
        return IB_R_sets_other;
    return IB_R_none;
}

struct ib_result ib_box_set(const struct ib_box_soft *soft, const struct ib_box_client *client,
                            const ib_u8 *datagram, ib_u8 *buffer, ib_u32 *len_bytes,
                            const struct ib_arrival *arrival) {
    struct ib_box_here here = {.soft = soft, .client = *client};
    struct ib_box_msg m = {0};
    struct ib_result result = {IB_PASS, IB_R_none};
    int advances;
    result.reason = record_of(soft, datagram, *len_bytes);
    if (result.reason == IB_R_none) {
        const struct ib_box_get_scratch *s = ib_box_get_scratch();
        here.value = s->reply;
        ib_box_set_submit(s, (ib_u16)soft->node, &here.client, &m);
        m.digest = ib_box_value_sum(&here, m.value_len_bytes);
        result = ib_shell_box(&here, &m, arrival->now_ns, &advances);
        if (result.reason == IB_R_box_submitted) {
            memcpy(buffer + IB_HEADER_LEN_BYTES, s->reply, m.value_len_bytes);
            ib_box_emit(buffer, &m);
            ib_box_emit_origin(buffer, &m);
            *len_bytes = IB_HEADER_LEN_BYTES + m.value_len_bytes;
            result.reason = IB_R_sets_proposed;
        } else {
            result = ib_verdict(IB_PASS, IB_R_sets_busy);
        }
    }
    __atomic_fetch_add(&soft->counters[result.reason], 1, __ATOMIC_RELAXED);
    return result;
}

/* Locks the node. Retries until it succeeds; locks are held only briefly. */
static ib_u64 hold(struct ib_box_node *node) {
    for (;;) {
        ib_u64 odd = ib_seq_lock(&node->sequence);
        if (odd)
            return odd;
        sched_yield();
    }
}

ib_u32 ib_box_put(const struct ib_box_soft *soft, const ib_u8 *packet, ib_u32 len_bytes) {
    struct ib_box_msg m = {0};
    struct ib_box_here here = {.soft = soft, .value = packet + IB_HEADER_LEN_BYTES};
    struct ib_box_node *n = soft->registers;
    unsigned int reason = ib_box_check(packet, packet + len_bytes, len_bytes, IB_BOX_GROUPS);
    if (reason != IB_R_none)
        return reason;
    ib_box_read_header(packet, &m);
    if (ib_box_value_sum(&here, m.value_len_bytes) != m.digest)
        return IB_R_box_bad_digest;
    ib_u64 odd = hold(n);
    if (n->mode != IB_BOX_IDLE)
        reason = IB_R_box_not_following;
    else
        reason = m.epoch == n->epoch ? ib_box_take(&here, &m, n) : IB_R_box_old_epoch;
    /* Up to there, the leader's log and ours are the same. */
    if (reason == IB_R_box_appended || reason == IB_R_box_kept)
        ib_box_learn(n, m.committed);
    ib_seq_unlock(&n->sequence, odd);
    return reason;
}

ib_u32 ib_box_ack_own(const struct ib_box_soft *soft, ib_u64 zxid) {
    struct ib_box_node *n = soft->registers;
    ib_u64 odd = hold(n);
    ib_u32 advances = 0;
    if (n->mode == IB_BOX_LEADING) {
        struct ib_box_peer *own = &n->peer[soft->node & IB_BOX_NODES_MAX];
        own->matched = ib_box_max(own->matched, ib_box_min(zxid, n->last));
        advances = (ib_u32)ib_box_advance(n);
    }
    ib_seq_unlock(&n->sequence, odd);
    return advances;
}

ib_u64 ib_box_hash(const struct ib_box_hash_key *hash_key, const ib_u8 *key, ib_u32 len_bytes) {
    ib_u8 padded[IB_BOX_KEY_ROOM_BYTES] = {0};
    if (len_bytes > IB_BOX_KEY_LEN_MAX_BYTES)
        return 0; /* never: no request has such a key */
    memcpy(padded, key, len_bytes);
    return ib_box_hash_of(*hash_key, padded, len_bytes);
}

IB_KEYS_CHECK(ib_box_keys_check, ib_box_check)

IB_REASON_NAMES(ib_box_reason_name, IB_BOX_REASONS_FIRST, IB_BOX_REASONS)
#endif
