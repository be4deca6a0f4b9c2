/* SPDX-License-Identifier: Apache-2.0 */
/*
 * falcon - the Falcon scheduler as a program on an interface, which it does not share with other
 * roles.
 *
 * All packets leave according to the kernel's routing tables. A task for an executor that they
 * cannot resolve (yet) is rewritten but left addressed to this host, and passed to the host's
 * process. The process recognizes it by the node id, which is this scheduler's own, and only has to
 * forward it; that also makes the kernel resolve the executor.
 */
/* variant: falcon_given IB_GIVEN_ARRIVAL */
#define IB_SYSTEM_CHECK ib_falcon_check

#include "registers.h"
#include "../ground/xdp/validate.h"
#include "../ground/xdp/route.h"
#include "../ground/xdp/race_wait.h"
#include "../ground/xdp/given.h"

const volatile struct ib_falcon_config ib_falcon_settings SEC(".rodata.own");

IB_REGISTERS(ib_falcon_sets_map, struct ib_falcon_set);

/* Indexed by (set * queues + queue) << slots_log2 | position mod slots. */
IB_REGISTERS(ib_slots_map, struct ib_falcon_slot);

/* Indexed by set * groups + group. */
IB_REGISTERS(ib_workers_map, struct ib_falcon_group);

/* Indexed by set * workers * IB_FALCON_EXECUTORS + executor. */
IB_REGISTERS(ib_executors_map, struct ib_falcon_executor);

/* The context in which a packet is handled: the frame itself. */
#define ib_falcon_here xdp_md

/* The verifier processes a global function once, not once per call. */
#define IB_FALCON_PART __attribute__((noinline))

IB_INLINE const volatile struct ib_falcon_config *ib_falcon_config_at(struct xdp_md *ctx) {
    (void)ctx;
    return &ib_falcon_settings;
}

#define IB_LOOK_UP(map, index)                                                                     \
    ({                                                                                             \
        ib_u32 key = (ib_u32)(index);                                                              \
        (void)ctx;                                                                                 \
        bpf_map_lookup_elem(&(map), &key);                                                         \
    })

/* All larger functions begin with this. clang omits an unused context argument from calls, and then
 * the verifier rejects the function, so this uses the context. */
IB_INLINE struct ib_falcon_set *ib_falcon_set_at(struct xdp_md *ctx, ib_u32 set) {
    __asm__ volatile("" : : "r"(ctx));
    return IB_LOOK_UP(ib_falcon_sets_map, set);
}

IB_INLINE struct ib_falcon_slot *ib_falcon_slot_at(struct xdp_md *ctx, ib_u64 index) {
    return IB_LOOK_UP(ib_slots_map, index);
}

IB_INLINE struct ib_falcon_group *ib_falcon_group_at(struct xdp_md *ctx, ib_u32 index) {
    return IB_LOOK_UP(ib_workers_map, index);
}

IB_INLINE struct ib_falcon_executor *ib_falcon_executor_at(struct xdp_md *ctx, ib_u64 index) {
    return IB_LOOK_UP(ib_executors_map, index);
}

IB_INLINE ib_u8 *ib_falcon_task_at(struct xdp_md *ctx, ib_u32 n) {
    if (n >= IB_FALCON_TASKS_MAX)
        return NULL;
    ib_u8 *task = (ib_u8 *)(long)ctx->data + IB_VALUE_AT_BYTES + n * IB_FALCON_TASK_LEN_BYTES;
    return task + IB_FALCON_TASK_LEN_BYTES > (ib_u8 *)(long)ctx->data_end ? NULL : task;
}

#include "shell.h"

IB_INLINE struct ib_falcon_arrival ib_falcon_arrives(const ib_u8 *data) {
    struct ib_falcon_arrival arrival = {
        .from_address = bpf_ntohl(IB_IP(data)->saddr),
        .from_port = bpf_ntohs(IB_UDP(data)->source),
    };
#ifdef IB_GIVEN_ARRIVAL
    const struct ib_given *given = ib_given();
    arrival.now_ns = given ? given->now_ns : 0;
#else
    if (ib_falcon_settings.policy == IB_FALCON_LOCALITY)
        arrival.now_ns = bpf_ktime_get_ns();
#endif
    return arrival;
}

/* Sends a packet that was not dropped. A separate function, because the stack is small. */
IB_FALCON_PART int ib_falcon_send(struct xdp_md *ctx, struct ib_falcon_msg *m, ib_u32 verdict,
                                  ib_u32 reason) {
    if (!m)
        return XDP_ABORTED;
    const struct ib_keys *keys = NULL;
    ib_u8 *data = IB_SEND_BEGIN(ctx, m, keys);
    ib_falcon_emit(data + IB_XDP_FRAME_LEN_BYTES, m);
    ib_send_finish(data, keys, m->key_id, m->value_len_bytes);
    ib_count_reason(reason);
    if (verdict == IB_TO_EXECUTOR)
        return ib_route_or_by_host(ctx, data, m->to_address, m->to_port,
                                   IB_R_falcon_executor_by_host);
    return ib_route_back(ctx, data);
}

/* A separate function, because the stack is small. */
IB_FALCON_PART int ib_falcon_validate(struct xdp_md *ctx) {
    return ib_validate((const ib_u8 *)(long)ctx->data, (const ib_u8 *)(long)ctx->data_end);
}

SEC("xdp")
int ib_falcon_xdp(struct xdp_md *ctx) {
    int action = ib_falcon_validate(ctx);
    if (action != IB_VALID)
        return action;
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    if (data + IB_VALUE_AT_BYTES > end)
        return XDP_ABORTED;
    struct ib_falcon_msg m = {0};
    ib_falcon_read_header(data + IB_XDP_FRAME_LEN_BYTES, &m);
    struct ib_falcon_arrival arrival = ib_falcon_arrives(data);
    struct ib_result result = ib_shell_falcon(ctx, &m, &arrival);
    if (result.verdict == IB_DROP || result.verdict == IB_PASS) {
        ib_count_reason(result.reason);
        return result.verdict == IB_PASS ? XDP_PASS : XDP_DROP;
    }
    return ib_falcon_send(ctx, &m, result.verdict, result.reason);
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
