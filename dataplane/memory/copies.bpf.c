/* SPDX-License-Identifier: Apache-2.0 */
/* copies - addresses the copies that a switch sends to its servers. */
#include "msg.h"
#include "settings.h"

#define IB_COPIES_GROUP(payload) IB_MEMORY_SERVERS_GROUP

/* `magic` starts the header's first word, with the type; `slot` is followed by the phase. */
#define IB_COPIES_ID(payload)                                                                      \
    {IB_MEMORY_GET64(payload, slot), IB_MEMORY_GET64(payload, request),                            \
     IB_MEMORY_GET64(payload, session), IB_MEMORY_GET64(payload, magic)}

#include "../ground/xdp/copies.h"
