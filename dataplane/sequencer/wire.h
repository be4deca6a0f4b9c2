/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - the only definition of the sequencer's packet format.
 *
 * A client requests the next `count` numbers of a log; the answer contains the first of them. No
 * number is handed out twice in one incarnation of the sequencer. A lost answer leaves a gap.
 */
#ifndef INBAND_SEQUENCER_WIRE_H
#define INBAND_SEQUENCER_WIRE_H

#include "../ground/message.h"

enum ib_sequencer_limits {
    IB_SEQUENCER_COUNT_MAX = 4096, /* numbers per request */
    IB_SEQUENCER_NUMBER_BITS = 62, /* a log ends there instead of wrapping around */
};

/* Message types. In brackets: sender and receiver. */
enum ib_sequencer_type {
    IB_SEQUENCER_NEXT = 16,   /* [client -> sequencer] requests numbers */
    IB_SEQUENCER_NUMBER = 17, /* [sequencer -> client] */
};

#define IB_SEQUENCER_FAMILY                                                                        \
    ((struct ib_family){IB_SEQUENCER_NEXT, IB_SEQUENCER_NUMBER, 0, 1ULL << IB_SEQUENCER_NEXT})

/* `incarnation` is chosen at random at the sequencer's start; `number` is the first one, from 1. */
#define IB_SEQUENCER_WRITTEN(X) X(incarnation) X(number)
#define IB_SEQUENCER_READ(X) X(count)
#define IB_SEQUENCER_KEPT(X) X(request)

IB_MESSAGE(sequencer, log, IB_SEQUENCER_FAMILY, IB_SEQUENCER_WRITTEN, IB_SEQUENCER_READ,
           IB_SEQUENCER_KEPT);

#endif
