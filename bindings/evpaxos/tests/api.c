/*
 * Tests every function of the public headers on a cluster of three replicas in this process.
 *
 *     api CONFIG SCRATCH WITHOUT_LEARNERS
 *
 * CONFIG has replicas 0 to 2, proposer 3, acceptor 4 and two learners, the second one with a file
 * for its position. WITHOUT_LEARNERS is the same without learners. SCRATCH is a folder. Prints "ok"
 * at the end.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <evpaxos.h>
#include <paxos.h>

#include "../src/limits.h"
#include "check.h"

#define REPLICAS 3
#define TIMEOUT_S 60

static const char *config_path;

/* ---- The replicas, on a thread of their own ---- */

struct servers {
    struct event_base *base;
    struct evpaxos_replica *replicas[REPLICAS];
    pthread_t thread;
    atomic_bool ending;
};

static void on_tick(evutil_socket_t fd, short what, void *arg) {
    struct servers *servers = arg;
    (void)fd;
    (void)what;
    if (servers->ending)
        event_base_loopbreak(servers->base);
}

static void *serve(void *arg) {
    struct servers *servers = arg;
    struct timeval interval = {0, 10000};
    struct event *tick = event_new(servers->base, -1, EV_PERSIST, on_tick, servers);
    event_add(tick, &interval);
    event_base_dispatch(servers->base);
    event_free(tick);
    return NULL;
}

static void start_servers(struct servers *servers) {
    servers->base = event_base_new();
    for (int id = 0; id < REPLICAS; id++) {
        servers->replicas[id] = evpaxos_replica_init(id, config_path, NULL, NULL, servers->base);
        CHECK(servers->replicas[id] != NULL);
        CHECK(evpaxos_replica_count(servers->replicas[id]) == REPLICAS + 1);
    }
    CHECK(pthread_create(&servers->thread, NULL, serve, servers) == 0);
}

static void end_servers(struct servers *servers) {
    servers->ending = true;
    pthread_join(servers->thread, NULL);
    for (int id = 0; id < REPLICAS; id++)
        evpaxos_replica_free(servers->replicas[id]);
    event_base_free(servers->base);
}

/* ---- Learners ---- */

/* What a learner delivers. */
struct seen {
    struct event_base *base;
    unsigned first;
    unsigned last;
    unsigned until;
    char value[64]; /* the last one */
    size_t size;
    const char *expected; /* all of it; NULL: anything */
};

static void deliver(unsigned iid, char *value, size_t size, void *arg) {
    struct seen *seen = arg;
    if (seen->first == 0)
        seen->first = iid;
    else
        CHECK(iid == seen->last + 1);
    seen->last = iid;
    seen->size = size;
    CHECK(seen->expected == NULL || memcmp(value, seen->expected, size) == 0);
    CHECK(value[size] == '\0');
    snprintf(seen->value, sizeof seen->value, "%s", value);
    if (iid == seen->until)
        event_base_loopbreak(seen->base);
}

/* Runs the event_base until value `until` is delivered. */
static void run_until(struct seen *seen, unsigned until) {
    struct timeval limit = {TIMEOUT_S, 0};
    seen->until = until;
    if (seen->last >= until)
        return;
    event_base_loopexit(seen->base, &limit);
    event_base_dispatch(seen->base);
    CHECK(seen->last >= until);
}

static void run_for_ms(struct event_base *base, long ms) {
    struct timeval limit = {ms / 1000, ms % 1000 * 1000};
    event_base_loopexit(base, &limit);
    event_base_dispatch(base);
}

/* ---- Tests ---- */

static struct evpaxos_config *read_text(const char *folder, const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s/mistake.conf", folder);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
    return evpaxos_config_read(path);
}

static void test_config(const char *folder) {
    struct evpaxos_config *config = evpaxos_config_read(config_path);
    CHECK(config != NULL);
    CHECK(evpaxos_acceptor_count(config) == REPLICAS + 1);
    for (int id = 0; id < REPLICAS; id++) {
        struct sockaddr_in proposer = evpaxos_proposer_address(config, id);
        struct sockaddr_in acceptor = evpaxos_acceptor_address(config, id);
        CHECK(proposer.sin_family == AF_INET);
        CHECK(proposer.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
        CHECK(proposer.sin_port != 0 && proposer.sin_port == acceptor.sin_port);
        CHECK(evpaxos_proposer_listen_port(config, id) == ntohs(proposer.sin_port));
        CHECK(evpaxos_acceptor_listen_port(config, id) == ntohs(proposer.sin_port));
    }
    CHECK(evpaxos_proposer_listen_port(config, 9) == 0);
    CHECK(evpaxos_acceptor_address(config, -1).sin_port == 0);
    evpaxos_config_free(config);

    config = read_text(folder, "  # nothing but options\n\nverbosity quiet\ntcp-nodelay no\n"
                               "learner-catch-up no\nproposer-timeout 10\n"
                               "proposer-preexec-window 1024\nstorage-backend lmdb\n"
                               "acceptor-trash-files yes\nlmdb-sync yes\n"
                               "lmdb-env-path /tmp/there\nlmdb-mapsize 1gb");
    CHECK(config != NULL);
    evpaxos_config_free(config);
    CHECK(paxos_config.verbosity == PAXOS_LOG_QUIET);
    CHECK(paxos_config.tcp_nodelay == 0 && paxos_config.learner_catch_up == 0);
    CHECK(paxos_config.proposer_timeout == 10 && paxos_config.proposer_preexec_window == 1024);
    CHECK(paxos_config.storage_backend == PAXOS_LMDB_STORAGE);
    CHECK(paxos_config.trash_files == 1 && paxos_config.lmdb_sync == 1);
    CHECK(strcmp(paxos_config.lmdb_env_path, "/tmp/there") == 0);
    CHECK(paxos_config.lmdb_mapsize == 1 << 30);
    paxos_config.learner_catch_up = 1;

    static const char *const mistakes[] = {
        "replica 0 127.0.0.1",
        "replica 10 127.0.0.1 1",
        "replica 0 localhost 1",
        "replica 0 127.0.0.1 0",
        "replica 0 127.0.0.1 70000",
        "replica zero 127.0.0.1 1",
        "verbosity loud",
        "tcp-nodelay maybe",
        "lmdb-mapsize 1tb",
        "lmdb-mapsize -1",
        "proposer-timeout soon",
        "storage-backend disk",
        "unknown-option 1",
        "verbosity",
        "inband-learner",
        "inband-replica 0",
        "inband-replica 11 host.toml",
        "inband-learner a b c",
        "replica 0 127.0.0.1 1 2 3",
        "proposer-timeout -1",
        "acceptor 0 127.0.0.1 1\nreplica 0 127.0.0.1 2",
        "inband-replica 0 a.toml\ninband-replica 0 b.toml",
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        if (read_text(folder, mistakes[i]) != NULL) {
            fprintf(stderr, "accepted: %s\n", mistakes[i]);
            exit(1);
        }
    CHECK(evpaxos_config_read(folder) == NULL);
    CHECK(evpaxos_config_read("missing.conf") == NULL);
}

static void test_values(void) {
    paxos_value *value = paxos_value_new("abc", 3);
    CHECK(value->paxos_value_len == 3 && memcmp(value->paxos_value_val, "abc", 3) == 0);
    paxos_value_free(value);
    paxos_value_free(NULL);
    CHECK(paxos_quorum(3) == 2 && paxos_quorum(4) == 3 && paxos_quorum(5) == 3);
    CHECK(MAX_N_OF_PROPOSERS == 10);
    paxos_log_error("not %s", "printed");
    paxos_log_info("not %s", "printed");
    paxos_log_debug("not %s", "printed");
}

static void test_learner(struct servers *servers) {
    struct seen seen = {.base = event_base_new()};
    struct evlearner *learner = evlearner_init(config_path, deliver, &seen, seen.base);
    CHECK(learner != NULL);
    static char long_value[VALUE_LEN_MAX_BYTES + 1];
    for (size_t i = 0; i < sizeof long_value; i++)
        long_value[i] = (char)(i * 2654435761u >> 13);
    evpaxos_replica_submit(servers->replicas[0], "first", 6);
    run_until(&seen, 1);
    CHECK(seen.size == 6 && strcmp(seen.value, "first") == 0);
    evpaxos_replica_submit(servers->replicas[1], long_value, VALUE_LEN_MAX_BYTES);
    seen.expected = long_value;
    run_until(&seen, 2);
    CHECK(seen.size == VALUE_LEN_MAX_BYTES);
    seen.expected = NULL;
    evpaxos_replica_submit(servers->replicas[2], "", 0);
    run_until(&seen, 3);
    CHECK(seen.size == 0);
    evpaxos_replica_submit(servers->replicas[2], long_value, sizeof long_value);
    evpaxos_replica_submit(servers->replicas[2], "negative", -1);
    evpaxos_replica_submit(servers->replicas[2], "fourth", 7);
    run_until(&seen, 4);
    CHECK(strcmp(seen.value, "fourth") == 0);
    /* As libpaxos's own client does. */
    event_base_free(seen.base);
    evlearner_free(learner);

    /* Everything again, but for what the program knows. */
    seen = (struct seen){.base = event_base_new()};
    learner = evlearner_init(config_path, deliver, &seen, seen.base);
    CHECK(learner != NULL);
    evlearner_set_instance_id(learner, 2);
    run_until(&seen, 4);
    CHECK(seen.first == 3);
    evlearner_free(learner);
    event_base_free(seen.base);
}

static void test_without_catching_up(struct servers *servers) {
    struct seen seen = {.base = event_base_new()};
    paxos_config.learner_catch_up = 0;
    struct evlearner *learner = evlearner_init(config_path, deliver, &seen, seen.base);
    CHECK(learner != NULL);
    evpaxos_replica_submit(servers->replicas[0], "21st", 5);
    run_until(&seen, 21);
    CHECK(seen.first == 21);
    evlearner_free(learner);
    event_base_free(seen.base);
    paxos_config.learner_catch_up = 1;
}

static void on_event(struct bufferevent *bev, short what, void *arg) {
    (void)bev;
    *(short *)arg |= what;
}

static struct bufferevent *connect_to(struct event_base *base, int proposer, short *events) {
    struct evpaxos_config *config = evpaxos_config_read(config_path);
    struct sockaddr_in address = evpaxos_proposer_address(config, proposer);
    evpaxos_config_free(config);
    struct bufferevent *bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(bev, NULL, NULL, on_event, events);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
    CHECK(bufferevent_socket_connect(bev, (struct sockaddr *)&address, sizeof address) == 0);
    return bev;
}

/* A proposer that began after value 1024 has no values before, and says so to learners without hosts.
 */
static void test_gap(const char *folder, const char *position_path, struct event_base *base) {
    char host[4096], path[4096];
    struct seen seen = {.base = base};
    struct evpaxos_config *config = evpaxos_config_read(config_path);
    int port = evpaxos_proposer_listen_port(config, 3);
    evpaxos_config_free(config);
    snprintf(host, sizeof host, "%s/host-5.toml", folder);
    snprintf(path, sizeof path, "%s/gap.conf", folder);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fprintf(file, "proposer 3 127.0.0.1 %d\n", port) > 0 &&
          fclose(file) == 0);
    setenv("INBAND_CONFIG", host, 1);
    setenv("INBAND_POSITION", position_path, 1);
    struct evproposer *proposer = evproposer_init(3, path, base);
    unsetenv("INBAND_CONFIG");
    unsetenv("INBAND_POSITION");
    struct evlearner *learner = evlearner_init(path, deliver, &seen, base);
    CHECK(proposer != NULL && learner != NULL);
    run_for_ms(base, 1000);
    CHECK(seen.last == 0);
    evlearner_set_instance_id(learner, 1024);
    run_until(&seen, 2505);
    CHECK(seen.first == 1025);
    evlearner_free(learner);

    seen = (struct seen){.base = base};
    learner = evlearner_init(path, deliver, &seen, base);
    CHECK(learner != NULL);
    evlearner_set_instance_id(learner, 1023);
    run_for_ms(base, 1000);
    CHECK(seen.last == 0);
    evlearner_free(learner);
    evproposer_free(proposer);
}

/* Values 22 to 2505: through a proposer, to a learner that stores its position. */
static void test_positions(const char *folder, const char *position_path) {
    struct seen first = {.base = event_base_new()};
    struct seen seen = {.base = first.base};
    short events = 0;
    struct evlearner *other = evlearner_init(config_path, deliver, &first, first.base);
    struct evlearner *learner = evlearner_init(config_path, deliver, &seen, seen.base);
    struct evproposer *proposer = evproposer_init(3, config_path, seen.base);
    struct evacceptor *acceptor = evacceptor_init(4, config_path, seen.base);
    CHECK(other != NULL && learner != NULL && proposer != NULL && acceptor != NULL);
    CHECK(evlearner_init(config_path, deliver, NULL, seen.base) == NULL); /* no third one */
    CHECK(evproposer_init(3, config_path, seen.base) == NULL);
    CHECK(evpaxos_replica_init(8, config_path, NULL, NULL, seen.base) == NULL);
    CHECK(evacceptor_init(8, config_path, seen.base) == NULL);
    evproposer_set_instance_id(proposer, 1);

    struct bufferevent *bev = connect_to(seen.base, 3, &events);
    char value[64];
    for (int number = 22; number <= 2505; number++)
        paxos_submit(bev, value, snprintf(value, sizeof value, "%d", number));
    static char too_long[VALUE_LEN_MAX_BYTES + 1];
    paxos_submit(bev, too_long, sizeof too_long);
    run_until(&seen, 2505);
    run_until(&first, 2505);
    CHECK(seen.first == 1);
    bufferevent_free(bev);

    evlearner_send_trim(other, 2505); /* which stores no position */
    evlearner_send_trim(learner, 1000);
    CHECK(access(position_path, F_OK) != 0 && errno == ENOENT);
    evlearner_send_trim(learner, 2047);
    CHECK(access(position_path, F_OK) == 0);
    evlearner_free(learner);
    seen = (struct seen){.base = first.base};
    learner = evlearner_init(config_path, deliver, &seen, seen.base);
    CHECK(learner != NULL);
    run_until(&seen, 2505);
    CHECK(seen.first == 1025); /* SAMPLE_EVERY_VALUES + 1 */
    evlearner_free(learner);

    seen = (struct seen){.base = first.base};
    learner = evlearner_init(config_path, deliver, &seen, seen.base);
    CHECK(learner != NULL);
    evlearner_set_instance_id(learner, 2500);
    run_until(&seen, 2505);
    CHECK(seen.first == 2501);
    evlearner_free(learner);

    evproposer_free(proposer);
    test_gap(folder, position_path, first.base);
    FILE *file = fopen(position_path, "r+");
    CHECK(file != NULL && fseek(file, 30, SEEK_SET) == 0 && fputs("damage", file) >= 0);
    CHECK(fclose(file) == 0);
    CHECK(evlearner_init(config_path, deliver, &seen, seen.base) == NULL);
    CHECK(truncate(position_path, 10) == 0);
    CHECK(evlearner_init(config_path, deliver, &seen, seen.base) == NULL);
    evlearner_free(other);
    evacceptor_free(acceptor);
    event_base_free(first.base);
}

/* Values 2506 to 2806, at learners without hosts. */
static void test_remote_learners(struct servers *servers, const char *without_learners) {
    struct seen seen = {.base = event_base_new()};
    struct seen known = {.base = seen.base};
    struct seen late = {.base = seen.base};
    char value[1000] = "";
    struct evlearner *learner = evlearner_init(without_learners, deliver, &seen, seen.base);
    struct evlearner *knows = evlearner_init(without_learners, deliver, &known, seen.base);
    CHECK(learner != NULL && knows != NULL);
    evlearner_set_instance_id(knows, 2000);
    run_until(&seen, 2505);
    run_until(&known, 2505);
    CHECK(seen.first == 1 && known.first == 2001);
    CHECK(strcmp(seen.value, "2505") == 0 && seen.size == 4);
    evlearner_set_instance_id(learner, 2506);

    paxos_config.learner_catch_up = 0;
    struct evlearner *starts_late = evlearner_init(without_learners, deliver, &late, seen.base);
    CHECK(starts_late != NULL);
    paxos_config.learner_catch_up = 1;
    seen.first = 0; /* 2506 is left out */
    for (int number = 2506; number <= 2805; number++) {
        snprintf(value, sizeof value, "%d", number);
        evpaxos_replica_submit(servers->replicas[number % REPLICAS], value, sizeof value);
    }
    run_until(&late, 2805);
    run_until(&seen, 2805);
    run_until(&known, 2805);
    CHECK(late.first == 2506 && seen.first == 2507);
    evpaxos_replica_submit(servers->replicas[0], "", 0);
    run_until(&late, 2806);
    CHECK(late.size == 0 && late.value[0] == '\0');
    evlearner_send_trim(learner, 2806);
    evlearner_free(knows);
    event_base_free(seen.base);
    evlearner_free(learner);
    evlearner_free(starts_late);
    CHECK(evlearner_init("missing.conf", deliver, NULL, NULL) == NULL);
}

/* Values of all lengths around those of parts, from three replicas at the same time. */
static void test_parts(struct servers *servers, const char *without_learners) {
    static const int sizes[] = {1131, 1132, 1133,  1155,  1156, 1157, 2263, 2264,
                                2265, 2288, 10000, 10000, 1376, 1377, 5,    12};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    static char value[10000];
    struct seen with_host = {.base = event_base_new(), .expected = value};
    struct seen without = {.base = with_host.base, .expected = value};
    /* Begins like a part, as far as the shortest one goes. */
    memcpy(value,
           "\xff"
           "evpart\x01"
           "abcdefgh\0\0\0\1\0\0\0\1",
           24);
    for (size_t i = 24; i < sizeof value; i++)
        value[i] = (char)(i % 251);
    struct evlearner *host = evlearner_init(config_path, deliver, &with_host, with_host.base);
    struct evlearner *remote = evlearner_init(without_learners, deliver, &without, without.base);
    CHECK(host != NULL && remote != NULL);
    evlearner_set_instance_id(host, 4);
    evlearner_set_instance_id(remote, 4);
    for (int i = 0; i < COUNT; i++)
        evpaxos_replica_submit(servers->replicas[i % REPLICAS], value, sizes[i]);
    run_until(&with_host, 4 + COUNT);
    run_until(&without, 4 + COUNT);
    CHECK(with_host.first == 5 && without.first == 5);
    evlearner_free(host);
    evlearner_free(remote);
    event_base_free(with_host.base);
}

static void test_foreign_client(void) {
    struct event_base *base = event_base_new();
    short events = 0;
    struct bufferevent *bev = connect_to(base, 1, &events);
    bufferevent_write(bev, "GET / HTTP/1.1\r\n", 16);
    for (int i = 0; i < TIMEOUT_S * 10 && !(events & (BEV_EVENT_EOF | BEV_EVENT_ERROR)); i++)
        run_for_ms(base, 100);
    CHECK(events & (BEV_EVENT_EOF | BEV_EVENT_ERROR));
    bufferevent_free(bev);
    event_base_free(base);
}

int main(int argc, char **argv) {
    static struct servers servers;
    char position_path[4096];
    CHECK(argc == 4);
    config_path = argv[1];
    snprintf(position_path, sizeof position_path, "%s/position", argv[2]);
    test_config(argv[2]);
    test_values();
    start_servers(&servers);
    test_learner(&servers);
    test_parts(&servers, argv[3]);
    test_without_catching_up(&servers);
    test_positions(argv[2], position_path);
    test_remote_learners(&servers, argv[3]);
    test_foreign_client();
    evpaxos_replica_set_instance_id(servers.replicas[0], 1);
    evpaxos_replica_send_trim(servers.replicas[0], 1);
    end_servers(&servers);
    evpaxos_replica_free(NULL);
    evlearner_free(NULL);
    evproposer_free(NULL);
    evacceptor_free(NULL);
    printf("ok\n");
    return 0;
}
