/* SPDX-License-Identifier: Apache-2.0 */
/* copies - addresses the copies that a leader sends to the other nodes. */
#include "msg.h"
#include "settings.h"

#define IB_COPIES_GROUP(payload) IB_BOX_OTHERS_GROUP

/* `magic` starts the header's first word, with the type. */
#define IB_COPIES_ID(payload)                                                                      \
    {IB_BOX_GET64(payload, zxid), IB_BOX_GET64(payload, committed), IB_BOX_GET64(payload, epoch),  \
     IB_BOX_GET64(payload, magic)}

#include "../ground/xdp/copies.h"
