/*
 * evpaxos/config.h - reads a configuration file in libpaxos's format.
 *
 * Follows the API of libpaxos 3's header of this name. README.md describes the file.
 */
#ifndef EVPAXOS_CONFIG_H
#define EVPAXOS_CONFIG_H

#include <netinet/in.h>

#ifdef __cplusplus
extern "C" {
#endif

struct evpaxos_config;

/**
 * Read a configuration, and set the options of the global paxos_config that it names.
 *
 * @return NULL after a mistake, which is logged with its line.
 */
struct evpaxos_config *evpaxos_config_read(const char *path);

void evpaxos_config_free(struct evpaxos_config *config);

/** Address of the proposer (or replica) with this id; port 0 if there is none. */
struct sockaddr_in evpaxos_proposer_address(struct evpaxos_config *config, int id);

/** Its port; 0 if there is none with this id. */
int evpaxos_proposer_listen_port(struct evpaxos_config *config, int id);

/** Number of acceptors (or replicas). */
int evpaxos_acceptor_count(struct evpaxos_config *config);

/**
 * Address of the acceptor (or replica) with this id as the file states it; port 0 if there is none.
 * Inband's acceptors have their addresses in their hosts' configurations.
 */
struct sockaddr_in evpaxos_acceptor_address(struct evpaxos_config *config, int id);

/** Its port; 0 if there is none with this id. */
int evpaxos_acceptor_listen_port(struct evpaxos_config *config, int id);

#ifdef __cplusplus
}
#endif

#endif /* EVPAXOS_CONFIG_H */
