/*
 * evpaxos/paxos.h - learners, replicas, proposers, acceptors and clients on a libevent event_base.
 *
 * Follows the API of libpaxos 3's header of this name. Each learner, replica, proposer and acceptor
 * is one host of an Inband cluster, which runs on a thread of its own; README.md says how it finds
 * its configuration. Callbacks run on the thread that runs the event_base. The init functions
 * return NULL after an error, which is logged.
 */
#ifndef EVPAXOS_PAXOS_H
#define EVPAXOS_PAXOS_H

#include <sys/types.h>
#include <event2/bufferevent.h>
#include <event2/event.h>

#ifdef __cplusplus
extern "C" {
#endif

struct evlearner;
struct evproposer;
struct evacceptor;
struct evpaxos_replica;

/**
 * Called with each decided value: the same values in the same order at every learner and replica.
 *
 * @param iid    Number of the value: 1, 2, 3, ...
 * @param value  Valid until the callback returns.
 * @param arg    The argument of the init function.
 */
typedef void (*deliver_function)(unsigned int iid, char *value, size_t size, void *arg);

/**
 * Start a replica: runs the roles that its host's configuration gives it, accepts the values of
 * clients at the address that the configuration gives to replica `id`, and delivers decided values.
 *
 * @param deliver  NULL: nothing is delivered.
 */
struct evpaxos_replica *evpaxos_replica_init(int id, const char *config, deliver_function deliver,
                                             void *arg, struct event_base *base);

void evpaxos_replica_free(struct evpaxos_replica *replica);

/** Deliver only values with numbers above `iid`: the state up to there is known. */
void evpaxos_replica_set_instance_id(struct evpaxos_replica *replica, unsigned iid);

/** The state up to `iid` is stored safely, and need not be delivered again. */
void evpaxos_replica_send_trim(struct evpaxos_replica *replica, unsigned iid);

/** Submit a value. May be called from any thread. */
void evpaxos_replica_submit(struct evpaxos_replica *replica, char *value, int size);

/** Number of replicas in the configuration. */
int evpaxos_replica_count(struct evpaxos_replica *replica);

/** Start a learner: delivers decided values. */
struct evlearner *evlearner_init(const char *config, deliver_function deliver, void *arg,
                                 struct event_base *base);

/** May also be called after event_base_free(). */
void evlearner_free(struct evlearner *learner);

/** Like evpaxos_replica_set_instance_id(). */
void evlearner_set_instance_id(struct evlearner *learner, unsigned iid);

/** Like evpaxos_replica_send_trim(). */
void evlearner_send_trim(struct evlearner *learner, unsigned iid);

/** Start an acceptor: runs the roles that its host's configuration gives it. */
struct evacceptor *evacceptor_init(int id, const char *config, struct event_base *base);

void evacceptor_free(struct evacceptor *acceptor);

/** Start a proposer: like a replica that delivers nothing. */
struct evproposer *evproposer_init(int id, const char *config, struct event_base *base);

void evproposer_free(struct evproposer *proposer);

/** Has no effect: proposers learn from the log where it ends. */
void evproposer_set_instance_id(struct evproposer *proposer, unsigned iid);

/**
 * Send a value to the proposer (or replica) to which `bev` is connected or is being connected. As
 * in libpaxos there is no answer: the value was accepted once a learner delivers it.
 */
void paxos_submit(struct bufferevent *bev, char *value, int size);

#ifdef __cplusplus
}
#endif

#endif /* EVPAXOS_PAXOS_H */
