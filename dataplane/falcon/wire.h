/* SPDX-License-Identifier: Apache-2.0 */
/*
 * falcon/wire.h - the packet format of Falcon (docs/falcon.md), its only definition.
 *
 * Ethernet / IPv4 / UDP / struct ib_falcon_header / tasks. Its own types and fields in the frame
 * of all packets (frame.h).
 */
#ifndef INBAND_FALCON_WIRE_H
#define INBAND_FALCON_WIRE_H

#include "../ground/frame.h"

enum ib_falcon_limits {
    IB_FALCON_SETS_MAX = 16, /* schedulers of a switch */
    IB_FALCON_TASK_LEN_BYTES = 96,
    IB_FALCON_DESC_LEN_BYTES = 64,
    IB_FALCON_TASKS_MAX = 14,  /* of a SUBMIT */
    IB_FALCON_QUEUES_MAX = 64, /* of a set; also resources */
    IB_FALCON_PRIORITIES = 8,
    IB_FALCON_SLOTS = 131072, /* of a set, unless told otherwise */
    IB_FALCON_SLOTS_MAX = 4194304,
    IB_FALCON_EXECUTORS = 64, /* of a worker: a bitmap of one word */
    IB_FALCON_WORKERS_MAX = 1024,
    IB_FALCON_GROUP_WORKERS = 64,
    IB_FALCON_GROUPS_MAX = IB_FALCON_WORKERS_MAX / IB_FALCON_GROUP_WORKERS,
    IB_FALCON_USERS = 1024,       /* that are told apart */
    IB_FALCON_NO_WORKER = 0xffff, /* a task that prefers none */
};

/* Message types. In brackets: who sends it to whom. */
enum ib_falcon_type {
    IB_FALCON_SUBMIT = 48,       /* [client -> scheduler] tasks; none: only wakes and asks */
    IB_FALCON_SUBMIT_REPLY = 49, /* [scheduler -> client] which were taken */
    IB_FALCON_PULL = 50,         /* [executor -> scheduler] is free */
    IB_FALCON_TASK = 51,         /* [scheduler -> executor] */
    IB_FALCON_NO_TASK = 52,      /* [scheduler -> executor] */
    IB_FALCON_NACK = 53, /* [scheduler -> executor] another incarnation, or not registered */
    IB_FALCON_HOST = 54, /* [process -> process] what the role has no part in */
};

enum ib_falcon_flags {
    IB_FALCON_F_PARK = 0x0001,      /* PULL: wait here if there is nothing */
    IB_FALCON_F_REPEATED = 0x0002,  /* TASK: given before */
    IB_FALCON_F_ORIGIN = 0x0004,    /* TASK: made of a SUBMIT, whose reply it carries, too */
    IB_FALCON_F_FULL = 0x0008,      /* reply: not all were taken, a queue is full */
    IB_FALCON_F_USER_FULL = 0x0010, /* reply: not all were taken, the user has too many there */
    IB_FALCON_F_PARKED = 0x0020,    /* reply: an executor waits beside a task that it may run */
};

/* Which queue a task goes to, and in which order a PULL looks (docs/falcon.md, Policies). */
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
    ib_u64 incarnation;     /* of the scheduler, drawn at its start */
    ib_u32 user;            /* SUBMIT: whose tasks, of which job */
    ib_u32 job;
    ib_u32 client_address; /* IPv4, of who sent the SUBMIT, noted by the scheduler */
    ib_u16 client_port;
    ib_u8 count;     /* tasks behind the header */
    ib_u8 queue;     /* that tail and head are of */
    ib_u32 executor; /* worker * IB_FALCON_EXECUTORS + its number there */
    ib_u32 worker_incarnation;
    ib_u64 pull_seq;   /* of the executor, from 1 */
    ib_u64 taken;      /* bitmap of the SUBMIT's tasks that are in the queue */
    ib_u64 submit_seq; /* of the client, for its own use */
    ib_u32 tail;       /* behind the last task taken */
    ib_u32 head;       /* the next one to be given */
    ib_u64 digest;     /* the tasks' digests, XORed */
    ib_u64 tag;        /* of all before it; without a key, a checksum (auth.h) */
};

/* Of a task, all but the client's address: that and user and job are overwritten on entry. */
struct ib_falcon_task {
    ib_u32 user;
    ib_u32 job;
    ib_u32 task;
    ib_u32 client_address;
    ib_u16 client_port;
    ib_u8 priority; /* 0..IB_FALCON_PRIORITIES - 1, 0 first */
    ib_u8 resource; /* that it needs, below IB_FALCON_QUEUES_MAX; 0: none */
    ib_u16 worker;  /* that it prefers */
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
