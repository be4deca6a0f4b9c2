/* What the files of libevpaxos share. The library exports only what its public headers declare. */
#ifndef EVPAXOS_INTERNAL_H
#define EVPAXOS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include "evpaxos.h"
#include "paxos.h"
#pragma GCC visibility pop

#include <inband.h>

#include "limits.h"

/* ---- Frames, between clients and proposers ---- */

enum frame {
    FRAME_VALUE,         /* submits the content */
    FRAME_WANT_POSITION, /* is answered with FRAME_POSITION */
    FRAME_POSITION,      /* struct position_header, and what is behind it */
    FRAME_LEARN,         /* asks for all decided values from a number on */
    FRAME_DECIDED,       /* number, value */
    FRAME_FORGOTTEN,     /* the lowest number that can be asked for; the connection ends */
    FRAME_ALIVE,
    FRAME_FOREIGN /* anything else */
};

/* Before the content of each. */
struct header {
    unsigned char kind[4];
    uint32_t len_bytes; /* in network order */
};

struct header evp_header(enum frame kind, size_t len_bytes);
enum frame evp_header_kind(const struct header *header);
size_t evp_header_len_bytes(const struct header *header);

/* ---- parts.c ---- */

struct stored;

/* Parts of values that are incomplete. */
struct evp_parts {
    struct stored *first;
    struct stored **end;
    size_t len_bytes;
};

void evp_parts_init(struct evp_parts *parts);
void evp_parts_clear(struct evp_parts *parts);

/* Number of parts in which to submit a value; 0: whole. */
unsigned evp_part_count(const void *value, size_t size);

/* Writes a part, at most WHOLE_LEN_MAX_BYTES; its length. */
size_t evp_part_write(void *out, const void *value, size_t size, uint64_t origin, uint32_t number,
                      unsigned part);

enum evp_part {
    EVP_WHOLE,      /* not a part */
    EVP_INCOMPLETE, /* others are missing */
    EVP_COMPLETE    /* the last one: the value is the caller's */
};

/* Takes what was decided. */
enum evp_part evp_parts_add(struct evp_parts *parts, const void *bytes, size_t size, void **value,
                            size_t *value_size);

size_t evp_parts_saved_len(const struct evp_parts *parts);
void evp_parts_save(const struct evp_parts *parts, unsigned char *out);
bool evp_parts_restore(struct evp_parts *parts, const unsigned char *saved, size_t len);

/* ---- position.c ---- */

/* Where a host continues. */
struct position {
    struct position_header {
        uint64_t delivered;       /* values before it */
        uint64_t saved_len_bytes; /* of inband_save() */
    } header;
    size_t len_bytes;      /* of all behind */
    unsigned char bytes[]; /* output of inband_save() and of evp_parts_save() */
};

/* Without `bytes`; NULL if it would be too long, or there is no memory. */
struct position *evp_position_new(struct position_header header, size_t len_bytes);

/* The current one, on the host's thread; NULL after an error. */
struct position *evp_position_save(inband_ctx *ctx, uint64_t delivered,
                                   const struct evp_parts *parts);

bool evp_position_store(const char *path, const struct position *position);

/* False after an error. Without a file, the result is NULL. */
bool evp_position_load(const char *path, struct position **result);

/* The current one of a proposer; NULL if none of the configuration's answers. */
struct position *evp_position_fetch(struct evpaxos_config *config);

/* ---- config.c ---- */

enum role {
    ROLE_REPLICA,
    ROLE_ACCEPTOR,
    ROLE_PROPOSER,
    ROLES_WITH_ID,
    ROLE_LEARNER = ROLES_WITH_ID
};

/* Name of a role, for messages. */
const char *evp_role_name(enum role role);

/* Number of configurations of hosts for this role and id (without meaning for a learner). */
int evp_host_count(const struct evpaxos_config *config, enum role role, int id);

struct host_config {
    char *path;
    char *position; /* path of the file for its position; NULL: none */
};

/* One of them, from 0. */
struct host_config evp_host_config(const struct evpaxos_config *config, enum role role, int id,
                                   int which);

/* ---- host.c ---- */

/* A host of the cluster, on a thread of its own. All functions but evp_host_submit() belong to the
   thread that runs the event_base. */
struct evp_host;

/* What a host calls, on the thread that runs the event_base. */
struct evp_calls {
    deliver_function deliver; /* NULL: decided values are dropped */
    void *deliver_arg;
    void (*decided)(const void *value, size_t size, void *arg); /* each one; NULL: none */
    void (*room)(void *arg); /* there is room again after evp_host_submit() returned false */
    void (*position)(const struct position *position, void *arg); /* one was wanted */
    void *clients;                                                /* their argument */
};

/* Starts the host that the configuration has for this role and id; NULL after an error. */
struct evp_host *evp_host_start(struct evpaxos_config *config, enum role role, int id,
                                struct event_base *base, struct evp_calls calls);

void evp_host_free(struct evp_host *host);

/* Number of the last value before those that this host will deliver. */
unsigned evp_host_start_iid(const struct evp_host *host);

/* Submits a copy of the value; false if too many wait. */
bool evp_host_submit(struct evp_host *host, const void *value, size_t size);

/* Calls `position` with the current one. */
void evp_host_want_position(struct evp_host *host);

/* Deliver only values above this number. */
void evp_host_set_known(struct evp_host *host, unsigned iid);

/* The program has stored its state up to this number. */
void evp_host_trim(struct evp_host *host, unsigned iid);

/* ---- clients.c ---- */

/* Connections of clients, whose values are submitted to a host. */
struct evp_clients;

/* Listens at `address`; NULL after an error. */
struct evp_clients *evp_clients_listen(struct event_base *base, struct sockaddr_in address);

/* From here on the host gets the clients' values; false after an error. */
bool evp_clients_serve(struct evp_clients *clients, struct evp_host *host);

/* For struct evp_calls: reads again from clients that had to wait, and answers those that want a
   position. */
void evp_clients_resume(void *clients);
void evp_clients_answer(const struct position *position, void *clients);

/* For struct evp_calls: sends a decided value to learners. */
void evp_clients_decided(const void *value, size_t size, void *clients);

void evp_clients_free(struct evp_clients *clients);

/* ---- history.c ---- */

struct evp_history;

/* Begins after the value with this number. */
struct evp_history *evp_history_new(unsigned last);
bool evp_history_add(struct evp_history *history, const void *bytes, size_t size);

/* Numbers of its values; there is none if `last` is below `first`. */
unsigned evp_history_first(const struct evp_history *history);
unsigned evp_history_last(const struct evp_history *history);
const void *evp_history_get(struct evp_history *history, unsigned iid, size_t *size);
void evp_history_free(struct evp_history *history);

/* ---- remote.c ---- */

/* A learner without a host of its own. */
struct evp_remote;

struct evp_remote *evp_remote_start(struct evpaxos_config *config, deliver_function deliver,
                                    void *arg, struct event_base *base);
void evp_remote_free(struct evp_remote *remote);
void evp_remote_set_known(struct evp_remote *remote, unsigned iid);

#endif /* EVPAXOS_INTERNAL_H */
