/*
 * paxos.h - options, values and log messages.
 *
 * Follows the API of libpaxos 3's header of this name, as far as programs need it that use
 * libevpaxos: not the protocol's messages, nor the state machines of acceptors, proposers and
 * learners, which are Inband's.
 */
#ifndef PAXOS_H
#define PAXOS_H

#include <stdarg.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t iid_t;
typedef uint32_t ballot_t;

/** What is logged, to standard error. */
typedef enum paxos_log_level {
    PAXOS_LOG_QUIET = 0,
    PAXOS_LOG_ERROR = 1,
    PAXOS_LOG_INFO = 2,
    PAXOS_LOG_DEBUG = 3
} paxos_log_level;

typedef enum paxos_storage_backend {
    PAXOS_MEM_STORAGE = 0,
    PAXOS_LMDB_STORAGE = 1
} paxos_storage_backend;

/** Options. The file's values replace them when a configuration is read. */
struct paxos_config {
    paxos_log_level verbosity;
    /** TCP_NODELAY for the connections of clients to proposers. */
    int tcp_nodelay;
    /** 0: a learner need not deliver values that were decided before it started. */
    int learner_catch_up;

    /* Without effect: proposers and acceptors are configured in their hosts' files. */
    int proposer_timeout;
    int proposer_preexec_window;
    paxos_storage_backend storage_backend;
    int trash_files;
    int lmdb_sync;
    char *lmdb_env_path;
    size_t lmdb_mapsize;
};

extern struct paxos_config paxos_config;

typedef struct paxos_value {
    int paxos_value_len;
    char *paxos_value_val;
} paxos_value;

/** Size of a majority. */
int paxos_quorum(int acceptors);

/** A value with a copy of `size` bytes; NULL if there is no memory. */
paxos_value *paxos_value_new(const char *bytes, size_t size);
void paxos_value_free(paxos_value *value);

void paxos_log(int level, const char *format, va_list arguments);
void paxos_log_error(const char *format, ...);
void paxos_log_info(const char *format, ...);
void paxos_log_debug(const char *format, ...);

/** Ids are 0 to MAX_N_OF_PROPOSERS - 1. */
#define MAX_N_OF_PROPOSERS 10

#ifdef __cplusplus
}
#endif

#endif /* PAXOS_H */
