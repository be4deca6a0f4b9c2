/*
 * counter - a replicated counter, one replica.
 *
 *     counter CONFIG COUNT [TOTAL]
 *
 * Submits the numbers 1 to COUNT, each with the process id as its origin, and adds up the delivered
 * numbers, its own and those of the other replicas. Prints every delivery in order, as a line
 * "INSTANCE ORIGIN NUMBER", and a summary after TOTAL deliveries (default: COUNT). Replicas whose
 * summaries show the same digest have seen the same values in the same order. Keeps running for
 * slower replicas until SIGINT or SIGTERM.
 *
 * Build, from the root of the repository after `cargo build --release -p inband-c`:
 *
 *     cc -O2 -Wall -Ibindings/c bindings/c/example/counter.c -o counter \
 *         -Ltarget/release -linband -Wl,-rpath,"$PWD/target/release"
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inband.h"

struct counter {
    uint64_t count;     /* to submit */
    uint64_t submitted; /* so far */
    uint64_t total;     /* deliveries expected */
    uint64_t delivered; /* so far */
    uint64_t failed;
    uint64_t sum;    /* the replicated state */
    uint64_t digest; /* FNV-1a of all values, in order */
};

/* For the signal handler. */
static inband_ctx *running;

static void on_signal(int number) {
    (void)number;
    inband_stop(running);
}

/* Submit as much as there is room for. */
static void submit(inband_ctx *ctx, struct counter *counter) {
    while (counter->submitted < counter->count) {
        char value[64];
        int len_bytes =
            snprintf(value, sizeof value, "%ld %" PRIu64, (long)getpid(), counter->submitted + 1);
        int result = inband_submit(ctx, value, (size_t)len_bytes, NULL);
        if (result == INBAND_ERR_WINDOW_FULL)
            return; /* continues after the next delivery */
        if (result != INBAND_OK) {
            fprintf(stderr, "submit: %s\n", inband_last_error());
            exit(1);
        }
        counter->submitted++;
    }
}

static void deliver(inband_ctx *ctx, const inband_delivery *delivery, void *user) {
    struct counter *counter = user;
    char text[64];
    long origin;
    uint64_t number;

    if (delivery->kind != INBAND_NEW)
        return; /* an answer to inband_recover(), which this program does not call */
    snprintf(text, sizeof text, "%.*s", (int)delivery->value_len_bytes, delivery->value);
    if (sscanf(text, "%ld %" SCNu64, &origin, &number) != 2)
        return; /* not from this program */
    counter->sum += number;
    counter->delivered++;
    for (size_t i = 0; i < delivery->value_len_bytes; i++)
        counter->digest =
            (counter->digest ^ (unsigned char)delivery->value[i]) * UINT64_C(0x100000001b3);
    printf("%" PRIu64 " %ld %" PRIu64 "\n", delivery->instance, origin, number);
    if (counter->delivered == counter->total)
        printf("delivered %" PRIu64 ", failed %" PRIu64 ", sum %" PRIu64 ", digest %016" PRIx64
               "\n",
               counter->delivered, counter->failed, counter->sum, counter->digest);
    submit(ctx, counter); /* from inside the callback: there may be room again */
}

static void failed(inband_ctx *ctx, const inband_failure *failure, void *user) {
    struct counter *counter = user;
    counter->failed++;
    fprintf(stderr, "ticket %" PRIu64 ": %s\n", failure->ticket, failure->message);
    submit(ctx, counter);
}

static void state_needed(inband_ctx *ctx, void *user) {
    (void)user;
    fprintf(stderr, "this replica has missed too much; start it with a peer's state\n");
    inband_stop(ctx);
}

int main(int argc, char **argv) {
    struct counter counter = {0};
    inband_ctx *ctx;

    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: %s CONFIG COUNT [TOTAL]\n", argv[0]);
        return 2;
    }
    counter.count = strtoull(argv[2], NULL, 10);
    counter.total = argc > 3 ? strtoull(argv[3], NULL, 10) : counter.count;
    counter.digest = UINT64_C(0xcbf29ce484222325);
    setvbuf(stdout, NULL, _IOLBF, 0);

    if (inband_create(argv[1], INBAND_DATAPLANE_CONFIGURED, NULL, 0, &ctx) != INBAND_OK) {
        fprintf(stderr, "%s\n", inband_last_error());
        return 1;
    }
    fprintf(stderr, "inband %s, %s\n", inband_version(), inband_dataplane_used(ctx));
    running = ctx;
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    inband_on_deliver(ctx, deliver, &counter);
    inband_on_failed(ctx, failed, &counter);
    inband_on_state_needed(ctx, state_needed, NULL);
    submit(ctx, &counter);

    int result = inband_run(ctx);
    if (result != INBAND_OK)
        fprintf(stderr, "%s\n", inband_last_error());
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    inband_free(ctx);
    return result == INBAND_OK && counter.delivered >= counter.total ? 0 : 1;
}
