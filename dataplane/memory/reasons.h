/* SPDX-License-Identifier: Apache-2.0 */
/* reasons.h - memory's own verdicts, and its reasons. */
#ifndef INBAND_MEMORY_REASONS_H
#define INBAND_MEMORY_REASONS_H

#include "../ground/verdict.h"

enum ib_memory_verdict {
    IB_MEMORY_TO_SERVERS = 6, /* rewritten: send to all servers */
    IB_MEMORY_TO_CLIENT = 7,  /* rewritten: send to the client of the slot */
};

#define IB_MEMORY_REASONS_FIRST 320
#define IB_MEMORY_REASONS(X)                                                                       \
    /* either role */                                                                              \
    X(memory_bad_lines) /* none, or a value of another length than they need */                    \
    X(memory_bad_chunk) /* behind the end of the memory */                                         \
    X(memory_bad_digest)                                                                           \
    X(memory_bad_epoch) /* 0, more than its bits, or that of no timestamp so high */               \
    X(memory_not_for_role)                                                                         \
    /* switch: requests */                                                                         \
    X(memory_not_active)                                                                           \
    X(memory_no_session)                                                                           \
    X(memory_old_request)                                                                          \
    X(memory_other_request) /* the number of a request that asked for something else */            \
    X(memory_timestamps_used_up)                                                                   \
    X(memory_read_begun)                                                                           \
    X(memory_read_again)                                                                           \
    X(memory_write_begun)                                                                          \
    X(memory_write_again)                                                                          \
    X(memory_write_done_again)                                                                     \
    /* switch: answers */                                                                          \
    X(memory_answer_late) /* of another epoch, request or phase than the slot's */                 \
    X(memory_answer_repeated)                                                                      \
    X(memory_read_counted)                                                                         \
    X(memory_read_done)                                                                            \
    X(memory_read_write_back)                                                                      \
    X(memory_ack_counted)                                                                          \
    X(memory_write_done)                                                                           \
    X(memory_write_back_done)                                                                      \
    X(memory_deposed)                                                                              \
    /* server */                                                                                   \
    X(memory_recovering)                                                                           \
    X(memory_old_epoch)                                                                            \
    X(memory_read)                                                                                 \
    X(memory_written)                                                                              \
    /* switch: requests */                                                                         \
    X(memory_write_back_again)                                                                     \
    /* either role */                                                                              \
    X(memory_epoch_ahead) /* the process asks the servers whether there is such an epoch */

IB_REASONS_OF(memory, IB_MEMORY_REASONS_FIRST, IB_MEMORY_REASONS);

#endif
