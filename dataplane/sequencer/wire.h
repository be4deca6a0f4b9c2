/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - the packet format of the sequencer, its only definition.
 *
 * A client asks for the next `count` numbers of a log and is told the first of them. No number is
 * given twice in one incarnation of the sequencer. An answer that is lost leaves a hole.
 */
#ifndef INBAND_SEQUENCER_WIRE_H
#define INBAND_SEQUENCER_WIRE_H

#include "../ground/frame.h"

enum ib_sequencer_limits {
    IB_SEQUENCER_LOGS_MAX = 1024,
    IB_SEQUENCER_COUNT_MAX = 4096, /* numbers of a request */
    IB_SEQUENCER_NUMBER_BITS = 62, /* a log ends there, rather than begin again */
};

/* Message types. In brackets: who sends it to whom. */
enum ib_sequencer_type {
    IB_SEQUENCER_NEXT = 16,   /* [client -> sequencer] numbers, please */
    IB_SEQUENCER_NUMBER = 17, /* [sequencer -> client] */
};

struct ib_sequencer_header {
    ib_u32 magic;
    ib_u8 version;
    ib_u8 type;
    ib_u16 flags;
    ib_u16 log;
    ib_u16 node; /* sender, 1..=254; 0: a client */
    ib_u16 value_len_bytes;
    ib_u16 key_id;
    ib_u64 incarnation; /* NUMBER: of the sequencer, drawn at its start */
    ib_u64 number;      /* NUMBER: the first, from 1 */
    ib_u64 count;       /* of numbers, from 1 */
    ib_u64 request;     /* of the client, for its own use */
    ib_u64 reserved[5];
    ib_u64 tag;
};

IB_IS_FRAME(ib_sequencer_header, log);

#endif
