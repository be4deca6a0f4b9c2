#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#include "internal.h"

struct paxos_config paxos_config = {
    .verbosity = PAXOS_LOG_INFO,
    .tcp_nodelay = 1,
    .learner_catch_up = 1,
    .proposer_timeout = 1,
    .proposer_preexec_window = 128,
    .storage_backend = PAXOS_MEM_STORAGE,
    .trash_files = 0,
    .lmdb_sync = 0,
    .lmdb_env_path = "/tmp/acceptor",
    .lmdb_mapsize = 10 << 20,
};

int paxos_quorum(int acceptors) {
    return acceptors / 2 + 1;
}

paxos_value *paxos_value_new(const char *bytes, size_t size) {
    if (size > INT_MAX)
        return NULL;
    paxos_value *value = malloc(sizeof *value);
    char *copy = malloc(size > 0 ? size : 1);
    if (value == NULL || copy == NULL) {
        free(value);
        free(copy);
        return NULL;
    }
    if (size > 0)
        memcpy(copy, bytes, size);
    *value = (paxos_value){.paxos_value_len = (int)size, .paxos_value_val = copy};
    return value;
}

void paxos_value_free(paxos_value *value) {
    if (value == NULL)
        return;
    free(value->paxos_value_val);
    free(value);
}

void paxos_log(int level, const char *format, va_list arguments) {
    char message[1024];
    struct timeval now;
    struct tm parts;
    if (level > (int)paxos_config.verbosity)
        return;
    gettimeofday(&now, NULL);
    localtime_r(&now.tv_sec, &parts);
    vsnprintf(message, sizeof message, format, arguments);
    /* In one call: hosts log from their own threads. */
    fprintf(stderr, "%02d:%02d:%02d.%06ld %s\n", parts.tm_hour, parts.tm_min, parts.tm_sec,
            (long)now.tv_usec, message);
}

#define LOG_AT(level)                                                                              \
    do {                                                                                           \
        va_list arguments;                                                                         \
        va_start(arguments, format);                                                               \
        paxos_log(level, format, arguments);                                                       \
        va_end(arguments);                                                                         \
    } while (0)

void paxos_log_error(const char *format, ...) {
    LOG_AT(PAXOS_LOG_ERROR);
}

void paxos_log_info(const char *format, ...) {
    LOG_AT(PAXOS_LOG_INFO);
}

void paxos_log_debug(const char *format, ...) {
    LOG_AT(PAXOS_LOG_DEBUG);
}
