/*
 * client - submits numbered values to a proposer, as programs written for libpaxos 3 do.
 *
 *     client CONFIG PROPOSER NAME COUNT
 *
 * The values are "NAME 1" to "NAME COUNT". A learner of its own tells which are decided; as many as
 * OUTSTANDING are under way at a time.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evpaxos.h>
#include <paxos.h>

#define OUTSTANDING 64

struct client {
    const char *name;
    int count;
    int submitted;
    int delivered;
    struct event_base *base;
    struct bufferevent *proposer;
    struct evlearner *learner;
};

static void submit_next(struct client *client) {
    char value[64];
    if (client->submitted == client->count)
        return;
    client->submitted++;
    int size = snprintf(value, sizeof value, "%s %d", client->name, client->submitted);
    paxos_submit(client->proposer, value, size);
}

static void deliver(unsigned iid, char *value, size_t size, void *arg) {
    struct client *client = arg;
    size_t name_len = strlen(client->name);
    (void)iid;
    if (size <= name_len || memcmp(value, client->name, name_len) != 0 || value[name_len] != ' ')
        return; /* another client's */
    client->delivered++;
    if (client->delivered == client->count)
        event_base_loopexit(client->base, NULL);
    submit_next(client);
}

static void on_event(struct bufferevent *proposer, short what, void *arg) {
    struct client *client = arg;
    (void)proposer;
    if (what & BEV_EVENT_CONNECTED) {
        for (int i = 0; i < OUTSTANDING; i++)
            submit_next(client);
    } else {
        fprintf(stderr, "no connection to the proposer: %s\n",
                evutil_socket_error_to_string(EVUTIL_SOCKET_ERROR()));
        event_base_loopexit(client->base, NULL);
    }
}

static bool connect_to_proposer(struct client *client, const char *path, int id) {
    struct evpaxos_config *config = evpaxos_config_read(path);
    if (config == NULL)
        return false;
    struct sockaddr_in address = evpaxos_proposer_address(config, id);
    evpaxos_config_free(config);
    client->proposer = bufferevent_socket_new(client->base, -1, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(client->proposer, NULL, NULL, on_event, client);
    bufferevent_enable(client->proposer, EV_READ | EV_WRITE);
    return bufferevent_socket_connect(client->proposer, (struct sockaddr *)&address,
                                      sizeof address) == 0;
}

int main(int argc, char **argv) {
    struct client client = {0};
    if (argc != 5) {
        fprintf(stderr, "usage: %s CONFIG PROPOSER NAME COUNT\n", argv[0]);
        return 2;
    }
    client.name = argv[3];
    client.count = atoi(argv[4]);
    client.base = event_base_new();
    signal(SIGPIPE, SIG_IGN);
    paxos_config.learner_catch_up = 0;
    client.learner = evlearner_init(argv[1], deliver, &client, client.base);
    if (client.learner == NULL || !connect_to_proposer(&client, argv[1], atoi(argv[2])))
        return 1;

    event_base_dispatch(client.base);

    printf("delivered %d of %d\n", client.delivered, client.count);
    bufferevent_free(client.proposer);
    event_base_free(client.base);
    evlearner_free(client.learner); /* which may come last, as in libpaxos's own client */
    return client.delivered == client.count ? 0 : 1;
}
