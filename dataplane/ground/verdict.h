/* SPDX-License-Identifier: Apache-2.0 */
/* verdict.h - a role's verdict on a packet, and the reason, which is also the name of a counter. */
#ifndef INBAND_GROUND_VERDICT_H
#define INBAND_GROUND_VERDICT_H

/* Verdicts common to all systems. A system's own verdicts (its reasons.h) are further
 * destinations. */
enum ib_verdict {
    IB_DROP = 0,    /* drop the packet */
    IB_PASS = 1,    /* pass it to the host's process, unchanged */
    IB_REPLY = 2,   /* rewritten: send it back to the sender */
    IB_DELIVER = 5, /* deliver the value to the host's process */
};

/*
 * Reasons: IB_R_<name> is the number, "<name>" the counter. Numbers are an interface, so the lists
 * are append-only. Each system has its own range of IB_REASONS_PER_SYSTEM numbers, which starts at
 * a multiple of that (a test walks the folders); the first range is the ground's.
 */
#define IB_REASONS_PER_SYSTEM 64
#define IB_REASONS_MAX 1024 /* counters per program */

#define IB_GROUND_REASONS(X)                                                                       \
    X(none)                                                                                        \
    /* the packet never reaches a register */                                                      \
    X(bad_truncated)                                                                               \
    X(bad_magic)                                                                                   \
    X(bad_version)                                                                                 \
    X(bad_type)                                                                                    \
    X(bad_length)                                                                                  \
    X(bad_partition)                                                                               \
    X(bad_node)                                                                                    \
    /* no key of this id here; another tag than this key makes; value or IPv4 header damaged */    \
    X(bad_key)                                                                                     \
    X(bad_tag)                                                                                     \
    X(bad_checksum)                                                                                \
    /* any role */                                                                                 \
    X(contended)                                                                                   \
    X(no_room)                                                                                     \
    X(passed_up)                                                                                   \
    /* the hardware address of a destination is not known */                                       \
    X(copy_unresolved)                                                                             \
    /* the gate: a packet lost its tag of a key, or got one; a frame that cannot be checked */     \
    X(tag_removed)                                                                                 \
    X(tag_made)                                                                                    \
    X(frame_refused)

#define IB_REASON_ENUM(name) IB_R_##name,
#define IB_REASON_NAME(name) #name,

enum ib_reason { IB_GROUND_REASONS(IB_REASON_ENUM) IB_GROUND_REASONS_END };

_Static_assert(IB_GROUND_REASONS_END <= IB_REASONS_PER_SYSTEM, "within the range");

/* Defines the reasons of a system, numbered from `first`. */
#define IB_REASONS_OF(system, first, REASONS)                                                      \
    enum ib_##system##_reason{IB_R_##system##_before = (first) - 1,                                \
                              REASONS(IB_REASON_ENUM) IB_R_##system##_end};                        \
    _Static_assert((first) % IB_REASONS_PER_SYSTEM == 0 &&                                         \
                       IB_R_##system##_end <= (first) + IB_REASONS_PER_SYSTEM &&                   \
                       IB_R_##system##_end <= IB_REASONS_MAX,                                      \
                   "within the range")

/* Defines `function`, which returns the name of a reason numbered from `first`; NULL for others. */
#define IB_REASON_NAMES(function, first, REASONS)                                                  \
    const char *function(unsigned int reason) {                                                    \
        static const char *const names[] = {REASONS(IB_REASON_NAME)};                              \
        unsigned int at = reason - (first);                                                        \
        return at < sizeof(names) / sizeof(names[0]) ? names[at] : (const char *)0;                \
    }

/* A verdict and its reason. */
struct ib_result {
    unsigned int verdict; /* enum ib_verdict, or a system's own */
    unsigned int reason;  /* enum ib_reason, or a system's own */
};

#endif
