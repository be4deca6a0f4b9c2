/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"
#include "shell.h"

struct ib_result ib_sequencer_handle(const struct ib_sequencer_switch *sw, ib_u8 *buffer,
                                     ib_u32 *len_bytes, const struct ib_arrival *arrival) {
    struct ib_sequencer_msg m = {0};
    struct ib_result result = {IB_DROP, IB_R_none};
    (void)arrival;
    result.reason = ib_sequencer_check(buffer, buffer + *len_bytes, *len_bytes, sw->logs);
    if (result.reason == IB_R_none) {
        ib_sequencer_read_header(buffer, &m);
        result = ib_shell_sequencer(&m, &sw->log[m.log], sw->incarnation);
    }
    if (result.verdict == IB_REPLY) {
        m.node = (ib_u16)sw->node;
        ib_sequencer_emit(buffer, &m);
    }
    __atomic_fetch_add(&sw->counters[result.reason], 1, __ATOMIC_RELAXED);
    return result;
}

IB_KEYS_CHECK(ib_sequencer_keys_check, ib_sequencer_check)

IB_REASON_NAMES(ib_sequencer_reason_name, IB_SEQUENCER_REASONS_FIRST, IB_SEQUENCER_REASONS)
