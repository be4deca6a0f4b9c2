/* SPDX-License-Identifier: Apache-2.0 */
/*
 * falcon/wire.h - the only definition of Falcon's packet format (docs/falcon.md).
 *
 * Ethernet / IPv4 / UDP / struct ib_falcon_header / tasks. Falcon's own types and fields in the
 * frame of all packets (frame.h).
 */
#ifndef INBAND_FALCON_WIRE_H
#define INBAND_FALCON_WIRE_H

#include "../ground/frame.h"

enum ib_falcon_limits {
    IB_FALCON_SETS_MAX = 16, /* schedulers per switch */
    IB_FALCON_TASK_LEN_BYTES = 96,
    IB_FALCON_DESC_LEN_BYTES = 64,
    IB_FALCON_TASKS_MAX = 14,  /* per SUBMIT */
    IB_FALCON_QUEUES_MAX = 64, /* per set; also the number of resources */
    IB_FALCON_PRIORITIES = 8,
    IB_FALCON_SLOTS = 131072, /* default number of slots per set */
    IB_FALCON_SLOTS_MAX = 4194304,
    IB_FALCON_EXECUTORS = 64, /* per worker: a bitmap of one word */
    IB_FALCON_WORKERS_MAX = 1024,
    IB_FALCON_GROUP_WORKERS = 64,
    IB_FALCON_GROUPS_MAX = IB_FALCON_WORKERS_MAX / IB_FALCON_GROUP_WORKERS,
    IB_FALCON_USERS = 1024,       /* users that are distinguished */
    IB_FALCON_NO_WORKER = 0xffff, /* for tasks without a preferred worker */
};

/* Message types. In brackets: sender and receiver. */
enum ib_falcon_type {
    IB_FALCON_SUBMIT = 48,       /* [client -> scheduler] tasks; if none, only wakes and asks */
    IB_FALCON_SUBMIT_REPLY = 49, /* [scheduler -> client] which ones were accepted */
    IB_FALCON_PULL = 50,         /* [executor -> scheduler] is free */
    IB_FALCON_TASK = 51,         /* [scheduler -> executor] */
    IB_FALCON_NO_TASK = 52,      /* [scheduler -> executor] */
    IB_FALCON_NACK = 53,         /* [scheduler -> executor] wrong incarnation, or not registered */
    IB_FALCON_HOST = 54,         /* [process -> process] not handled by the role */
};

enum ib_falcon_flags {
    IB_FALCON_F_PARK = 0x0001,      /* PULL: wait here if there is no task */
    IB_FALCON_F_REPEATED = 0x0002,  /* TASK: assigned before */
    IB_FALCON_F_ORIGIN = 0x0004,    /* TASK: from a SUBMIT, and also carries its reply */
    IB_FALCON_F_FULL = 0x0008,      /* reply: not all were accepted, because a queue is full */
    IB_FALCON_F_USER_FULL = 0x0010, /* reply: not all were accepted, the user has too many */
    IB_FALCON_F_PARKED = 0x0020,    /* reply: an executor waits although there is a task for it */
};

/* How tasks are assigned to queues, and in which order a PULL looks (docs/falcon.md, Policies). */
enum ib_falcon_policy {
    IB_FALCON_FIFO = 0,
    IB_FALCON_PRIORITY = 1,
    IB_FALCON_RESOURCES = 2,
    IB_FALCON_FAIR = 3,
    IB_FALCON_LOCALITY = 4,
};

/*
 * Offsets in bytes: 0 magic, 4 version, 5 type, 6 flags, 8 set, 10 node, 12 value_len_bytes,
 * 14 key_id, 16 incarnation, 24 user, 28 job, 32 client_address, 36 client_port, 38 count,
 * 39 queue, 40 executor, 44 worker_incarnation, 48 pull_seq, 56 taken, 64 submit_seq, 72 tail,
 * 76 head, 80 digest, 88 tag.
 */
struct ib_falcon_header {
    ib_u32 magic;
    ib_u8 version;
    ib_u8 type;
    ib_u16 flags;
    ib_u16 set;
    ib_u16 node;            /* sender, 1..=254; 0: a client or an executor */
    ib_u16 value_len_bytes; /* of the tasks, or of the room for one */
    ib_u16 key_id;          /* authentication key, 0: none */
    ib_u64 incarnation;     /* of the scheduler, chosen at its start */
    ib_u32 user;            /* SUBMIT: owner of the tasks, and their job */
    ib_u32 job;
    ib_u32 client_address; /* IPv4, of the sender of the SUBMIT, set by the scheduler */
    ib_u16 client_port;
    ib_u8 count;     /* tasks after the header */
    ib_u8 queue;     /* the queue that tail and head belong to */
    ib_u32 executor; /* worker * IB_FALCON_EXECUTORS + its number there */
    ib_u32 worker_incarnation;
    ib_u64 pull_seq;   /* of the executor, from 1 */
    ib_u64 taken;      /* bitmap of the SUBMIT's tasks that were accepted */
    ib_u64 submit_seq; /* of the client, for its own use */
    ib_u32 tail;       /* position after the last task accepted */
    ib_u32 head;       /* position of the next task to assign */
    ib_u64 digest;     /* the tasks' digests, XORed */
    ib_u64 tag;        /* over everything before it; without a key, a checksum (auth.h) */
};

/* A task, without the client's address. That, user and job are overwritten on entry. */
struct ib_falcon_task {
    ib_u32 user;
    ib_u32 job;
    ib_u32 task;
    ib_u32 client_address;
    ib_u16 client_port;
    ib_u8 priority; /* 0..IB_FALCON_PRIORITIES - 1, 0 first */
    ib_u8 resource; /* the required one, below IB_FALCON_QUEUES_MAX; 0: none */
    ib_u16 worker;  /* the preferred one */
    ib_u8 attempt;
    ib_u8 desc_len_bytes;
    ib_u64 digest; /* of the task with client_address and client_port 0 and without the digest */
    ib_u8 desc[IB_FALCON_DESC_LEN_BYTES];
};

_Static_assert(sizeof(struct ib_falcon_task) == IB_FALCON_TASK_LEN_BYTES, "twelve words");
_Static_assert(IB_FALCON_TASKS_MAX *IB_FALCON_TASK_LEN_BYTES <= IB_VALUE_LEN_MAX_BYTES, "one MTU");
_Static_assert((IB_FALCON_TASKS_MAX + 1) * IB_FALCON_TASK_LEN_BYTES > IB_VALUE_LEN_MAX_BYTES,
               "no packet that is whole has more");

IB_IS_FRAME(ib_falcon_header, set);

#endif
