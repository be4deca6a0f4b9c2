#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* The variables that name the host's configuration for whatever this process starts, and the file for
   its position. */
#define CONFIG_VARIABLE "INBAND_CONFIG"
#define POSITION_VARIABLE "INBAND_POSITION"

struct address {
    bool set;
    struct in_addr ip;
    int port;
};

struct evpaxos_config {
    char *path;
    struct address acceptors[MAX_N_OF_PROPOSERS];
    struct address proposers[MAX_N_OF_PROPOSERS];
    struct host_config hosts[ROLES_WITH_ID][MAX_N_OF_PROPOSERS];
    struct host_config learners[LEARNERS_MAX];
    int learner_count;
    struct host_config from_environment;
};

/* A line that is being read. */
struct line {
    struct evpaxos_config *config;
    int number;
    char *words[5];
    int count;
};

static const char *const ROLE_NAMES[] = {"replica", "acceptor", "proposer", "learner"};

const char *evp_role_name(enum role role) {
    return ROLE_NAMES[role];
}

static bool mistake(const struct line *line, const char *what, const char *expected) {
    paxos_log_error("%s line %d: %s; %s", line->config->path, line->number, what, expected);
    return false;
}

static bool wrong_value(const struct line *line, const char *expected) {
    char what[256];
    snprintf(what, sizeof what, "%s is \"%s\"", line->words[0], line->words[1]);
    return mistake(line, what, expected);
}

static bool number(const char *text, long long min, long long max, long long *result) {
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || parsed < min || parsed > max)
        return false;
    *result = parsed;
    return true;
}

/* ---- Options ---- */

static bool read_boolean(const struct line *line, int *option) {
    const char *text = line->words[1];
    if (strcmp(text, "yes") == 0)
        *option = 1;
    else if (strcmp(text, "no") == 0)
        *option = 0;
    else
        return wrong_value(line, "it must be yes or no");
    return true;
}

static bool read_integer(const struct line *line, int *option) {
    long long parsed;
    if (!number(line->words[1], 0, INT32_MAX, &parsed))
        return wrong_value(line, "it must be a number, at least 0");
    *option = (int)parsed;
    return true;
}

static bool read_verbosity(const struct line *line) {
    static const char *const levels[] = {"quiet", "error", "info", "debug"};
    for (int level = PAXOS_LOG_QUIET; level <= PAXOS_LOG_DEBUG; level++)
        if (strcmp(line->words[1], levels[level]) == 0) {
            paxos_config.verbosity = (paxos_log_level)level;
            return true;
        }
    return wrong_value(line, "it must be quiet, error, info or debug");
}

static bool read_backend(const struct line *line) {
    if (strcmp(line->words[1], "memory") == 0)
        paxos_config.storage_backend = PAXOS_MEM_STORAGE;
    else if (strcmp(line->words[1], "lmdb") == 0)
        paxos_config.storage_backend = PAXOS_LMDB_STORAGE;
    else
        return wrong_value(line, "it must be memory or lmdb");
    return true;
}

static bool read_bytes(const struct line *line, size_t *option) {
    static const char *const units[] = {"", "kb", "mb", "gb"};
    char *end;
    unsigned long long parsed = strtoull(line->words[1], &end, 10);
    for (int unit = 0; unit < 4 && end != line->words[1] && isdigit((unsigned char)*line->words[1]);
         unit++)
        if (strcmp(end, units[unit]) == 0 && parsed <= SIZE_MAX >> (10 * unit)) {
            *option = (size_t)parsed << (10 * unit);
            return true;
        }
    return wrong_value(line, "it must be a number of bytes, or one followed by kb, mb or gb");
}

/* Never freed: the program may have copied the pointer. */
static bool read_string(const struct line *line, char **option) {
    char *copy = strdup(line->words[1]);
    if (copy == NULL)
        return mistake(line, "no memory", "free some");
    *option = copy;
    return true;
}

/* Whether the line is an option; `ok` says whether its value is right. */
static bool read_option(const struct line *line, bool *ok) {
    const char *name = line->words[0];
    bool known = true;
    if (strcmp(name, "verbosity") == 0)
        *ok = read_verbosity(line);
    else if (strcmp(name, "tcp-nodelay") == 0)
        *ok = read_boolean(line, &paxos_config.tcp_nodelay);
    else if (strcmp(name, "learner-catch-up") == 0)
        *ok = read_boolean(line, &paxos_config.learner_catch_up);
    else if (strcmp(name, "proposer-timeout") == 0)
        *ok = read_integer(line, &paxos_config.proposer_timeout);
    else if (strcmp(name, "proposer-preexec-window") == 0)
        *ok = read_integer(line, &paxos_config.proposer_preexec_window);
    else if (strcmp(name, "storage-backend") == 0)
        *ok = read_backend(line);
    else if (strcmp(name, "acceptor-trash-files") == 0)
        *ok = read_boolean(line, &paxos_config.trash_files);
    else if (strcmp(name, "lmdb-sync") == 0)
        *ok = read_boolean(line, &paxos_config.lmdb_sync);
    else if (strcmp(name, "lmdb-env-path") == 0)
        *ok = read_string(line, &paxos_config.lmdb_env_path);
    else if (strcmp(name, "lmdb-mapsize") == 0)
        *ok = read_bytes(line, &paxos_config.lmdb_mapsize);
    else
        known = false;
    return known;
}

/* ---- Addresses and hosts ---- */

static bool read_id(const struct line *line, int *id) {
    long long parsed;
    if (!number(line->words[1], 0, MAX_N_OF_PROPOSERS - 1, &parsed)) {
        char expected[64];
        snprintf(expected, sizeof expected, "an id must be a number from 0 to %d",
                 MAX_N_OF_PROPOSERS - 1);
        return wrong_value(line, expected);
    }
    *id = (int)parsed;
    return true;
}

/* `replica ID ADDRESS PORT`, and the same for acceptors and proposers. */
static bool read_address(const struct line *line, struct address *first, struct address *second) {
    int id;
    long long port;
    struct address address = {.set = true};
    if (line->count != 4)
        return mistake(line, line->words[0], "it must be followed by an id, an address and a port");
    if (!read_id(line, &id))
        return false;
    if (inet_pton(AF_INET, line->words[2], &address.ip) != 1)
        return mistake(line, line->words[2], "it must be an IPv4 address");
    if (!number(line->words[3], 1, UINT16_MAX, &port))
        return mistake(line, line->words[3], "it must be a port, from 1 to 65535");
    address.port = (int)port;
    if (first[id].set || (second != NULL && second[id].set))
        return mistake(line, "this id has an address already", "ids must be unique");
    first[id] = address;
    if (second != NULL)
        second[id] = address;
    return true;
}

/* A copy of a path; relative ones are relative to the folder of the configuration. */
static char *host_path(const struct line *line, const char *path) {
    const char *config = line->config->path;
    const char *slash = strrchr(config, '/');
    size_t folder = *path == '/' || slash == NULL ? 0 : (size_t)(slash - config) + 1;
    size_t size = folder + strlen(path) + 1;
    char *result = malloc(size);
    if (result == NULL)
        mistake(line, "no memory", "free some");
    else
        snprintf(result, size, "%.*s%s", (int)folder, config, path);
    return result;
}

/* The words from `at`: FILE and, if there is another one, POSITION. */
static bool read_host_config(const struct line *line, int at, struct host_config *host) {
    host->path = host_path(line, line->words[at]);
    if (host->path != NULL && at + 1 < line->count)
        host->position = host_path(line, line->words[at + 1]);
    return host->path != NULL && (at + 1 == line->count || host->position != NULL);
}

/* `inband-replica ID FILE [POSITION]`, and the same for acceptors and proposers. */
static bool read_host(const struct line *line, enum role role) {
    int id;
    if (line->count < 3 || line->count > 4)
        return mistake(line, line->words[0],
                       "it must be followed by an id, a host's configuration and, optionally, a "
                       "file for its position");
    if (!read_id(line, &id))
        return false;
    struct host_config *host = &line->config->hosts[role][id];
    if (host->path != NULL)
        return mistake(line, "this id has a host already", "ids must be unique");
    return read_host_config(line, 2, host);
}

/* `inband-learner FILE [POSITION]` */
static bool read_learner(const struct line *line) {
    struct evpaxos_config *config = line->config;
    if (line->count < 2 || line->count > 3)
        return mistake(line, line->words[0],
                       "it must be followed by a host's configuration and, optionally, a file for "
                       "its position");
    if (config->learner_count == LEARNERS_MAX)
        return mistake(line, "too many learners", "raise LEARNERS_MAX in src/limits.h");
    return read_host_config(line, 1, &config->learners[config->learner_count++]);
}

static bool read_line(const struct line *line) {
    struct evpaxos_config *config = line->config;
    const char *word = line->words[0];
    bool ok = true;
    if (strcmp(word, "replica") == 0)
        return read_address(line, config->acceptors, config->proposers);
    if (strcmp(word, "acceptor") == 0)
        return read_address(line, config->acceptors, NULL);
    if (strcmp(word, "proposer") == 0)
        return read_address(line, config->proposers, NULL);
    if (strcmp(word, "inband-replica") == 0)
        return read_host(line, ROLE_REPLICA);
    if (strcmp(word, "inband-acceptor") == 0)
        return read_host(line, ROLE_ACCEPTOR);
    if (strcmp(word, "inband-proposer") == 0)
        return read_host(line, ROLE_PROPOSER);
    if (strcmp(word, "inband-learner") == 0)
        return read_learner(line);
    if (line->count != 2)
        return mistake(line, word, "an option must be followed by its value");
    if (!read_option(line, &ok))
        return mistake(line, word, "there is no such option; see README.md");
    return ok;
}

static bool read_file(struct evpaxos_config *config, FILE *file) {
    char text[LINE_LEN_MAX_BYTES];
    struct line line = {.config = config};
    while (fgets(text, sizeof text, file) != NULL) {
        line.number++;
        line.count = 0;
        if (strchr(text, '\n') == NULL && !feof(file))
            return mistake(&line, "the line is too long", "shorten it");
        for (char *rest = text, *word; (word = strtok_r(rest, " \t\r\n", &rest)) != NULL;) {
            if (line.count == 0 && *word == '#')
                break;
            if (line.count == 5)
                return mistake(&line, "too many words", "remove some");
            line.words[line.count++] = word;
        }
        if (line.count > 0 && !read_line(&line))
            return false;
    }
    if (ferror(file)) {
        paxos_log_error("%s cannot be read: %s", config->path, strerror(errno));
        return false;
    }
    return true;
}

/* A copy of a variable's value; NULL if it is not set. */
static bool from_environment(const char *variable, char **copy) {
    const char *value = getenv(variable);
    *copy = value == NULL ? NULL : strdup(value);
    return value == NULL || *copy != NULL;
}

struct evpaxos_config *evpaxos_config_read(const char *path) {
    struct evpaxos_config *config = calloc(1, sizeof *config);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        paxos_log_error("%s cannot be opened: %s; check the path", path, strerror(errno));
        goto failed;
    }
    if (config == NULL || (config->path = strdup(path)) == NULL ||
        !from_environment(CONFIG_VARIABLE, &config->from_environment.path) ||
        !from_environment(POSITION_VARIABLE, &config->from_environment.position)) {
        paxos_log_error("no memory for the configuration %s", path);
        goto failed;
    }
    if (!read_file(config, file))
        goto failed;
    fclose(file);
    return config;
failed:
    if (file != NULL)
        fclose(file);
    evpaxos_config_free(config);
    return NULL;
}

static void host_config_free(struct host_config *host) {
    free(host->path);
    free(host->position);
}

void evpaxos_config_free(struct evpaxos_config *config) {
    if (config == NULL)
        return;
    for (int role = 0; role < ROLES_WITH_ID; role++)
        for (int id = 0; id < MAX_N_OF_PROPOSERS; id++)
            host_config_free(&config->hosts[role][id]);
    for (int i = 0; i < config->learner_count; i++)
        host_config_free(&config->learners[i]);
    host_config_free(&config->from_environment);
    free(config->path);
    free(config);
}

int evp_host_count(const struct evpaxos_config *config, enum role role, int id) {
    if (config->from_environment.path != NULL)
        return 1;
    if (role == ROLE_LEARNER)
        return config->learner_count;
    return id >= 0 && id < MAX_N_OF_PROPOSERS && config->hosts[role][id].path != NULL;
}

struct host_config evp_host_config(const struct evpaxos_config *config, enum role role, int id,
                                   int which) {
    if (config->from_environment.path != NULL)
        return config->from_environment;
    return role == ROLE_LEARNER ? config->learners[which] : config->hosts[role][id];
}

/* ---- Addresses, for programs ---- */

static struct address find(const struct address *addresses, int id) {
    if (id < 0 || id >= MAX_N_OF_PROPOSERS)
        return (struct address){.set = false};
    return addresses[id];
}

static struct sockaddr_in socket_address(struct address address) {
    struct sockaddr_in result;
    memset(&result, 0, sizeof result);
    result.sin_family = AF_INET;
    result.sin_addr = address.ip;
    result.sin_port = htons((uint16_t)address.port);
    return result;
}

struct sockaddr_in evpaxos_proposer_address(struct evpaxos_config *config, int id) {
    return socket_address(find(config->proposers, id));
}

int evpaxos_proposer_listen_port(struct evpaxos_config *config, int id) {
    return find(config->proposers, id).port;
}

int evpaxos_acceptor_count(struct evpaxos_config *config) {
    int count = 0;
    for (int id = 0; id < MAX_N_OF_PROPOSERS; id++)
        count += config->acceptors[id].set;
    return count;
}

struct sockaddr_in evpaxos_acceptor_address(struct evpaxos_config *config, int id) {
    return socket_address(find(config->acceptors, id));
}

int evpaxos_acceptor_listen_port(struct evpaxos_config *config, int id) {
    return find(config->acceptors, id).port;
}
