/*
 * learner - prints "learning", and each decided value as a line "NUMBER VALUE", as programs written
 * for libpaxos 3 do.
 *
 *     learner CONFIG
 */
#include <signal.h>
#include <stdio.h>

#include <evpaxos.h>

static void deliver(unsigned iid, char *value, size_t size, void *arg) {
    (void)arg;
    printf("%u %.*s\n", iid, (int)size, value);
}

static void on_signal(evutil_socket_t number, short what, void *base) {
    (void)number;
    (void)what;
    event_base_loopexit(base, NULL);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s CONFIG\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct event_base *base = event_base_new();
    struct evlearner *learner = evlearner_init(argv[1], deliver, NULL, base);
    if (learner == NULL)
        return 1;
    struct event *terminate = evsignal_new(base, SIGTERM, on_signal, base);
    event_add(terminate, NULL);
    printf("learning\n");

    event_base_dispatch(base);

    event_free(terminate);
    evlearner_free(learner);
    event_base_free(base);
    return 0;
}
