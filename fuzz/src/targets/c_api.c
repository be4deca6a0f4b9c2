/*
 * A program that calls every function of inband.h in any order, also from callbacks, with arbitrary
 * bytes in place of inband_save()'s output. Memory from the library is read completely, and buffers
 * for it have no spare byte, so that ASan notices every overrun.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../bindings/c/inband.h"

/* Far more than can be submitted before the oldest one's deadline. */
#define TICKETS (1 << 20)
#define CALLS_MAX 256
#define RUNS_AT_THE_END 4

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__,            \
                    #condition, inband_last_error());                                              \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct bench {
    inband_ctx *ctx;
    const uint8_t *at;
    const uint8_t *end;
    int calls; /* in this input */
    int depth; /* 1: inside a callback */
    uint64_t last_instance;
    uint64_t open[TICKETS]; /* submitted and not ended, each at its number modulo TICKETS */
    uint8_t *saved;         /* the last output of inband_save() */
    size_t saved_len_bytes;
};

static void call(struct bench *bench);

static uint8_t byte(struct bench *bench) {
    return bench->at < bench->end ? *bench->at++ : 0;
}

static unsigned sum(const void *bytes, size_t len_bytes) {
    unsigned total = 0;
    for (size_t i = 0; i < len_bytes; i++)
        total += ((const uint8_t *)bytes)[i];
    return total;
}

/* A ticket must end only once. */
static void ended(struct bench *bench, uint64_t ticket) {
    if (ticket == 0)
        return;
    CHECK(bench->open[ticket % TICKETS] == ticket);
    bench->open[ticket % TICKETS] = 0;
}

static void on_deliver(inband_ctx *ctx, const inband_delivery *delivery, void *user) {
    struct bench *bench = user;
    CHECK(ctx == bench->ctx && delivery->value != NULL);
    CHECK(delivery->value_len_bytes <= INBAND_VALUE_LEN_MAX_BYTES);
    volatile unsigned read = sum(delivery->value, delivery->value_len_bytes);
    (void)read;
    if (delivery->kind == INBAND_NEW) {
        CHECK(delivery->instance > bench->last_instance);
        CHECK(inband_applied(ctx) == delivery->instance);
        bench->last_instance = delivery->instance;
        ended(bench, delivery->ticket);
    } else {
        CHECK(delivery->kind == INBAND_REPLAY || delivery->kind == INBAND_NOOP);
    }
    CHECK(inband_run_once(ctx, 0) == INBAND_ERR_BUSY);
    bench->depth++;
    call(bench);
    bench->depth--;
}

static void on_failed(inband_ctx *ctx, const inband_failure *failure, void *user) {
    struct bench *bench = user;
    CHECK(ctx == bench->ctx && strlen(failure->message) > 0);
    CHECK((failure->ticket == 0) != (failure->instance == 0));
    ended(bench, failure->ticket);
    bench->depth++;
    call(bench);
    bench->depth--;
}

static void on_state_needed(inband_ctx *ctx, void *user) {
    struct bench *bench = user;
    CHECK(ctx == bench->ctx);
}

static void save(struct bench *bench) {
    int64_t len_bytes = inband_save(bench->ctx, NULL, 0);
    CHECK(len_bytes >= 16);
    free(bench->saved);
    bench->saved_len_bytes = (size_t)len_bytes;
    bench->saved = malloc(bench->saved_len_bytes);
    uint8_t *small = malloc(bench->saved_len_bytes - 1);
    CHECK(bench->saved && small);
    CHECK(inband_save(bench->ctx, small, bench->saved_len_bytes - 1) == len_bytes);
    free(small);
    CHECK(inband_save(bench->ctx, bench->saved, bench->saved_len_bytes) == len_bytes);
}

/* Restores what was saved, or that with bytes changed or cut off, or arbitrary bytes. */
static void restore(struct bench *bench) {
    uint8_t how = byte(bench);
    size_t len_bytes = how % 4 == 3 ? byte(bench) : bench->saved_len_bytes;
    if (how % 4 == 2 && len_bytes > 0)
        len_bytes -= byte(bench) % len_bytes;
    uint8_t *copy = malloc(len_bytes ? len_bytes : 1);
    CHECK(copy != NULL);
    for (size_t i = 0; i < len_bytes; i++)
        copy[i] = how % 4 == 3 ? byte(bench) : bench->saved[i];
    if (how % 4 == 1 && len_bytes > 0)
        copy[(byte(bench) << 8 | byte(bench)) % len_bytes] ^= (uint8_t)(byte(bench) | 1);
    int is_whole =
        len_bytes == bench->saved_len_bytes && memcmp(copy, bench->saved, len_bytes) == 0;
    int result = inband_restore(bench->ctx, copy, len_bytes);
    free(copy);
    if (result == INBAND_OK)
        bench->last_instance = inband_applied(bench->ctx);
    else
        CHECK(strlen(inband_last_error()) > 0);
    if (is_whole)
        CHECK(result == INBAND_OK || result == INBAND_ERR_SAVED_TOO_OLD ||
              result == INBAND_ERR_BUSY);
    else
        CHECK(result == INBAND_ERR_SAVED_DAMAGED || result == INBAND_ERR_BUSY);
}

static void submit(struct bench *bench) {
    size_t len_bytes = (size_t)(byte(bench) * 7);
    uint8_t *value = malloc(len_bytes ? len_bytes : 1);
    uint64_t ticket = 0;
    CHECK(value != NULL);
    memset(value, byte(bench), len_bytes);
    int room = inband_room(bench->ctx);
    int result = inband_submit(bench->ctx, value, len_bytes, &ticket);
    free(value);
    if (len_bytes > INBAND_VALUE_LEN_MAX_BYTES) {
        CHECK(result == INBAND_ERR_TOO_LONG);
    } else if (result == INBAND_OK) {
        CHECK(room > 0 && ticket > 0);
        bench->open[ticket % TICKETS] = ticket;
    } else {
        CHECK(result == INBAND_ERR_WINDOW_FULL);
    }
}

static void recover(struct bench *bench) {
    uint64_t applied = inband_applied(bench->ctx);
    uint8_t how = byte(bench);
    uint64_t instance = how < 128 ? applied + how : applied - (how - 128);
    uint8_t noop[16] = {0};
    int result = inband_recover(bench->ctx, instance, noop, byte(bench) % (sizeof(noop) + 1));
    CHECK(result == INBAND_OK || result == INBAND_ERR_ARGUMENT || result == INBAND_ERR_TRIMMED ||
          result == INBAND_ERR_TOO_FAR_AHEAD || result == INBAND_ERR_WINDOW_FULL);
}

static void run_once(struct bench *bench) {
    int result = inband_run_once(bench->ctx, 0);
    CHECK(bench->depth == 0 || result == INBAND_ERR_BUSY);
    CHECK(bench->depth != 0 || result >= 0 || result == INBAND_ERR_STOPPED ||
          result == INBAND_ERR_ARGUMENT);
}

static void wrong_arguments(struct bench *bench) {
    CHECK(inband_submit(NULL, "x", 1, NULL) == INBAND_ERR_ARGUMENT);
    CHECK(inband_submit(bench->ctx, NULL, 1, NULL) == INBAND_ERR_ARGUMENT);
    CHECK(inband_recover(bench->ctx, 1, NULL, 1) == INBAND_ERR_ARGUMENT);
    CHECK(inband_restore(bench->ctx, NULL, 1) == INBAND_ERR_ARGUMENT);
    CHECK(inband_save(bench->ctx, NULL, 1) == INBAND_ERR_ARGUMENT);
    CHECK(inband_run_once(NULL, 0) == INBAND_ERR_ARGUMENT);
    CHECK(inband_create(NULL, 0, NULL, 0, NULL) == INBAND_ERR_ARGUMENT);
    inband_free(NULL);
    inband_stop(NULL);
}

/* One call, chosen by the input. */
static void call(struct bench *bench) {
    if (bench->calls++ >= CALLS_MAX)
        return;
    switch (byte(bench) % 16) {
    case 0:
    case 1:
    case 2:
        submit(bench);
        break;
    case 3:
        recover(bench);
        break;
    case 4:
        save(bench);
        break;
    case 5:
        restore(bench);
        break;
    case 6:
        CHECK(inband_room(bench->ctx) >= 0 && inband_room(bench->ctx) <= INBAND_WINDOW_VALUES);
        break;
    case 7:
        inband_stop(bench->ctx);
        break;
    case 8:
        wrong_arguments(bench);
        break;
    case 9:
        if (bench->depth > 0)
            inband_free(bench->ctx); /* does nothing in a callback */
        break;
    case 10:
        CHECK(inband_on_failed(bench->ctx, byte(bench) % 2 ? on_failed : NULL, bench) == 0);
        break;
    default:
        run_once(bench);
    }
}

/* Runs an input on a single-host cluster, created at the first call. Returns 0 or the error. */
int inband_fuzz_c_api(const char *config_path, const uint8_t *data, size_t len_bytes) {
    static struct bench bench;
    if (!bench.ctx) {
        int result = inband_create(config_path, INBAND_DATAPLANE_UDP, NULL, 0, &bench.ctx);
        if (result != INBAND_OK) {
            fprintf(stderr, "%s: %s\n", config_path, inband_last_error());
            return result;
        }
        CHECK(inband_on_deliver(bench.ctx, on_deliver, &bench) == INBAND_OK);
        CHECK(inband_on_state_needed(bench.ctx, on_state_needed, &bench) == INBAND_OK);
        save(&bench);
    }
    bench.at = data;
    bench.end = data + len_bytes;
    bench.calls = 0;
    while (bench.at < bench.end && bench.calls < CALLS_MAX)
        call(&bench);
    for (int i = 0; i < RUNS_AT_THE_END; i++)
        run_once(&bench);
    return 0;
}
