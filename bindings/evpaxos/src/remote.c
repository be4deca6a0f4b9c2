/* A learner without a host of its own: it gets the decided values from a replica or proposer of the
   configuration, and from another one if that ends. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/event_struct.h>

#include "internal.h"

struct evp_remote {
    struct event_base *base;
    struct sockaddr_in proposers[MAX_N_OF_PROPOSERS];
    int count;
    int which; /* proposer, from 0 */
    deliver_function deliver;
    void *deliver_arg;
    unsigned next;  /* value that comes next */
    unsigned known; /* deliver only above */
    bool may_skip;  /* values before those that proposers still have */
    int gaps;       /* proposers in a row that no longer have the next value */

    int fd; /* -1: none */
    bool connected;
    /* No bufferevent: programs free the event_base first, and only an event can be told from its own
       memory to have been removed. */
    struct event io;
    struct event retry;
    struct evbuffer *input;
};

static void connect_next(struct evp_remote *remote);
static void on_io(evutil_socket_t fd, short what, void *arg);

static void remove_event(struct event *event) {
    if (event->ev_evcallback.evcb_flags &
        (EVLIST_TIMEOUT | EVLIST_INSERTED | EVLIST_ACTIVE | EVLIST_ACTIVE_LATER))
        event_del(event);
}

static void disconnect(struct evp_remote *remote) {
    remove_event(&remote->io);
    if (remote->fd >= 0)
        close(remote->fd);
    remote->fd = -1;
    remote->connected = false;
    evbuffer_drain(remote->input, evbuffer_get_length(remote->input));
}

/* Continues with the next proposer; after the last one, a moment later with the first. */
static void give_up(struct evp_remote *remote) {
    struct timeval delay = {0, RECONNECT_MS * 1000};
    disconnect(remote);
    remote->which = (remote->which + 1) % remote->count;
    event_add(&remote->retry, &delay);
}

static void on_gap(struct evp_remote *remote, unsigned first) {
    if (remote->may_skip) {
        remote->next = first;
    } else if (++remote->gaps == remote->count) {
        paxos_log_error("nothing is delivered: no proposer has value %u, the oldest is %u; start "
                        "this learner with a state of another one and evlearner_set_instance_id()",
                        remote->next, first);
    }
    give_up(remote);
}

/* False if the connection has ended. */
static bool on_frame(struct evp_remote *remote, enum frame kind, unsigned char *content,
                     size_t size) {
    uint32_t iid;
    if (kind == FRAME_ALIVE)
        return true;
    if ((kind != FRAME_DECIDED && kind != FRAME_FORGOTTEN) || size < sizeof iid) {
        paxos_log_error("proposer %d sends what is not from this library; link it again",
                        remote->which);
        give_up(remote);
        return false;
    }
    memcpy(&iid, content, sizeof iid);
    iid = ntohl(iid);
    if (kind == FRAME_FORGOTTEN) {
        on_gap(remote, iid);
        return false;
    }
    if (iid != remote->next) {
        give_up(remote);
        return false;
    }
    remote->next++;
    remote->gaps = 0;
    remote->may_skip = false;
    if (iid > remote->known) {
        content[size] = '\0'; /* as programs print values; there is room for it */
        remote->deliver(iid, (char *)content + sizeof iid, size - sizeof iid, remote->deliver_arg);
    }
    return true;
}

static void on_input(struct evp_remote *remote) {
    struct header header;
    while (evbuffer_copyout(remote->input, &header, sizeof header) == (ev_ssize_t)sizeof header) {
        size_t size = evp_header_len_bytes(&header);
        enum frame kind = evp_header_kind(&header);
        if (size > sizeof(uint32_t) + VALUE_LEN_MAX_BYTES)
            kind = FRAME_FOREIGN;
        else if (evbuffer_get_length(remote->input) < sizeof header + size)
            return;
        unsigned char *content = NULL;
        if (kind != FRAME_FOREIGN) {
            /* Out of the buffer, with room for a zero byte. */
            if ((content = malloc(size + 1)) == NULL) {
                paxos_log_error("no memory for a decided value");
                give_up(remote);
                return;
            }
            evbuffer_drain(remote->input, sizeof header);
            evbuffer_remove(remote->input, content, size);
        }
        bool goes_on = on_frame(remote, kind, content, size);
        free(content);
        if (!goes_on)
            return;
    }
}

static bool ask(struct evp_remote *remote) {
    struct timeval silence = {SILENCE_S, 0};
    struct header header = evp_header(FRAME_LEARN, sizeof(uint32_t));
    uint32_t next = htonl(remote->next);
    unsigned char request[sizeof header + sizeof next];
    int error = 0;
    socklen_t len = sizeof error;
    memcpy(request, &header, sizeof header);
    memcpy(request + sizeof header, &next, sizeof next);
    if (getsockopt(remote->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0 || error != 0 ||
        send(remote->fd, request, sizeof request, MSG_NOSIGNAL) != (ssize_t)sizeof request)
        return false;
    remote->connected = true;
    remove_event(&remote->io);
    return event_assign(&remote->io, remote->base, remote->fd, EV_READ | EV_PERSIST, on_io,
                        remote) == 0 &&
           event_add(&remote->io, &silence) == 0;
}

static void on_io(evutil_socket_t fd, short what, void *arg) {
    struct evp_remote *remote = arg;
    if (what & EV_TIMEOUT) {
        paxos_log_debug("proposer %d does not answer", remote->which);
        give_up(remote);
    } else if (!remote->connected) {
        if (!ask(remote))
            give_up(remote);
    } else {
        int len = evbuffer_read(remote->input, fd, -1);
        if (len > 0)
            on_input(remote);
        else if (len == 0 || (errno != EAGAIN && errno != EINTR))
            give_up(remote);
    }
}

static void on_retry(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    (void)what;
    connect_next(arg);
}

static void connect_next(struct evp_remote *remote) {
    struct timeval limit = {SILENCE_S, 0};
    struct sockaddr_in *address = &remote->proposers[remote->which];
    if (remote->next <= remote->known)
        remote->next = remote->known + 1;
    remote->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (remote->fd < 0 ||
        (connect(remote->fd, (struct sockaddr *)address, sizeof *address) != 0 &&
         errno != EINPROGRESS) ||
        event_assign(&remote->io, remote->base, remote->fd, EV_WRITE, on_io, remote) != 0 ||
        event_add(&remote->io, &limit) != 0)
        give_up(remote);
}

struct evp_remote *evp_remote_start(struct evpaxos_config *config, deliver_function deliver,
                                    void *arg, struct event_base *base) {
    struct timeval now = {0, 0};
    struct evp_remote *remote = calloc(1, sizeof *remote);
    if (remote == NULL || (remote->input = evbuffer_new()) == NULL) {
        paxos_log_error("no memory for a learner");
        free(remote);
        return NULL;
    }
    remote->base = base;
    remote->deliver = deliver;
    remote->deliver_arg = arg;
    remote->fd = -1;
    remote->next = 1;
    for (int id = 0; id < MAX_N_OF_PROPOSERS; id++) {
        struct sockaddr_in address = evpaxos_proposer_address(config, id);
        if (address.sin_port != 0)
            remote->proposers[remote->count++] = address;
    }
    if (!paxos_config.learner_catch_up) {
        /* Before this function returns, so that what the program submits then is delivered. */
        struct position *position = evp_position_fetch(config);
        remote->may_skip = true;
        if (position != NULL)
            remote->next = (unsigned)position->header.delivered + 1;
        else
            paxos_log_info("no proposer answers yet; this learner delivers from the beginning");
        free(position);
    }
    if (remote->count == 0 || event_assign(&remote->io, base, -1, 0, on_io, remote) != 0 ||
        evtimer_assign(&remote->retry, base, on_retry, remote) != 0 ||
        event_add(&remote->retry, &now) != 0) {
        paxos_log_error("no learner: the configuration has no replica or proposer to learn from");
        evbuffer_free(remote->input);
        free(remote);
        return NULL;
    }
    return remote;
}

void evp_remote_free(struct evp_remote *remote) {
    if (remote == NULL)
        return;
    disconnect(remote);
    remove_event(&remote->retry);
    evbuffer_free(remote->input);
    free(remote);
}

void evp_remote_set_known(struct evp_remote *remote, unsigned iid) {
    remote->known = iid;
}
