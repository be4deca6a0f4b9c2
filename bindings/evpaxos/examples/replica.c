/*
 * replica - runs one replica, as programs written for libpaxos 3 do.
 *
 *     replica ID CONFIG
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <evpaxos.h>

static void on_signal(evutil_socket_t number, short what, void *base) {
    (void)number;
    (void)what;
    event_base_loopexit(base, NULL);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s ID CONFIG\n", argv[0]);
        return 2;
    }
    struct event_base *base = event_base_new();
    struct evpaxos_replica *replica =
        evpaxos_replica_init(atoi(argv[1]), argv[2], NULL, NULL, base);
    if (replica == NULL)
        return 1;
    struct event *terminate = evsignal_new(base, SIGTERM, on_signal, base);
    event_add(terminate, NULL);
    signal(SIGPIPE, SIG_IGN);
    printf("replica %s of %d\n", argv[1], evpaxos_replica_count(replica));
    fflush(stdout);

    event_base_dispatch(base);

    event_free(terminate);
    evpaxos_replica_free(replica);
    event_base_free(base);
    return 0;
}
