/* Clients submit values over TCP: paxos_submit() sends them, and proposers and replicas receive. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

#include <event2/buffer.h>
#include <event2/listener.h>

#include "internal.h"

static const unsigned char KINDS[FRAME_FOREIGN][4] = {
    [FRAME_VALUE] = {'I', 'E', 'V', '1'},    [FRAME_WANT_POSITION] = {'I', 'E', 'W', '1'},
    [FRAME_POSITION] = {'I', 'E', 'P', '1'}, [FRAME_LEARN] = {'I', 'E', 'L', '1'},
    [FRAME_DECIDED] = {'I', 'E', 'D', '1'},  [FRAME_FORGOTTEN] = {'I', 'E', 'F', '1'},
    [FRAME_ALIVE] = {'I', 'E', 'A', '1'},
};

struct client {
    struct client *following;
    struct evp_clients *clients;
    struct bufferevent *bev;
    bool waits; /* until there is room for its next value */
    bool wants_position;
    bool learns;
    /* It was told that what it wanted to learn is gone. It has to end the connection. */
    bool is_refused;
    unsigned next; /* value for it */
};

struct evp_clients {
    struct evconnlistener *listener;
    struct evp_host *host;
    struct evp_history *history;
    struct event *alive;
    struct client *first;
    int count;
};

struct header evp_header(enum frame kind, size_t len_bytes) {
    struct header header = {.len_bytes = htonl((uint32_t)len_bytes)};
    memcpy(header.kind, KINDS[kind], sizeof header.kind);
    return header;
}

enum frame evp_header_kind(const struct header *header) {
    int kind = FRAME_VALUE;
    while (kind < FRAME_FOREIGN && memcmp(header->kind, KINDS[kind], sizeof header->kind) != 0)
        kind++;
    return (enum frame)kind;
}

size_t evp_header_len_bytes(const struct header *header) {
    return ntohl(header->len_bytes);
}

void paxos_submit(struct bufferevent *bev, char *value, int size) {
    if (size < 0 || size > VALUE_LEN_MAX_BYTES) {
        paxos_log_error("a value of %d bytes is not submitted: at most %d are possible", size,
                        VALUE_LEN_MAX_BYTES);
        return;
    }
    struct header header = evp_header(FRAME_VALUE, (size_t)size);
    struct evbuffer *output = bufferevent_get_output(bev);
    evbuffer_lock(output); /* several threads may submit */
    if (evbuffer_add(output, &header, sizeof header) != 0 ||
        evbuffer_add(output, value, (size_t)size) != 0)
        paxos_log_error("no memory for a value of %d bytes", size);
    evbuffer_unlock(output);
}

static void client_free(struct client *client) {
    struct client **at = &client->clients->first;
    while (*at != client)
        at = &(*at)->following;
    *at = client->following;
    client->clients->count--;
    bufferevent_free(client->bev);
    free(client);
}

static void send_frame(struct client *client, enum frame kind, unsigned iid, const void *value,
                       size_t size) {
    uint32_t number = htonl(iid);
    struct header header = evp_header(kind, sizeof number + size);
    bufferevent_write(client->bev, &header, sizeof header);
    bufferevent_write(client->bev, &number, sizeof number);
    bufferevent_write(client->bev, value, size);
}

/* Sends what a learner may have and can take. */
static void feed(struct client *client) {
    struct evp_history *history = client->clients->history;
    struct evbuffer *output = bufferevent_get_output(client->bev);
    if (client->next < evp_history_first(history)) {
        client->learns = false;
        client->is_refused = true;
        send_frame(client, FRAME_FORGOTTEN, evp_history_first(history), NULL, 0);
        return;
    }
    while (client->next <= evp_history_last(history) &&
           evbuffer_get_length(output) < LEARNER_OUTPUT_MAX_BYTES) {
        size_t size;
        const void *value = evp_history_get(history, client->next, &size);
        send_frame(client, FRAME_DECIDED, client->next++, value, size);
    }
}

/* All that was sent has left. */
static void on_written(struct bufferevent *bev, void *arg) {
    struct client *client = arg;
    (void)bev;
    if (client->learns)
        feed(client);
}

void evp_clients_decided(const void *value, size_t size, void *arg) {
    struct evp_clients *clients = arg;
    if (!evp_history_add(clients->history, value, size)) {
        /* Learners would get later values with wrong numbers. */
        paxos_log_error("no memory for a decided value");
        abort();
    }
    for (struct client *client = clients->first; client != NULL; client = client->following)
        if (client->learns)
            feed(client);
}

static void on_alive(evutil_socket_t fd, short what, void *arg) {
    struct evp_clients *clients = arg;
    struct header header = evp_header(FRAME_ALIVE, 0);
    (void)fd;
    (void)what;
    for (struct client *client = clients->first; client != NULL; client = client->following)
        if (client->learns && evbuffer_get_length(bufferevent_get_output(client->bev)) == 0)
            bufferevent_write(client->bev, &header, sizeof header);
}

static void on_read(struct bufferevent *bev, void *arg) {
    struct client *client = arg;
    struct evbuffer *input = bufferevent_get_input(bev);
    struct header header;
    while (evbuffer_copyout(input, &header, sizeof header) == (ev_ssize_t)sizeof header) {
        enum frame kind = evp_header_kind(&header);
        size_t size = evp_header_len_bytes(&header);
        /* Without reading the answers, a client could make more and more of them wait here. */
        bool has_answer = evbuffer_get_length(bufferevent_get_output(bev)) > 0;
        if (kind == FRAME_WANT_POSITION && size == 0 && !has_answer) {
            evbuffer_drain(input, sizeof header);
            client->wants_position = true;
            evp_host_want_position(client->clients->host);
            continue;
        }
        if (kind == FRAME_LEARN && size == sizeof client->next && !client->learns &&
            !client->is_refused) {
            if (evbuffer_get_length(input) < sizeof header + size)
                return;
            evbuffer_drain(input, sizeof header);
            evbuffer_remove(input, &client->next, sizeof client->next);
            client->next = ntohl(client->next);
            client->learns = true;
            feed(client);
            continue;
        }
        if (kind != FRAME_VALUE || size > VALUE_LEN_MAX_BYTES) {
            paxos_log_error("a client is disconnected: what it sends is not from this library; "
                            "link it again");
            client_free(client);
            return;
        }
        if (evbuffer_get_length(input) < sizeof header + size)
            return;
        unsigned char *bytes = evbuffer_pullup(input, (ev_ssize_t)(sizeof header + size));
        if (bytes == NULL) {
            paxos_log_error("a client is disconnected: no memory");
            client_free(client);
            return;
        }
        if (!evp_host_submit(client->clients->host, bytes + sizeof header, size)) {
            client->waits = true;
            bufferevent_disable(bev, EV_READ);
            return;
        }
        evbuffer_drain(input, sizeof header + size);
    }
}

static void on_end(struct bufferevent *bev, short what, void *arg) {
    (void)bev;
    if (what & BEV_EVENT_ERROR)
        paxos_log_debug("a client's connection ended: %s",
                        evutil_socket_error_to_string(EVUTIL_SOCKET_ERROR()));
    client_free(arg);
}

void evp_clients_resume(void *arg) {
    struct evp_clients *clients = arg;
    struct client *next;
    for (struct client *client = clients->first; client != NULL; client = next) {
        next = client->following;
        if (!client->waits)
            continue;
        client->waits = false;
        bufferevent_enable(client->bev, EV_READ);
        on_read(client->bev, client);
    }
}

void evp_clients_answer(const struct position *position, void *arg) {
    struct evp_clients *clients = arg;
    struct header header =
        evp_header(FRAME_POSITION, sizeof position->header + position->len_bytes);
    for (struct client *client = clients->first; client != NULL; client = client->following) {
        if (!client->wants_position)
            continue;
        client->wants_position = false;
        bufferevent_write(client->bev, &header, sizeof header);
        bufferevent_write(client->bev, &position->header, sizeof position->header);
        bufferevent_write(client->bev, position->bytes, position->len_bytes);
    }
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *from,
                      int from_len, void *arg) {
    struct evp_clients *clients = arg;
    int on = 1;
    (void)from;
    (void)from_len;
    struct client *client = calloc(1, sizeof *client);
    if (clients->count == CLIENTS_MAX || client == NULL) {
        paxos_log_error("a client is refused: there are %d already", clients->count);
        free(client);
        evutil_closesocket(fd);
        return;
    }
    client->bev =
        bufferevent_socket_new(evconnlistener_get_base(listener), fd, BEV_OPT_CLOSE_ON_FREE);
    if (client->bev == NULL) {
        paxos_log_error("no memory for a client");
        free(client);
        evutil_closesocket(fd);
        return;
    }
    if (paxos_config.tcp_nodelay)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    client->clients = clients;
    client->following = clients->first;
    clients->first = client;
    clients->count++;
    bufferevent_setcb(client->bev, on_read, on_written, on_end, client);
    bufferevent_setwatermark(client->bev, EV_READ, 0, sizeof(struct header) + VALUE_LEN_MAX_BYTES);
    bufferevent_enable(client->bev, EV_READ);
}

static void on_accept_error(struct evconnlistener *listener, void *arg) {
    (void)listener;
    (void)arg;
    paxos_log_error("a client cannot be accepted: %s",
                    evutil_socket_error_to_string(EVUTIL_SOCKET_ERROR()));
}

struct evp_clients *evp_clients_listen(struct event_base *base, struct sockaddr_in address) {
    struct evp_clients *clients = calloc(1, sizeof *clients);
    char text[INET_ADDRSTRLEN] = "";
    if (clients == NULL) {
        paxos_log_error("no memory for clients");
        return NULL;
    }
    clients->listener = evconnlistener_new_bind(
        base, NULL, NULL, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE, -1,
        (struct sockaddr *)&address, sizeof address);
    if (clients->listener == NULL) {
        inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
        paxos_log_error("clients cannot be served at %s:%d: %s", text, ntohs(address.sin_port),
                        strerror(errno));
        free(clients);
        return NULL;
    }
    evconnlistener_set_error_cb(clients->listener, on_accept_error);
    return clients;
}

bool evp_clients_serve(struct evp_clients *clients, struct evp_host *host) {
    struct timeval interval = {ALIVE_INTERVAL_S, 0};
    clients->host = host;
    clients->history = evp_history_new(evp_host_start_iid(host));
    clients->alive =
        event_new(evconnlistener_get_base(clients->listener), -1, EV_PERSIST, on_alive, clients);
    if (clients->history == NULL || clients->alive == NULL ||
        event_add(clients->alive, &interval) != 0) {
        paxos_log_error("no memory for learners");
        return false;
    }
    evconnlistener_set_cb(clients->listener, on_accept, clients);
    return true;
}

void evp_clients_free(struct evp_clients *clients) {
    if (clients == NULL)
        return;
    while (clients->first != NULL)
        client_free(clients->first);
    if (clients->alive != NULL)
        event_free(clients->alive);
    evp_history_free(clients->history);
    evconnlistener_free(clients->listener);
    free(clients);
}
