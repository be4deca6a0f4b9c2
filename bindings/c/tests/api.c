/*
 * Tests all functions of inband.h on a real cluster; started by tests/cluster.rs.
 *
 *     api REPLICA_1 REPLICA_2 MALFORMED ALONE LEADER IMPATIENT
 *
 * The arguments are configuration files: two replicas of a cluster in a later epoch, whose first
 * instance is FIRST; one with an error; a replica and a leader whose peers do not run; replica 1
 * again, with a short deadline. Writes "stop the acceptors" and waits for a line when that must be
 * done.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "inband.h"

#define FIRST 100
#define TIMEOUT_S 30

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__,            \
                    #condition, inband_last_error());                                              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_SAYS(text) CHECK(strstr(inband_last_error(), text) != NULL)

#define VALUES_MAX 4096

/* The observations of a replica. */
struct seen {
    inband_ctx *ctx;
    inband_ctx *peer; /* source of the state when this replica needs one */
    int delivered;
    int answers; /* to recover */
    int failures;
    int restored;
    int again; /* values to submit, and instances to recover, from inside the callback */
    uint64_t instances[VALUES_MAX];
    size_t lens_bytes[VALUES_MAX];
    char firsts[VALUES_MAX]; /* first byte of each value */
    inband_delivery last;
    char last_value[INBAND_VALUE_LEN_MAX_BYTES + 1];
    inband_failure last_failure;
    char saved[4096];
    int64_t saved_len_bytes;
};

static void on_deliver(inband_ctx *ctx, const inband_delivery *delivery, void *user) {
    struct seen *seen = user;

    CHECK(ctx == seen->ctx && delivery->value != NULL);
    seen->last = *delivery;
    memcpy(seen->last_value, delivery->value, delivery->value_len_bytes);
    seen->last_value[delivery->value_len_bytes] = 0;
    if (delivery->kind != INBAND_NEW) {
        seen->answers++;
        return;
    }
    CHECK(seen->delivered < VALUES_MAX);
    CHECK(inband_applied(ctx) == delivery->instance);
    seen->instances[seen->delivered] = delivery->instance;
    seen->lens_bytes[seen->delivered] = delivery->value_len_bytes;
    seen->firsts[seen->delivered] = seen->last_value[0];
    seen->delivered++;
    if (seen->again > 0) {
        uint64_t ticket = 0;
        uint64_t instance = delivery->instance;
        seen->again--;
        CHECK(inband_submit(ctx, "inside", 6, &ticket) == INBAND_OK && ticket > 0);
        CHECK(inband_recover(ctx, instance, NULL, 0) == INBAND_OK);
        CHECK(strncmp(delivery->value, seen->last_value, delivery->value_len_bytes) == 0);
        CHECK(inband_run(ctx) == INBAND_ERR_BUSY);
        CHECK(inband_run_once(ctx, 0) == INBAND_ERR_BUSY);
        CHECK_SAYS("return from the callback");
        inband_free(ctx); /* must fail */
        CHECK(inband_on_deliver(ctx, on_deliver, user) == INBAND_OK);
        seen->saved_len_bytes = inband_save(ctx, seen->saved, sizeof seen->saved);
        CHECK(seen->saved_len_bytes >= 16);
    }
}

static void on_failed(inband_ctx *ctx, const inband_failure *failure, void *user) {
    struct seen *seen = user;

    CHECK(ctx == seen->ctx && failure->message != NULL && failure->message[0] != 0);
    seen->last_failure = *failure;
    seen->failures++;
}

static void on_state_needed(inband_ctx *ctx, void *user) {
    struct seen *seen = user;
    char saved[4096];
    int64_t len_bytes = inband_save(seen->peer, saved, sizeof saved);

    CHECK(len_bytes >= 16);
    CHECK(inband_restore(ctx, saved, (size_t)len_bytes) == INBAND_OK);
    CHECK(inband_applied(ctx) == inband_applied(seen->peer));
    seen->restored++;
}

static void on_deliver_stop(inband_ctx *ctx, const inband_delivery *delivery, void *user) {
    on_deliver(ctx, delivery, user);
    inband_stop(ctx);
}

static void watch(struct seen *seen) {
    CHECK(inband_on_deliver(seen->ctx, on_deliver, seen) == INBAND_OK);
    CHECK(inband_on_failed(seen->ctx, on_failed, seen) == INBAND_OK);
    CHECK(inband_on_state_needed(seen->ctx, on_state_needed, seen) == INBAND_OK);
}

/* Run both until the condition holds. */
#define RUN_UNTIL(condition, a, b)                                                                 \
    do {                                                                                           \
        time_t begun = time(NULL);                                                                 \
        while (!(condition)) {                                                                     \
            CHECK(inband_run_once((a)->ctx, 1) >= 0);                                              \
            CHECK(inband_run_once((b)->ctx, 1) >= 0);                                              \
            if (time(NULL) - begun > TIMEOUT_S) {                                                  \
                fprintf(stderr, "%s:%d: did not come: %s\n", __FILE__, __LINE__, #condition);      \
                exit(1);                                                                           \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* Run both until nothing has been decided for a while. */
static void settle(struct seen *a, struct seen *b) {
    uint64_t before;

    do {
        before = inband_applied(a->ctx);
        for (int i = 0; i < 50; i++) {
            CHECK(inband_run_once(a->ctx, 1) >= 0);
            CHECK(inband_run_once(b->ctx, 1) >= 0);
        }
    } while (inband_applied(a->ctx) != before || inband_applied(b->ctx) != before);
}

static void *stop_soon(void *ctx) {
    struct timespec pause = {0, 50 * 1000 * 1000};

    nanosleep(&pause, NULL);
    /* The owner is inside the library almost all the time. */
    for (int i = 0; inband_room(ctx) != INBAND_ERR_BUSY; i++)
        CHECK(i < 1000);
    CHECK_SAYS("another thread");
    errno = 77;
    inband_stop(ctx);
    CHECK(errno == 77);
    return NULL;
}

static void check_arguments(const char *config, const char *malformed) {
    inband_ctx *ctx = (inband_ctx *)&ctx;

    CHECK(strcmp(inband_version(), INBAND_VERSION) == 0);
    CHECK(strcmp(inband_last_error(), "") == 0);
    CHECK(inband_create(config, 0, NULL, 0, NULL) == INBAND_ERR_ARGUMENT);
    CHECK_SAYS("ctx is NULL");
    CHECK(inband_create(NULL, 0, NULL, 0, &ctx) == INBAND_ERR_ARGUMENT);
    CHECK_SAYS("config_path is NULL");
    CHECK(ctx == NULL);
    CHECK(inband_create(config, 5, NULL, 0, &ctx) == INBAND_ERR_ARGUMENT);
    CHECK_SAYS("dataplane is 5");
    CHECK(inband_create(config, 0, NULL, 8, &ctx) == INBAND_ERR_ARGUMENT);
    CHECK(inband_create("/no/such/file", 0, NULL, 0, &ctx) == INBAND_ERR_CONFIG);
    CHECK_SAYS("/no/such/file");
    CHECK(inband_create(malformed, 0, NULL, 0, &ctx) == INBAND_ERR_CONFIG);
    CHECK_SAYS(malformed);
    CHECK_SAYS("line 1: epoch = 0 is out of range; it must be 1 to 4294967295");
    CHECK(inband_create(config, 0, "short", 5, &ctx) == INBAND_ERR_SAVED_DAMAGED);
    CHECK_SAYS("its 5 bytes do not match their checksum; restore it from another copy");
    CHECK(inband_create(config, INBAND_DATAPLANE_XDP, NULL, 0, &ctx) == INBAND_ERR_DATAPLANE);
    CHECK_SAYS("host.interface");
    CHECK(ctx == NULL);

    CHECK(inband_submit(NULL, "x", 1, NULL) == INBAND_ERR_ARGUMENT);
    CHECK_SAYS("ctx is NULL");
    CHECK(inband_recover(NULL, 1, NULL, 0) == INBAND_ERR_ARGUMENT);
    CHECK(inband_room(NULL) == INBAND_ERR_ARGUMENT);
    CHECK(inband_run(NULL) == INBAND_ERR_ARGUMENT);
    CHECK(inband_run_once(NULL, 0) == INBAND_ERR_ARGUMENT);
    CHECK(inband_save(NULL, NULL, 0) == INBAND_ERR_ARGUMENT);
    CHECK(inband_restore(NULL, "", 0) == INBAND_ERR_ARGUMENT);
    CHECK(inband_on_deliver(NULL, NULL, NULL) == INBAND_ERR_ARGUMENT);
    CHECK(inband_on_failed(NULL, NULL, NULL) == INBAND_ERR_ARGUMENT);
    CHECK(inband_on_state_needed(NULL, NULL, NULL) == INBAND_ERR_ARGUMENT);
    CHECK(inband_applied(NULL) == 0);
    CHECK(strcmp(inband_dataplane_used(NULL), "") == 0);
    inband_stop(NULL);
    inband_free(NULL);
}

/* The cluster is in a later epoch: one replica has the state of the earlier one, the other does
 * not. */
static void check_state_needed(struct seen *a, struct seen *b) {
    time_t begun = time(NULL);
    int result = 0;

    CHECK(inband_run_once(a->ctx, 0) == INBAND_ERR_ARGUMENT);
    CHECK_SAYS("inband_on_deliver");
    CHECK(inband_run_once(a->ctx, -2) == INBAND_ERR_ARGUMENT);
    watch(a);
    CHECK(inband_on_deliver(b->ctx, on_deliver, b) == INBAND_OK);
    CHECK(inband_applied(a->ctx) == FIRST - 1 && inband_applied(b->ctx) == 0);
    while (result >= 0 && time(NULL) - begun < TIMEOUT_S) {
        CHECK(inband_run_once(a->ctx, 1) >= 0);
        result = inband_run_once(b->ctx, 1);
    }
    CHECK(result == INBAND_ERR_STATE_NEEDED);
    watch(b);
    RUN_UNTIL(b->restored == 1, a, b);
}

static void check_submit(struct seen *a, struct seen *b) {
    static char value[INBAND_VALUE_LEN_MAX_BYTES + 1];
    uint64_t tickets[3] = {0};

    memset(value, 'v', sizeof value);
    CHECK(inband_submit(a->ctx, value, sizeof value, NULL) == INBAND_ERR_TOO_LONG);
    CHECK_SAYS("1377 bytes is over the limit of 1376 bytes");
    CHECK(inband_submit(a->ctx, NULL, 1, NULL) == INBAND_ERR_ARGUMENT);
    CHECK_SAYS("value is NULL");
    CHECK(inband_room(a->ctx) == INBAND_WINDOW_VALUES);

    CHECK(inband_submit(a->ctx, NULL, 0, &tickets[0]) == INBAND_OK);
    RUN_UNTIL(a->delivered == 1 && b->delivered == 1, a, b);
    CHECK(a->last.ticket == tickets[0] && a->last.kind == INBAND_NEW);
    CHECK(a->last.value_len_bytes == 0 && a->last.instance >= FIRST);
    CHECK(b->last.ticket == 0 && b->last.instance == a->last.instance);

    CHECK(inband_submit(a->ctx, value, sizeof value - 1, &tickets[1]) == INBAND_OK);
    CHECK(tickets[1] > tickets[0]);
    RUN_UNTIL(a->delivered == 2 && b->delivered == 2, a, b);
    CHECK(b->last.value_len_bytes == INBAND_VALUE_LEN_MAX_BYTES);
    CHECK(memcmp(b->last_value, value, INBAND_VALUE_LEN_MAX_BYTES) == 0);

    a->again = 3;
    CHECK(inband_submit(b->ctx, "outside", 7, &tickets[2]) == INBAND_OK);
    RUN_UNTIL(a->delivered == 6 && b->delivered == 6 && a->answers == 3, a, b);
    CHECK(strcmp(b->last_value, "inside") == 0);
    CHECK(a->firsts[2] == 'o' && a->firsts[3] == 'i');

    /* Fill the window exactly. */
    for (int i = 0; i < INBAND_WINDOW_VALUES; i++)
        CHECK(inband_submit(b->ctx, "many", 4, NULL) == INBAND_OK);
    CHECK(inband_room(b->ctx) == 0);
    CHECK(inband_submit(b->ctx, "many", 4, NULL) == INBAND_ERR_WINDOW_FULL);
    RUN_UNTIL(a->delivered == 6 + INBAND_WINDOW_VALUES && b->delivered == a->delivered, a, b);
    CHECK(inband_room(b->ctx) == INBAND_WINDOW_VALUES);
}

static void check_recover(struct seen *a, struct seen *b) {
    int answers = a->answers;
    int delivered = a->delivered;
    uint64_t next;

    CHECK(inband_recover(a->ctx, 0, NULL, 0) == INBAND_ERR_ARGUMENT);
    CHECK(inband_recover(a->ctx, 200, NULL, 1) == INBAND_ERR_ARGUMENT);
    CHECK(inband_recover(a->ctx, 200, a, INBAND_VALUE_LEN_MAX_BYTES + 1) == INBAND_ERR_TOO_LONG);
    CHECK(inband_recover(a->ctx, FIRST - 1, NULL, 0) == INBAND_ERR_TRIMMED);
    CHECK(inband_recover(a->ctx, UINT64_MAX, NULL, 0) == INBAND_ERR_TOO_FAR_AHEAD);
    CHECK_SAYS("too far ahead");

    /* An instance that was delivered. */
    CHECK(inband_recover(a->ctx, a->instances[1], "no", 2) == INBAND_OK);
    RUN_UNTIL(a->answers == answers + 1, a, b);
    CHECK(a->last.kind == INBAND_REPLAY && a->last.instance == a->instances[1]);
    CHECK(a->last.value_len_bytes == INBAND_VALUE_LEN_MAX_BYTES && a->last.ticket == 0);

    /* An instance that opened a session. */
    CHECK(inband_recover(a->ctx, FIRST, "no", 2) == INBAND_OK);
    RUN_UNTIL(a->answers == answers + 2, a, b);
    CHECK(a->last.kind == INBAND_NOOP && a->last.instance == FIRST);

    /* An undecided instance, requested twice and answered once. On a slow machine a retransmitted
     * value may be decided there a second time: then try the next one. */
    do {
        settle(a, b);
        answers = a->answers;
        next = inband_applied(a->ctx) + 1;
        CHECK(inband_recover(a->ctx, next, "nothing", 7) == INBAND_OK);
        CHECK(inband_recover(a->ctx, next, "nothing", 7) == INBAND_OK);
        RUN_UNTIL(a->answers > answers && inband_applied(b->ctx) >= next, a, b);
        settle(a, b);
        CHECK(a->answers == answers + 1);
        CHECK(a->last.instance == next && a->last.ticket == 0);
    } while (a->last.kind == INBAND_REPLAY);
    CHECK(a->last.kind == INBAND_NOOP);
    CHECK(strcmp(a->last_value, "nothing") == 0);

    /* Again, now that it is decided: the same answer, from either replica's log. */
    CHECK(inband_recover(a->ctx, next, "other", 5) == INBAND_OK);
    RUN_UNTIL(a->answers == answers + 2, a, b);
    CHECK(strcmp(a->last_value, "nothing") == 0);
    answers = b->answers;
    CHECK(inband_recover(b->ctx, next, "other", 5) == INBAND_OK);
    RUN_UNTIL(b->answers == answers + 1, a, b);
    CHECK(strcmp(b->last_value, "nothing") == 0 && b->last.kind == INBAND_NOOP);

    /* An instance preceded by undecided ones, while a value is in flight. */
    answers = a->answers;
    CHECK(inband_recover(a->ctx, next + 3, "far", 3) == INBAND_OK);
    CHECK(inband_submit(b->ctx, "meanwhile", 9, NULL) == INBAND_OK);
    RUN_UNTIL(a->delivered == delivered + 1 && b->delivered == a->delivered, a, b);
    RUN_UNTIL(inband_applied(a->ctx) >= next + 3 && inband_applied(b->ctx) >= next + 3, a, b);
    CHECK(a->answers + (a->instances[delivered] == next + 3) == answers + 1);
}

static void check_stop(struct seen *a, struct seen *b) {
    int delivered = a->delivered;
    pthread_t thread;

    inband_stop(a->ctx);
    CHECK(inband_run(a->ctx) == INBAND_OK);
    inband_stop(a->ctx);
    CHECK(inband_run_once(a->ctx, 0) == INBAND_ERR_STOPPED);
    CHECK(pthread_create(&thread, NULL, stop_soon, a->ctx) == 0);
    CHECK(inband_run(a->ctx) == INBAND_OK);
    CHECK(pthread_join(thread, NULL) == 0);

    CHECK(pthread_create(&thread, NULL, stop_soon, a->ctx) == 0);
    CHECK(inband_run_once(a->ctx, -1) == INBAND_ERR_STOPPED);
    CHECK(pthread_join(thread, NULL) == 0);

    /* From a callback: the next value waits for the next run. */
    CHECK(inband_on_deliver(a->ctx, on_deliver_stop, a) == INBAND_OK);
    for (int i = 0; i < 4; i++)
        CHECK(inband_submit(a->ctx, "stop", 4, NULL) == INBAND_OK);
    for (int i = 1; i <= 4; i++) {
        CHECK(inband_run(a->ctx) == INBAND_OK);
        CHECK(a->delivered == delivered + i);
    }
    watch(a);
    RUN_UNTIL(b->delivered == a->delivered, a, b);
}

static void check_restart(struct seen *a, struct seen *b, const char *config_a) {
    char saved[4096];
    char *copy;
    int64_t len_bytes, other_len_bytes;
    int delivered;

    RUN_UNTIL(inband_applied(a->ctx) == inband_applied(b->ctx), a, b);
    CHECK(inband_restore(a->ctx, a->saved, (size_t)a->saved_len_bytes) == INBAND_ERR_SAVED_TOO_OLD);
    CHECK(inband_save(a->ctx, saved, 3) >= 16); /* nothing was written, because there is no room */
    CHECK(inband_save(a->ctx, NULL, 3) == INBAND_ERR_ARGUMENT);
    len_bytes = inband_save(a->ctx, NULL, 0);
    CHECK(len_bytes >= 16 && len_bytes <= (int64_t)sizeof saved);
    copy = malloc((size_t)len_bytes); /* exactly as long, for memory checkers */
    CHECK(copy != NULL && inband_save(a->ctx, copy, (size_t)len_bytes) == len_bytes);
    other_len_bytes = inband_save(b->ctx, saved, sizeof saved);
    CHECK(other_len_bytes == len_bytes && memcmp(copy, saved, (size_t)len_bytes) == 0);
    CHECK(inband_restore(a->ctx, copy, (size_t)len_bytes - 1) == INBAND_ERR_SAVED_DAMAGED);
    for (int64_t i = 0; i < len_bytes; i++) {
        copy[i] ^= 1;
        CHECK(inband_restore(a->ctx, copy, (size_t)len_bytes) == INBAND_ERR_SAVED_DAMAGED);
        copy[i] ^= 1;
    }
    CHECK(inband_restore(a->ctx, NULL, 0) == INBAND_ERR_ARGUMENT);
    CHECK(inband_restore(a->ctx, copy, (size_t)len_bytes) == INBAND_OK);

    inband_free(a->ctx);
    a->ctx = NULL;
    delivered = b->delivered;
    CHECK(inband_submit(b->ctx, "while away", 10, NULL) == INBAND_OK);
    RUN_UNTIL(b->delivered == delivered + 1, b, b);
    delivered = a->delivered;
    CHECK(inband_create(config_a, 0, copy, (size_t)len_bytes, &a->ctx) == INBAND_OK);
    free(copy);
    watch(a);
    RUN_UNTIL(a->delivered == delivered + 1, a, b);
    CHECK(strcmp(a->last_value, "while away") == 0);
    CHECK(inband_submit(a->ctx, "back", 4, NULL) == INBAND_OK);
    RUN_UNTIL(a->delivered == delivered + 2 && b->delivered == a->delivered, a, b);
    CHECK(strcmp(b->last_value, "back") == 0);
}

/* Values are decided but not delivered when a later state is restored. */
static void check_restore_ends_submissions(struct seen *a, struct seen *b) {
    int delivered = b->delivered;
    int failures = a->failures;
    char saved[4096];
    int64_t len_bytes;

    CHECK(inband_on_deliver(a->ctx, on_deliver_stop, a) == INBAND_OK);
    for (int i = 0; i < 5; i++)
        CHECK(inband_submit(a->ctx, "skip", 4, NULL) == INBAND_OK);
    CHECK(inband_run(a->ctx) == INBAND_OK);
    RUN_UNTIL(b->delivered == delivered + 5, b, b);
    len_bytes = inband_save(b->ctx, saved, sizeof saved);
    CHECK(inband_restore(a->ctx, saved, (size_t)len_bytes) == INBAND_OK);
    watch(a);
    RUN_UNTIL(a->failures == failures + 4, a, b);
    CHECK(a->last_failure.outcome == INBAND_IN_RESTORED_STATE && a->last_failure.ticket > 0);
    CHECK(inband_room(a->ctx) == INBAND_WINDOW_VALUES);
}

/* The same with a state that ends in the middle of what this replica has learned: the rest of that
 * is delivered. */
static void check_restore_amid(struct seen *a, struct seen *b) {
    int delivered_a, delivered_b, failures;
    char saved[4096];
    int64_t len_bytes = 0;

    RUN_UNTIL(inband_applied(a->ctx) == inband_applied(b->ctx), a, b);
    delivered_a = a->delivered;
    delivered_b = b->delivered;
    failures = a->failures;
    for (int i = 0; i < 5; i++)
        CHECK(inband_submit(a->ctx, "amid", 4, NULL) == INBAND_OK);
    CHECK(inband_on_deliver(b->ctx, on_deliver_stop, b) == INBAND_OK);
    for (int i = 1; i <= 5; i++) {
        CHECK(inband_run(b->ctx) == INBAND_OK && b->delivered == delivered_b + i);
        if (i == 3)
            len_bytes = inband_save(b->ctx, saved, sizeof saved);
    }
    CHECK(inband_on_deliver(a->ctx, on_deliver_stop, a) == INBAND_OK);
    CHECK(inband_run(a->ctx) == INBAND_OK);
    CHECK(inband_restore(a->ctx, saved, (size_t)len_bytes) == INBAND_OK);
    watch(a);
    watch(b);
    RUN_UNTIL(a->failures == failures + 2 && a->delivered == delivered_a + 3, a, b);
    CHECK(a->last_failure.outcome == INBAND_IN_RESTORED_STATE);
    CHECK(a->last.ticket > 0 && strcmp(a->last_value, "amid") == 0);
    CHECK(inband_room(a->ctx) == INBAND_WINDOW_VALUES);
}

/* Replica 1 again, from its own saved position, now with a short deadline; then without a majority
 * of acceptors. */
static void check_unknown(struct seen *a, const char *impatient) {
    char saved[4096];
    char line[16];
    int64_t len_bytes = inband_save(a->ctx, saved, sizeof saved);
    int delivered = a->delivered;
    int failures;
    uint64_t ticket;

    inband_free(a->ctx);
    CHECK(inband_create(impatient, 0, saved, (size_t)len_bytes, &a->ctx) == INBAND_OK);
    watch(a);
    while (a->delivered == delivered) { /* on a slow machine the first one may fail */
        failures = a->failures;
        CHECK(inband_submit(a->ctx, "session", 7, NULL) == INBAND_OK);
        RUN_UNTIL(a->delivered > delivered || a->failures > failures, a, a);
    }
    printf("stop the acceptors\n");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    failures = a->failures;
    CHECK(inband_submit(a->ctx, "lost", 4, &ticket) == INBAND_OK);
    RUN_UNTIL(a->failures == failures + 1, a, a);
    CHECK(a->last_failure.outcome == INBAND_OUTCOME_UNKNOWN);
    CHECK(a->last_failure.ticket == ticket && a->last_failure.instance == 0);
}

static void check_alone(const char *alone, const char *twin, const char *leader) {
    struct seen seen = {0};
    inband_ctx *ctx, *twice;
    uint64_t ticket;

    CHECK(inband_create(alone, INBAND_DATAPLANE_AUTO, NULL, 0, &seen.ctx) == INBAND_OK);
    CHECK(strcmp(inband_dataplane_used(seen.ctx), "udp: no host.interface is configured") == 0);
    CHECK(inband_create(alone, 0, NULL, 0, &twice) == INBAND_ERR_STATE_DIR);
    CHECK(inband_create(twin, 0, NULL, 0, &twice) == INBAND_ERR_ADDRESS);
    watch(&seen);
    CHECK(inband_submit(seen.ctx, "x", 1, &ticket) == INBAND_OK);
    RUN_UNTIL(seen.failures == 1, &seen, &seen);
    CHECK(seen.last_failure.outcome == INBAND_NOT_APPLIED && seen.last_failure.ticket == ticket);
    CHECK(inband_recover(seen.ctx, 7, NULL, 0) == INBAND_OK);
    RUN_UNTIL(seen.failures == 2, &seen, &seen);
    CHECK(seen.last_failure.outcome == INBAND_OUTCOME_UNKNOWN);
    CHECK(seen.last_failure.ticket == 0 && seen.last_failure.instance == 7);
    inband_free(seen.ctx);

    CHECK(inband_create(leader, 0, NULL, 0, &ctx) == INBAND_OK);
    CHECK(inband_submit(ctx, "x", 1, NULL) == INBAND_ERR_NOT_REPLICA);
    CHECK(inband_recover(ctx, 1, NULL, 0) == INBAND_ERR_NOT_REPLICA);
    CHECK(inband_run_once(ctx, 5) == 0);
    inband_free(ctx);
}

int main(int argc, char **argv) {
    static struct seen a, b;
    /* Position FIRST - 1, no sessions, checksum: as in saved_position.rs of inband-paxos. */
    static const unsigned char saved[16] = {0,  0,   0,   0,   0,   0,   0,   FIRST - 1,
                                            36, 183, 113, 194, 131, 186, 119, 91};

    CHECK(argc == 8);
    check_arguments(argv[1], argv[3]);
    check_alone(argv[4], argv[7], argv[5]);
    CHECK(inband_create(argv[1], 0, saved, sizeof saved, &a.ctx) == INBAND_OK);
    CHECK(inband_create(argv[2], INBAND_DATAPLANE_UDP, NULL, 0, &b.ctx) == INBAND_OK);
    a.peer = b.ctx;
    b.peer = a.ctx;
    CHECK(strcmp(inband_dataplane_used(b.ctx), "udp: as configured") == 0);
    check_state_needed(&a, &b);
    check_submit(&a, &b);
    check_recover(&a, &b);
    check_stop(&a, &b);
    CHECK(a.failures == 0 && b.failures == 0);

    CHECK(a.delivered == b.delivered);
    for (int i = 0; i < a.delivered; i++) {
        CHECK(i == 0 || a.instances[i] > a.instances[i - 1]);
        CHECK(a.instances[i] == b.instances[i] && a.firsts[i] == b.firsts[i]);
        CHECK(a.lens_bytes[i] == b.lens_bytes[i]);
    }

    check_restart(&a, &b, argv[1]);
    check_restore_ends_submissions(&a, &b);
    check_restore_amid(&a, &b);
    inband_free(b.ctx);
    check_unknown(&a, argv[6]);
    inband_free(a.ctx);
    printf("ok\n");
    return 0;
}
