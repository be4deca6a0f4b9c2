/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"
#include "shell.h"

struct ib_result ib_netpaxos_handle(const struct ib_netpaxos_soft *sw, ib_u8 *buffer,
                                    ib_u32 *len_bytes, const struct ib_arrival *arrival) {
    struct ib_netpaxos_msg m = {0};
    struct ib_result result = {IB_DROP, IB_R_none};
    (void)arrival;
    result.reason = ib_netpaxos_check(buffer, buffer + *len_bytes, *len_bytes, IB_NETPAXOS_LOGS);
    if (result.reason == IB_R_none) {
        ib_netpaxos_read_header(buffer, &m);
        result = sw->serializes ? ib_shell_netpaxos_serializer(&m, sw->registers)
                                : ib_shell_netpaxos_minion(&m, sw->registers, sw->incarnation);
    }
    if (result.verdict == IB_NETPAXOS_TO_GROUP) {
        m.node = (ib_u16)sw->node;
        ib_netpaxos_emit(buffer, &m);
    }
    __atomic_fetch_add(&sw->counters[result.reason], 1, __ATOMIC_RELAXED);
    return result;
}

IB_KEYS_CHECK(ib_netpaxos_keys_check, ib_netpaxos_check)

IB_REASON_NAMES(ib_netpaxos_reason_name, IB_NETPAXOS_REASONS_FIRST, IB_NETPAXOS_REASONS)
