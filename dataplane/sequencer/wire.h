/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - the packet format of the sequencer, its only definition.
 *
 * A client asks for the next `count` numbers of a log; the answer has the first of them. No number
 * is given twice in one incarnation of the sequencer. An answer that is lost leaves a hole.
 */
#ifndef INBAND_SEQUENCER_WIRE_H
#define INBAND_SEQUENCER_WIRE_H

#include "../ground/message.h"

enum ib_sequencer_limits {
    IB_SEQUENCER_COUNT_MAX = 4096, /* numbers of a request */
    IB_SEQUENCER_NUMBER_BITS = 62, /* a log ends there, rather than begin again */
};

/* Message types. In brackets: who sends it to whom. */
enum ib_sequencer_type {
    IB_SEQUENCER_NEXT = 16,   /* [client -> sequencer] numbers, please */
    IB_SEQUENCER_NUMBER = 17, /* [sequencer -> client] */
};

#define IB_SEQUENCER_FAMILY                                                                        \
    ((struct ib_family){IB_SEQUENCER_NEXT, IB_SEQUENCER_NUMBER, 0, 1ULL << IB_SEQUENCER_NEXT})

/* `incarnation` is drawn at the sequencer's start, `number` the first of those given, from 1. */
#define IB_SEQUENCER_WRITTEN(X) X(incarnation) X(number)
#define IB_SEQUENCER_READ(X) X(count)
#define IB_SEQUENCER_KEPT(X) X(request)

IB_MESSAGE(sequencer, log, IB_SEQUENCER_FAMILY, IB_SEQUENCER_WRITTEN, IB_SEQUENCER_READ,
           IB_SEQUENCER_KEPT);

#endif
