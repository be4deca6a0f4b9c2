/* SPDX-License-Identifier: Apache-2.0 */
/* variant: slow IB_RACE_DELAY */
/* variant: pop_before_filled IB_RACE_DELAY IB_MUTANT_POP_BEFORE_FILLED */
/* variant: push_without_sequence IB_RACE_DELAY IB_MUTANT_PUSH_WITHOUT_SEQUENCE */
/* variant: park_without_look IB_RACE_DELAY IB_MUTANT_PARK_WITHOUT_LOOK */
/* variant: released_before_task IB_RACE_DELAY IB_MUTANT_RELEASED_BEFORE_TASK */
/* variant: repeated_pops_again IB_RACE_DELAY IB_MUTANT_REPEATED_POPS_AGAIN */
/* variant: bit_not_taken IB_RACE_DELAY IB_MUTANT_BIT_NOT_TAKEN */
#include "native.h"

#ifdef IB_VARIANT /* each variant has its own name for the handle */
#define IB_FALCON_HANDLE_2(variant) ib_falcon_handle_##variant
#define IB_FALCON_HANDLE_1(variant) IB_FALCON_HANDLE_2(variant)
#define ib_falcon_switch_handle IB_FALCON_HANDLE_1(IB_VARIANT)
#endif

#ifdef IB_RACE_DELAY
#include "../ground/native/race_wait.h"
#endif

/* The context in which a packet is handled. */
struct ib_falcon_here {
    const struct ib_falcon_switch *sw;
    ib_u8 *packet;
};

#define IB_FALCON_PART static
#define IB_FALCON_AT(what) static inline __attribute__((always_inline)) what

IB_FALCON_AT(const volatile struct ib_falcon_config *)
ib_falcon_config_at(struct ib_falcon_here *here) {
    return &here->sw->config;
}

IB_FALCON_AT(struct ib_falcon_set *)
ib_falcon_set_at(struct ib_falcon_here *here, ib_u32 set) {
    return &here->sw->regs[set];
}

IB_FALCON_AT(struct ib_falcon_slot *)
ib_falcon_slot_at(struct ib_falcon_here *here, ib_u64 index) {
    return &here->sw->slots[index];
}

IB_FALCON_AT(struct ib_falcon_group *)
ib_falcon_group_at(struct ib_falcon_here *here, ib_u32 index) {
    return &here->sw->groups[index];
}

IB_FALCON_AT(struct ib_falcon_executor *)
ib_falcon_executor_at(struct ib_falcon_here *here, ib_u64 index) {
    return &here->sw->executors[index];
}

IB_FALCON_AT(ib_u8 *)
ib_falcon_task_at(struct ib_falcon_here *here, ib_u32 n) {
    return here->packet + IB_HEADER_LEN_BYTES + n * IB_FALCON_TASK_LEN_BYTES;
}

#include "shell.h"

struct ib_falcon_result ib_falcon_switch_handle(const struct ib_falcon_switch *sw, ib_u8 *buffer,
                                                ib_u32 *len_bytes,
                                                const struct ib_falcon_arrival *arrival) {
    struct ib_falcon_msg m = {0};
    struct ib_falcon_here here = {sw, buffer};
    struct ib_result result = {IB_DROP, IB_R_none};
    result.reason = ib_falcon_check(buffer, buffer + *len_bytes, *len_bytes, sw->sets);
    if (result.reason == IB_R_none) {
        ib_falcon_read_header(buffer, &m);
        result = ib_shell_falcon(&here, &m, arrival);
    }
    if (result.verdict != IB_DROP && result.verdict != IB_PASS) {
        m.node = (ib_u16)sw->node;
        ib_falcon_emit(buffer, &m);
        *len_bytes = IB_HEADER_LEN_BYTES + m.value_len_bytes;
    }
    __atomic_fetch_add(&sw->counters[result.reason], 1, __ATOMIC_RELAXED);
    struct ib_falcon_result said = {result.verdict, result.reason, m.to_address, m.to_port};
    return said;
}

#ifndef IB_RACE_DELAY
ib_u32 ib_falcon_queues_of(ib_u32 policy) {
    return ib_falcon_queues(policy);
}

IB_NATIVE_CHECK_IS(falcon, IB_FALCON_REASONS_FIRST, IB_FALCON_REASONS)
#endif
