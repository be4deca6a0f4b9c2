/* SPDX-License-Identifier: Apache-2.0 */
/*
 * falcon/registers.h - the state of a Falcon scheduler: BPF map values, and the soft switch's
 * memory. Words are 64 bits and accessed atomically. A new scheduler's state is all zero: empty
 * queues, no worker registered.
 */
#ifndef INBAND_FALCON_REGISTERS_H
#define INBAND_FALCON_REGISTERS_H

#include "msg.h"
#include "settings.h"

/* One per set. */
struct ib_falcon_set {
    ib_u64 queue[IB_FALCON_QUEUES_MAX]; /* add 32 bits, retrieve 32: positions, which wrap around */
    ib_u64 waiting[IB_FALCON_GROUPS_MAX]; /* per group of workers: executors parked, or about to */
    ib_u64 turn;                          /* the queue after the last one that was served in turn */
    ib_u64 given;                         /* number of tasks assigned */
    ib_u64 woken;                         /* the worker after the last one that was woken */
    ib_u64 reserved[5];
    ib_u64 user_tasks[IB_FALCON_USERS]; /* in the queues, by user mod IB_FALCON_USERS */
};

/*
 * One per slot of a queue, indexed by (set * queues + queue) << slots_log2 | position mod slots.
 * The sequence is twice the round of the position that may be put there next, plus 1 once the task
 * is there.
 */
struct ib_falcon_slot {
    ib_u64 sequence;
    ib_u64 came_ns; /* LOCALITY */
    ib_u64 task[IB_FALCON_TASK_WORDS];
    ib_u64 reserved[2];
};

struct ib_falcon_worker {
    ib_u64 parked; /* bitmap of its executors; the one that clears a bit must wake that executor */
    ib_u64 incarnation; /* assigned at its registration; 0: not registered */
    ib_u64 resources;   /* bitmap */
    ib_u64 turn; /* RESOURCES: as the set's, but per worker, because their queues may differ */
};

/* One per group of workers, indexed by set * groups + group. */
struct ib_falcon_group {
    struct ib_falcon_worker worker[IB_FALCON_GROUP_WORKERS];
};

enum ib_falcon_state {
    IB_FALCON_IDLE = 0,
    IB_FALCON_WAITS = 1, /* parked */
    IB_FALCON_BUSY = 2,  /* a task was assigned */
};

/* One per executor, indexed by set * workers * IB_FALCON_EXECUTORS + executor. Odd sequence:
 * locked. */
struct ib_falcon_executor {
    ib_u64 sequence;
    ib_u64 pull_seq;
    ib_u64 state;   /* worker_incarnation 32 bits, enum ib_falcon_state 32 */
    ib_u64 address; /* address 32 bits, port 16, from bit 47 down */
    ib_u64 task[IB_FALCON_TASK_WORDS];
};

_Static_assert(sizeof(struct ib_falcon_set) % 64 == 0, "whole cache lines");
_Static_assert(sizeof(struct ib_falcon_slot) == 128, "two cache lines a slot");
_Static_assert(sizeof(struct ib_falcon_executor) == 128, "two cache lines an executor");

#endif
