/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"
#include "shell.h"

struct ib_result ib_flair_switch_handle(const struct ib_flair_switch *sw, ib_u8 *buffer,
                                        ib_u32 *len_bytes, const struct ib_arrival *arrival) {
    struct ib_flair_msg m = {0};
    struct ib_result result = {IB_DROP, IB_R_none};
    result.reason = ib_flair_check(buffer, buffer + *len_bytes, *len_bytes, sw->sets);
    if (result.reason == IB_R_none) {
        ib_flair_read_header(buffer, &m);
        ib_u64 at = (ib_u64)m.set * sw->groups + ib_flair_group_of(m.key_hash, sw->groups);
        result = ib_shell_flair(&m, &sw->sessions[m.set], &sw->table[at], sw->incarnation, arrival);
    }
    if (result.verdict != IB_DROP) {
        m.node = (ib_u16)sw->node;
        ib_flair_emit(buffer, &m);
        *len_bytes = IB_HEADER_LEN_BYTES + m.value_len_bytes;
    }
    __atomic_fetch_add(&sw->counters[result.reason], 1, __ATOMIC_RELAXED);
    return result;
}

IB_KEYS_CHECK(ib_flair_keys_check, ib_flair_check)

ib_u32 ib_flair_group_of_hash(ib_u64 key_hash, ib_u32 groups) {
    return ib_flair_group_of(key_hash, groups);
}

IB_REASON_NAMES(ib_flair_reason_name, IB_FLAIR_REASONS_FIRST, IB_FLAIR_REASONS)
