/* Learners, replicas, proposers and acceptors: a host, and for two of them a listener for clients. */
#include <stdlib.h>

#include "internal.h"

/* Has a host or gets the values from others. */
struct evlearner {
    struct evp_host *host;
    struct evp_remote *remote;
};

struct evacceptor {
    struct evp_host *host;
};

/* A host that submits the values of clients. */
struct server {
    struct evp_host *host;
    struct evp_clients *clients;
};

struct evpaxos_replica {
    struct server server;
    int count;
};

struct evproposer {
    struct server server;
};

static void *role_new(size_t size) {
    void *role = calloc(1, size);
    if (role == NULL)
        paxos_log_error("no memory for a role");
    return role;
}

static void server_free(struct server *server) {
    evp_clients_free(server->clients);
    evp_host_free(server->host);
}

static bool server_start(struct server *server, int id, struct evpaxos_config *config,
                         enum role role, struct evp_calls calls, struct event_base *base) {
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
    server->host = evp_host_start(config, role, id, base, calls);
    if (server->host == NULL || !evp_clients_serve(server->clients, server->host)) {
        server_free(server);
        return false;
    }
    return true;
}

/* ---- Replicas ---- */

struct evpaxos_replica *evpaxos_replica_init(int id, const char *path, deliver_function deliver,
                                             void *arg, struct event_base *base) {
    struct evpaxos_config *config = evpaxos_config_read(path);
    struct evp_calls calls = {.deliver = deliver, .deliver_arg = arg};
    struct evpaxos_replica *replica = config == NULL ? NULL : role_new(sizeof *replica);
    if (replica != NULL) {
        replica->count = evpaxos_acceptor_count(config);
        if (!server_start(&replica->server, id, config, ROLE_REPLICA, calls, base)) {
            free(replica);
            replica = NULL;
        }
    }
    evpaxos_config_free(config);
    return replica;
}

void evpaxos_replica_free(struct evpaxos_replica *replica) {
    if (replica == NULL)
        return;
    server_free(&replica->server);
    free(replica);
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
    return replica->count;
}

/* ---- Proposers ---- */

struct evproposer *evproposer_init(int id, const char *path, struct event_base *base) {
    struct evpaxos_config *config = evpaxos_config_read(path);
    struct evp_calls calls = {.deliver = NULL};
    struct evproposer *proposer = config == NULL ? NULL : role_new(sizeof *proposer);
    if (proposer != NULL &&
        !server_start(&proposer->server, id, config, ROLE_PROPOSER, calls, base)) {
        free(proposer);
        proposer = NULL;
    }
    evpaxos_config_free(config);
    return proposer;
}

void evproposer_free(struct evproposer *proposer) {
    if (proposer == NULL)
        return;
    server_free(&proposer->server);
    free(proposer);
}

void evproposer_set_instance_id(struct evproposer *proposer, unsigned iid) {
    (void)proposer;
    (void)iid;
}

/* ---- Acceptors ---- */

struct evacceptor *evacceptor_init(int id, const char *path, struct event_base *base) {
    struct evpaxos_config *config = evpaxos_config_read(path);
    struct evp_calls calls = {.deliver = NULL};
    struct evacceptor *acceptor = config == NULL ? NULL : role_new(sizeof *acceptor);
    if (acceptor != NULL &&
        (acceptor->host = evp_host_start(config, ROLE_ACCEPTOR, id, base, calls)) == NULL) {
        free(acceptor);
        acceptor = NULL;
    }
    evpaxos_config_free(config);
    return acceptor;
}

void evacceptor_free(struct evacceptor *acceptor) {
    if (acceptor == NULL)
        return;
    evp_host_free(acceptor->host);
    free(acceptor);
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
