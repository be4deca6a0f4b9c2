/* Learners, replicas, proposers and acceptors: a host, and for two of them a listener for clients. */
#include <stdlib.h>

#include "internal.h"

/* Has a host or gets the values from others. */
struct evlearner {
    struct evp_host *host;
    struct evp_remote *remote;
};

/* A host, and for one that submits the values of clients a listener for them. First in each role. */
struct server {
    struct evp_host *host;
    struct evp_clients *clients;
    int acceptor_count;
};

struct evpaxos_replica {
    struct server server;
};

struct evproposer {
    struct server server;
};

struct evacceptor {
    struct server server;
};

static void *role_new(size_t size) {
    void *role = calloc(1, size);
    if (role == NULL)
        paxos_log_error("no memory for a role");
    return role;
}

static void server_end(struct server *server) {
    evp_clients_free(server->clients);
    evp_host_free(server->host);
}

static bool server_start(struct server *server, int id, struct evpaxos_config *config,
                         enum role role, struct evp_calls calls, struct event_base *base) {
    server->acceptor_count = evpaxos_acceptor_count(config);
    if (role != ROLE_ACCEPTOR) {
        struct sockaddr_in address = evpaxos_proposer_address(config, id);
        if (address.sin_port == 0) {
            paxos_log_error("the configuration has no %s %d", evp_role_name(role), id);
            return false;
        }
        /* The address first: a second process with the same id ends here. */
        server->clients = evp_clients_listen(base, address);
        if (server->clients == NULL)
            return false;
        calls.room = evp_clients_resume;
        calls.position = evp_clients_answer;
        calls.decided = evp_clients_decided;
        calls.clients = server->clients;
    }
    server->host = evp_host_start(config, role, id, base, calls);
    if (server->host != NULL &&
        (server->clients == NULL || evp_clients_serve(server->clients, server->host)))
        return true;
    server_end(server);
    return false;
}

/* Returns a role of this size, which begins with its server; NULL if it cannot start. */
static void *server_new(size_t size, int id, const char *path, enum role role,
                        struct evp_calls calls, struct event_base *base) {
    struct evpaxos_config *config = evpaxos_config_read(path);
    struct server *server = config == NULL ? NULL : role_new(size);
    if (server != NULL && !server_start(server, id, config, role, calls, base)) {
        free(server);
        server = NULL;
    }
    evpaxos_config_free(config);
    return server;
}

static void server_free(void *role) {
    struct server *server = role;
    if (server == NULL)
        return;
    server_end(server);
    free(server);
}

/* ---- Replicas ---- */

struct evpaxos_replica *evpaxos_replica_init(int id, const char *path, deliver_function deliver,
                                             void *arg, struct event_base *base) {
    struct evp_calls calls = {.deliver = deliver, .deliver_arg = arg};
    return server_new(sizeof(struct evpaxos_replica), id, path, ROLE_REPLICA, calls, base);
}

void evpaxos_replica_free(struct evpaxos_replica *replica) {
    server_free(replica);
}

void evpaxos_replica_set_instance_id(struct evpaxos_replica *replica, unsigned iid) {
    evp_host_set_known(replica->server.host, iid);
}

void evpaxos_replica_send_trim(struct evpaxos_replica *replica, unsigned iid) {
    evp_host_trim(replica->server.host, iid);
}

void evpaxos_replica_submit(struct evpaxos_replica *replica, char *value, int size) {
    if (size < 0 || size > VALUE_LEN_MAX_BYTES)
        paxos_log_error("a value of %d bytes is not submitted: at most %d are possible", size,
                        VALUE_LEN_MAX_BYTES);
    else if (!evp_host_submit(replica->server.host, value, (size_t)size))
        paxos_log_error("a value is not submitted: %d are waiting; submit more slowly",
                        SUBMISSIONS_MAX);
}

int evpaxos_replica_count(struct evpaxos_replica *replica) {
    return replica->server.acceptor_count;
}

/* ---- Proposers ---- */

struct evproposer *evproposer_init(int id, const char *path, struct event_base *base) {
    struct evp_calls calls = {.deliver = NULL};
    return server_new(sizeof(struct evproposer), id, path, ROLE_PROPOSER, calls, base);
}

void evproposer_free(struct evproposer *proposer) {
    server_free(proposer);
}

void evproposer_set_instance_id(struct evproposer *proposer, unsigned iid) {
    (void)proposer;
    (void)iid;
}

/* ---- Acceptors ---- */

struct evacceptor *evacceptor_init(int id, const char *path, struct event_base *base) {
    struct evp_calls calls = {.deliver = NULL};
    return server_new(sizeof(struct evacceptor), id, path, ROLE_ACCEPTOR, calls, base);
}

void evacceptor_free(struct evacceptor *acceptor) {
    server_free(acceptor);
}

/* ---- Learners ---- */

struct evlearner *evlearner_init(const char *path, deliver_function deliver, void *arg,
                                 struct event_base *base) {
    struct evpaxos_config *config = evpaxos_config_read(path);
    struct evp_calls calls = {.deliver = deliver, .deliver_arg = arg};
    struct evlearner *learner = config == NULL ? NULL : role_new(sizeof *learner);
    if (learner != NULL && evp_host_count(config, ROLE_LEARNER, 0) > 0)
        learner->host = evp_host_start(config, ROLE_LEARNER, 0, base, calls);
    else if (learner != NULL)
        learner->remote = evp_remote_start(config, deliver, arg, base);
    if (learner != NULL && learner->host == NULL && learner->remote == NULL) {
        free(learner);
        learner = NULL;
    }
    evpaxos_config_free(config);
    return learner;
}

void evlearner_free(struct evlearner *learner) {
    if (learner == NULL)
        return;
    evp_host_free(learner->host);
    evp_remote_free(learner->remote);
    free(learner);
}

void evlearner_set_instance_id(struct evlearner *learner, unsigned iid) {
    if (learner->host != NULL)
        evp_host_set_known(learner->host, iid);
    else
        evp_remote_set_known(learner->remote, iid);
}

void evlearner_send_trim(struct evlearner *learner, unsigned iid) {
    if (learner->host != NULL)
        evp_host_trim(learner->host, iid);
}
