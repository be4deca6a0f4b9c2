/* A host of the cluster on a thread of its own, between the program's event_base and libinband. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include <event2/event_struct.h>

#include "internal.h"

/* A value on its way to the cluster or from it. */
struct value {
    struct value *next;
    unsigned iid;    /* of a decided one */
    uint64_t ticket; /* of a submitted one */
    size_t size;
    char bytes[];
};

/* First in, first out. */
struct queue {
    struct value *first;
    struct value **end; /* where the next one goes */
    size_t count;
    size_t len_bytes;
};

struct evp_host {
    inband_ctx *ctx;
    struct evp_calls calls;
    struct event turn; /* becomes ready with `ready` */
    int ready;         /* eventfd: there is something for the event_base's thread */
    unsigned known;    /* deliver only above */
    uint64_t origin;   /* of values in parts; another one for each host that was ever started */
    unsigned start;    /* number of the last value before the position where it started */
    char *position_path;
    int lock; /* of the host's configuration */
    pthread_t thread;

    pthread_mutex_t mutex; /* for all below, but those of the host's thread */
    pthread_cond_t taken;  /* deliveries were taken, or the host is to end */
    bool ending;
    bool room_wanted;
    uint32_t in_parts; /* values so far that were submitted in parts */
    struct queue deliveries;
    struct queue submissions;
    bool position_wanted;
    struct position *position; /* the answer */
    struct position *samples[SAMPLES_MAX];
    int sample_count;

    /* Only on the host's thread. */
    struct queue in_flight;
    struct evp_parts parts;
    uint64_t delivered;
    uint64_t sample_at; /* the value after which the next one is noted */
    uint64_t sample_every;
    bool state_needed_logged;
};

/* ---- Queues ---- */

static void queue_init(struct queue *queue) {
    *queue = (struct queue){.end = &queue->first};
}

static void push(struct queue *queue, struct value *value) {
    value->next = NULL;
    *queue->end = value;
    queue->end = &value->next;
    queue->count++;
    queue->len_bytes += value->size;
}

static void push_front(struct queue *queue, struct value *value) {
    value->next = queue->first;
    if (value->next == NULL)
        queue->end = &value->next;
    queue->first = value;
    queue->count++;
    queue->len_bytes += value->size;
}

/* Takes the value out that `*at` points to. */
static struct value *take_at(struct queue *queue, struct value **at) {
    struct value *value = *at;
    if (value == NULL)
        return NULL;
    *at = value->next;
    if (queue->end == &value->next)
        queue->end = at;
    queue->count--;
    queue->len_bytes -= value->size;
    return value;
}

static struct value *take(struct queue *queue) {
    return take_at(queue, &queue->first);
}

/* The submitted value with this ticket. In the order of submission, which is about that of ends. */
static struct value *take_ticket(struct queue *queue, uint64_t ticket) {
    for (struct value **at = &queue->first; *at != NULL; at = &(*at)->next)
        if ((*at)->ticket == ticket)
            return take_at(queue, at);
    return NULL;
}

static void clear(struct queue *queue) {
    for (struct value *value; (value = take(queue)) != NULL;)
        free(value);
}

/* A copy, with a zero byte behind it, as programs print values; NULL if there is no memory. */
static struct value *value_new(const void *bytes, size_t size) {
    struct value *value = malloc(sizeof *value + size + 1);
    if (value == NULL)
        return NULL;
    *value = (struct value){.size = size};
    if (size > 0)
        memcpy(value->bytes, bytes, size);
    value->bytes[size] = '\0';
    return value;
}

/* ---- The host's thread ---- */

/* Wakes the event_base. Fails only if the counter is full, and then it is awake. */
static void notify(struct evp_host *host) {
    uint64_t one = 1;
    ssize_t written = write(host->ready, &one, sizeof one);
    (void)written;
}

/* Notes the position after the value that is being delivered. */
static void sample(struct evp_host *host) {
    struct position *position = evp_position_save(host->ctx, host->delivered, &host->parts);
    if (position == NULL)
        return;
    pthread_mutex_lock(&host->mutex);
    if (host->sample_count == SAMPLES_MAX) {
        for (int i = 0; i < SAMPLES_MAX; i++)
            if (i % 2 == 0)
                host->samples[i / 2] = host->samples[i];
            else
                free(host->samples[i]);
        host->sample_count = SAMPLES_MAX / 2;
        host->sample_every *= 2;
    }
    host->samples[host->sample_count++] = position;
    pthread_mutex_unlock(&host->mutex);
    host->sample_at = host->delivered + host->sample_every;
}

/* Hands a decided value to the event_base's thread. */
static void on_value(struct evp_host *host, const void *bytes, size_t size) {
    host->delivered++;
    if (host->position_path != NULL && host->delivered >= host->sample_at)
        sample(host);
    if (host->calls.deliver == NULL && host->calls.decided == NULL)
        return;
    if (host->delivered > UINT32_MAX) {
        /* A number that is used again would be a wrong one. */
        paxos_log_error("value %llu has no number in an unsigned int; this learner ends here",
                        (unsigned long long)host->delivered);
        abort();
    }
    struct value *value = value_new(bytes, size);
    if (value == NULL) {
        /* A replica that leaves a value out would differ from the others. */
        paxos_log_error("no memory for a decided value");
        abort();
    }
    value->iid = (unsigned)host->delivered;
    pthread_mutex_lock(&host->mutex);
    while ((host->deliveries.count >= DELIVERIES_MAX ||
            host->deliveries.len_bytes >= DELIVERIES_LEN_MAX_BYTES) &&
           !host->ending)
        pthread_cond_wait(&host->taken, &host->mutex);
    push(&host->deliveries, value);
    bool first = host->deliveries.count == 1;
    pthread_mutex_unlock(&host->mutex);
    if (first)
        notify(host);
}

static void on_deliver(inband_ctx *ctx, const inband_delivery *delivery, void *arg) {
    struct evp_host *host = arg;
    void *whole = NULL;
    size_t size = delivery->value_len_bytes;
    (void)ctx;
    if (delivery->kind != INBAND_NEW)
        return;
    if (delivery->ticket != 0)
        free(take_ticket(&host->in_flight, delivery->ticket));
    enum evp_part part = evp_parts_add(&host->parts, delivery->value, size, &whole, &size);
    if (part != EVP_INCOMPLETE)
        on_value(host, part == EVP_COMPLETE ? whole : delivery->value, size);
    free(whole);
}

static void on_failed(inband_ctx *ctx, const inband_failure *failure, void *arg) {
    struct evp_host *host = arg;
    (void)ctx;
    struct value *value = take_ticket(&host->in_flight, failure->ticket);
    if (value == NULL)
        return;
    if (failure->outcome == INBAND_NOT_APPLIED) {
        paxos_log_info("a value was not decided: %s; it is submitted again", failure->message);
        pthread_mutex_lock(&host->mutex);
        /* Before other values: parts must not wait long for the rest of theirs. */
        push_front(&host->submissions, value);
        pthread_mutex_unlock(&host->mutex);
        return;
    }
    /* Submitted again, it could be delivered twice. */
    if (failure->outcome == INBAND_OUTCOME_UNKNOWN)
        paxos_log_error("a value may be lost: %s; raise host.timing.submit_deadline_ms",
                        failure->message);
    free(value);
}

static void on_state_needed(inband_ctx *ctx, void *arg) {
    struct evp_host *host = arg;
    (void)ctx;
    if (host->state_needed_logged)
        return;
    host->state_needed_logged = true;
    paxos_log_error("nothing is delivered: the other hosts no longer have all values that this one "
                    "has missed; see README.md, \"Restarts\"");
}

/* Submits what waits, as far as there is room. */
static void submit(struct evp_host *host) {
    for (;;) {
        pthread_mutex_lock(&host->mutex);
        struct value *value = take(&host->submissions);
        bool room = host->room_wanted && host->submissions.count <= SUBMISSIONS_MAX / 2 &&
                    host->submissions.len_bytes <= SUBMISSIONS_LEN_MAX_BYTES / 2;
        if (room)
            host->room_wanted = false;
        pthread_mutex_unlock(&host->mutex);
        if (room)
            notify(host);
        if (value == NULL)
            return;
        int result = inband_submit(host->ctx, value->bytes, value->size, &value->ticket);
        if (result == INBAND_OK) {
            push(&host->in_flight, value);
            continue;
        }
        if (result == INBAND_ERR_WINDOW_FULL) {
            pthread_mutex_lock(&host->mutex);
            push_front(&host->submissions, value);
            pthread_mutex_unlock(&host->mutex);
            return;
        }
        paxos_log_error("a value of %zu bytes is not submitted: %s", value->size,
                        inband_last_error());
        free(value);
    }
}

static void answer_position(struct evp_host *host) {
    pthread_mutex_lock(&host->mutex);
    bool wanted = host->position_wanted;
    host->position_wanted = false;
    pthread_mutex_unlock(&host->mutex);
    struct position *position =
        wanted ? evp_position_save(host->ctx, host->delivered, &host->parts) : NULL;
    if (position == NULL)
        return;
    pthread_mutex_lock(&host->mutex);
    free(host->position);
    host->position = position;
    pthread_mutex_unlock(&host->mutex);
    notify(host);
}

static bool is_ending(struct evp_host *host) {
    pthread_mutex_lock(&host->mutex);
    bool ending = host->ending;
    pthread_mutex_unlock(&host->mutex);
    return ending;
}

static void *run(void *arg) {
    struct evp_host *host = arg;
    while (!is_ending(host)) {
        submit(host);
        answer_position(host);
        int result = inband_run_once(host->ctx, -1);
        if (result < 0 && result != INBAND_ERR_STOPPED) {
            paxos_log_error("the host has ended: %s", inband_last_error());
            return NULL;
        }
    }
    return NULL;
}

/* ---- The event_base's thread ---- */

static void on_turn(evutil_socket_t fd, short what, void *arg) {
    struct evp_host *host = arg;
    uint64_t count;
    struct queue batch;
    (void)fd;
    (void)what;
    ssize_t len = read(host->ready, &count, sizeof count);
    (void)len;
    if (host->calls.room != NULL)
        host->calls.room(host->calls.clients);
    pthread_mutex_lock(&host->mutex);
    struct position *position = host->position;
    host->position = NULL;
    pthread_mutex_unlock(&host->mutex);
    if (position != NULL)
        host->calls.position(position, host->calls.clients);
    free(position);

    queue_init(&batch);
    pthread_mutex_lock(&host->mutex);
    while (batch.count < DELIVERIES_PER_TURN && host->deliveries.count > 0)
        push(&batch, take(&host->deliveries));
    bool more = host->deliveries.count > 0;
    pthread_cond_signal(&host->taken);
    pthread_mutex_unlock(&host->mutex);
    if (more)
        notify(host);
    for (struct value *value; (value = take(&batch)) != NULL;) {
        if (host->calls.decided != NULL)
            host->calls.decided(value->bytes, value->size, host->calls.clients);
        if (host->calls.deliver != NULL && value->iid > host->known)
            host->calls.deliver(value->iid, value->bytes, value->size, host->calls.deliver_arg);
        free(value);
    }
}

/* Where this host continues: NULL at the beginning. False after an error. */
static bool find_position(struct evpaxos_config *config, enum role role, const char *path,
                          struct position **position) {
    *position = NULL;
    if (path != NULL && !evp_position_load(path, position))
        return false;
    if (*position == NULL && role == ROLE_LEARNER && !paxos_config.learner_catch_up) {
        *position = evp_position_fetch(config);
        if (*position == NULL)
            paxos_log_info("no proposer answers; this learner delivers from the beginning");
    }
    return true;
}

/* Opens one host; an error as of inband_create(). */
static int open_one(struct evp_host *host, struct evpaxos_config *config, enum role role,
                    struct host_config from) {
    struct position *position;
    /* inband_create(), too, notices a host that is in use, but only after a second. */
    if (host->lock >= 0)
        close(host->lock);
    host->lock = open(from.path, O_RDONLY | O_CLOEXEC);
    if (host->lock >= 0 && flock(host->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        paxos_log_debug("%s is in use by another process", from.path);
        return INBAND_ERR_STATE_DIR;
    }
    if (!find_position(config, role, from.position, &position))
        return INBAND_ERR_SAVED_DAMAGED;
    int result = inband_create(from.path, INBAND_DATAPLANE_CONFIGURED,
                               position == NULL ? NULL : position->bytes,
                               position == NULL ? 0 : position->header.saved_len_bytes, &host->ctx);
    if (result == INBAND_OK && position != NULL) {
        size_t saved_len_bytes = position->header.saved_len_bytes;
        host->delivered = position->header.delivered;
        host->start = (unsigned)position->header.delivered;
        if (!evp_parts_restore(&host->parts, position->bytes + saved_len_bytes,
                               position->len_bytes - saved_len_bytes)) {
            paxos_log_error("no host for this %s: its position is damaged; use a copy of another "
                            "replica's state with its position",
                            evp_role_name(role));
            free(position);
            return INBAND_ERR_SAVED_DAMAGED;
        }
    }
    free(position);
    if (result == INBAND_ERR_ADDRESS || result == INBAND_ERR_STATE_DIR)
        paxos_log_info("%s cannot be used: %s", from.path, inband_last_error());
    else if (result != INBAND_OK)
        paxos_log_error("no host for this %s: %s", evp_role_name(role), inband_last_error());
    if (result == INBAND_OK && from.position != NULL) {
        host->position_path = strdup(from.position);
        host->sample_every = SAMPLE_EVERY_VALUES;
        host->sample_at = host->delivered + host->sample_every;
    }
    return result;
}

/* Opens the first host that is not in use; learners share a list of them. */
static bool open_host(struct evp_host *host, struct evpaxos_config *config, enum role role,
                      int id) {
    int count = evp_host_count(config, role, id);
    if (count == 0) {
        paxos_log_error("no host for this %s: add a line inband-%s to the configuration, or set "
                        "INBAND_CONFIG to the path of a host's configuration",
                        evp_role_name(role), evp_role_name(role));
        return false;
    }
    for (int which = 0; which < count; which++) {
        struct host_config from = evp_host_config(config, role, id, which);
        int result = open_one(host, config, role, from);
        if (result == INBAND_OK) {
            paxos_log_info("this %s is the host of %s; %s", evp_role_name(role), from.path,
                           inband_dataplane_used(host->ctx));
            return true;
        }
        if (result != INBAND_ERR_ADDRESS && result != INBAND_ERR_STATE_DIR)
            return false;
    }
    paxos_log_error("all %d hosts for this %s are in use: stop a process that uses one, or add a "
                    "line inband-%s",
                    count, evp_role_name(role), evp_role_name(role));
    return false;
}

static bool start_thread(struct evp_host *host) {
    /* Signals are the program's: its handlers run on its threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&host->thread, NULL, run, host);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        paxos_log_error("no thread for a host: %s", strerror(error));
    return error == 0;
}

struct evp_host *evp_host_start(struct evpaxos_config *config, enum role role, int id,
                                struct event_base *base, struct evp_calls calls) {
    struct evp_host *host = calloc(1, sizeof *host);
    if (host == NULL) {
        paxos_log_error("no memory for a host");
        return NULL;
    }
    host->calls = calls;
    host->lock = -1;
    pthread_mutex_init(&host->mutex, NULL);
    pthread_cond_init(&host->taken, NULL);
    queue_init(&host->deliveries);
    queue_init(&host->submissions);
    queue_init(&host->in_flight);
    evp_parts_init(&host->parts);
    host->ready = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (host->ready < 0) {
        paxos_log_error("no eventfd: %s; raise the limit of open files", strerror(errno));
        goto failed;
    }
    if (getrandom(&host->origin, sizeof host->origin, 0) != (ssize_t)sizeof host->origin) {
        paxos_log_error("no random number: %s", strerror(errno));
        goto failed;
    }
    if (!open_host(host, config, role, id))
        goto failed;
    inband_on_deliver(host->ctx, on_deliver, host);
    inband_on_failed(host->ctx, on_failed, host);
    inband_on_state_needed(host->ctx, on_state_needed, host);
    if (event_assign(&host->turn, base, host->ready, EV_READ | EV_PERSIST, on_turn, host) != 0 ||
        event_add(&host->turn, NULL) != 0) {
        paxos_log_error("the event_base accepts no event");
        goto failed;
    }
    if (!start_thread(host)) {
        event_del(&host->turn);
        goto failed;
    }
    return host;
failed:
    inband_free(host->ctx);
    if (host->ready >= 0)
        close(host->ready);
    if (host->lock >= 0)
        close(host->lock);
    pthread_cond_destroy(&host->taken);
    pthread_mutex_destroy(&host->mutex);
    evp_parts_clear(&host->parts);
    free(host->position_path);
    free(host);
    return NULL;
}

void evp_host_free(struct evp_host *host) {
    if (host == NULL)
        return;
    pthread_mutex_lock(&host->mutex);
    host->ending = true;
    pthread_cond_signal(&host->taken);
    pthread_mutex_unlock(&host->mutex);
    inband_stop(host->ctx);
    pthread_join(host->thread, NULL);
    inband_free(host->ctx);
    /* Programs free the event_base first. It has then removed the event, and must not be touched:
       hence the look at the flags, which are in the event. */
    if (host->turn.ev_evcallback.evcb_flags &
        (EVLIST_INSERTED | EVLIST_ACTIVE | EVLIST_ACTIVE_LATER))
        event_del(&host->turn);
    close(host->ready);
    if (host->lock >= 0)
        close(host->lock);
    clear(&host->deliveries);
    clear(&host->submissions);
    clear(&host->in_flight);
    evp_parts_clear(&host->parts);
    while (host->sample_count > 0)
        free(host->samples[--host->sample_count]);
    free(host->position);
    free(host->position_path);
    pthread_cond_destroy(&host->taken);
    pthread_mutex_destroy(&host->mutex);
    free(host);
}

unsigned evp_host_start_iid(const struct evp_host *host) {
    return host->start;
}

/* The values to submit for one; false if there is no memory. */
static bool split(struct evp_host *host, struct queue *pieces, const void *bytes, size_t size) {
    unsigned parts = evp_part_count(bytes, size);
    struct value *value;
    if (parts == 0) {
        if ((value = value_new(bytes, size)) != NULL)
            push(pieces, value);
        return value != NULL;
    }
    pthread_mutex_lock(&host->mutex);
    uint32_t number = host->in_parts++;
    pthread_mutex_unlock(&host->mutex);
    for (unsigned part = 0; part < parts; part++) {
        unsigned char piece[WHOLE_LEN_MAX_BYTES];
        size_t len = evp_part_write(piece, bytes, size, host->origin, number, part);
        if ((value = value_new(piece, len)) == NULL)
            return false;
        push(pieces, value);
    }
    return true;
}

bool evp_host_submit(struct evp_host *host, const void *bytes, size_t size) {
    struct queue pieces;
    queue_init(&pieces);
    if (!split(host, &pieces, bytes, size)) {
        paxos_log_error("a value of %zu bytes is lost: no memory", size);
        clear(&pieces);
        return true;
    }
    pthread_mutex_lock(&host->mutex);
    bool room = host->submissions.count < SUBMISSIONS_MAX &&
                host->submissions.len_bytes < SUBMISSIONS_LEN_MAX_BYTES;
    bool first = host->submissions.count == 0;
    for (struct value *value; room && (value = take(&pieces)) != NULL;)
        push(&host->submissions, value);
    if (!room)
        host->room_wanted = true;
    pthread_mutex_unlock(&host->mutex);
    clear(&pieces);
    if (room && first) /* otherwise the thread is awake, or waits for room in its window */
        inband_stop(host->ctx);
    return room;
}

void evp_host_want_position(struct evp_host *host) {
    pthread_mutex_lock(&host->mutex);
    host->position_wanted = true;
    pthread_mutex_unlock(&host->mutex);
    inband_stop(host->ctx);
}

void evp_host_set_known(struct evp_host *host, unsigned iid) {
    if (iid < host->start)
        paxos_log_error(
            "values %u to %u are not delivered: this host continues after its position; "
            "use a state that is not older than that",
            iid + 1, host->start);
    host->known = iid;
}

void evp_host_trim(struct evp_host *host, unsigned iid) {
    struct position *newest = NULL;
    int used = 0;
    pthread_mutex_lock(&host->mutex);
    while (used < host->sample_count && host->samples[used]->header.delivered <= iid) {
        free(newest);
        newest = host->samples[used++];
    }
    host->sample_count -= used;
    memmove(host->samples, host->samples + used,
            sizeof *host->samples * (size_t)host->sample_count);
    pthread_mutex_unlock(&host->mutex);
    if (newest != NULL)
        evp_position_store(host->position_path, newest);
    free(newest);
}
