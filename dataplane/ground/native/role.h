/* SPDX-License-Identifier: Apache-2.0 */
/* role.h - a role on plain memory, called by the soft switch, the simulator and the vectors. */
#ifndef INBAND_GROUND_NATIVE_ROLE_H
#define INBAND_GROUND_NATIVE_ROLE_H

#include "../auth.h"

#define IB_ANSWERING_OWN_WORDS 8

/*
 * Declares what a native build exports besides its handle:
 * - the check of the UDP payload of len_bytes at `packet`: returns the reason to drop it, or
 *   IB_R_none. As in the kernel, first whether it is whole, then its tag. `keys` is NULL in a
 *   cluster without keys.
 * - the name of a reason of the system; NULL if the number is unknown. Static, never freed.
 */
#define IB_NATIVE_CHECK(system)                                                                    \
    ib_u32 ib_##system##_keys_check(const struct ib_keys *keys, const ib_u8 *packet,               \
                                    ib_u32 len_bytes, ib_u32 partitions);                          \
    const char *ib_##system##_reason_name(unsigned int reason)

/* Defines both. The check of the header alone is ib_<system>_check. */
#define IB_NATIVE_CHECK_IS(system, FIRST, REASONS)                                                 \
    IB_KEYS_CHECK(ib_##system##_keys_check, ib_##system##_check)                                   \
    IB_REASON_NAMES(ib_##system##_reason_name, FIRST, REASONS)

/*
 * Declares `handle`: it handles one UDP payload of *len_bytes at `buffer`, which has room for a
 * packet of maximum size. Unless the verdict is IB_DROP, the buffer then contains the packet to
 * send, and *len_bytes is its length. Thread-safe. Never allocates or blocks. The memory of `sw`
 * belongs to the caller, must outlive every call, and may be shared by threads.
 */
#define IB_NATIVE_HANDLE(handle, sw_type)                                                          \
    struct ib_result handle(const struct sw_type *sw, ib_u8 *buffer, ib_u32 *len_bytes,            \
                            const struct ib_arrival *arrival)

/*
 * Defines it. `shell` returns the verdict on the message `m` with the `arrival`, using the
 * registers of `sw`, which has `partitions` of them.
 */
#define IB_NATIVE_HANDLE_IS(handle, system, sw_type, partitions, shell)                            \
    IB_NATIVE_HANDLE(handle, sw_type) {                                                            \
        struct ib_##system##_msg m = {0};                                                          \
        struct ib_result result = {IB_DROP, IB_R_none};                                            \
        (void)arrival;                                                                             \
        result.reason = ib_##system##_check(buffer, buffer + *len_bytes, *len_bytes, partitions);  \
        if (result.reason == IB_R_none) {                                                          \
            ib_##system##_read_header(buffer, &m);                                                 \
            result = shell;                                                                        \
        }                                                                                          \
        if (result.verdict != IB_DROP) {                                                           \
            m.node = (ib_u16)sw->node;                                                             \
            ib_##system##_emit(buffer, &m);                                                        \
            *len_bytes = IB_HEADER_LEN_BYTES + m.value_len_bytes;                                  \
        }                                                                                          \
        __atomic_fetch_add(&sw->counters[result.reason], 1, __ATOMIC_RELAXED);                     \
        return result;                                                                             \
    }

/* A role that only answers requests and has one register per partition, in plain memory. */
struct ib_answering {
    ib_u32 node;
    ib_u32 partitions;
    ib_u64 own[IB_ANSWERING_OWN_WORDS]; /* the system's struct ib_<system>_settings */
    void *registers;                    /* [partitions] */
    ib_u64 *counters;                   /* [IB_REASONS_MAX] */
};

/*
 * Declares and defines the native build of such a role: ib_<system>_handle, and what
 * IB_NATIVE_CHECK declares. `shell` gets the message `m`, its partition's `reg` and the settings
 * `own`.
 */
#define IB_ANSWERING(system)                                                                       \
    IB_NATIVE_HANDLE(ib_##system##_handle, ib_answering);                                          \
    IB_NATIVE_CHECK(system)

#define IB_ANSWERING_IS(system, at, reg_type, FIRST, REASONS, shell)                               \
    _Static_assert(sizeof(struct ib_##system##_settings) <=                                        \
                       sizeof(((struct ib_answering *)0)->own),                                    \
                   "settings fit");                                                                \
    static struct ib_result answer(const struct ib_answering *sw, struct ib_##system##_msg *m) {   \
        const struct ib_##system##_settings *own = (const void *)sw->own;                          \
        struct reg_type *reg = (struct reg_type *)sw->registers + m->at;                           \
        return shell;                                                                              \
    }                                                                                              \
    IB_NATIVE_HANDLE_IS(ib_##system##_handle, system, ib_answering, sw->partitions,                \
                        answer(sw, &m))                                                            \
    IB_NATIVE_CHECK_IS(system, FIRST, REASONS)

#endif
