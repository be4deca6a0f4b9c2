/* Positions: where a host continues, in files and from proposers. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "internal.h"

/* Of a file. */
static const char MAGIC[8] = {'e', 'v', 'p', 'o', 's', '0', '0', '2'};

struct position *evp_position_new(struct position_header header, size_t len_bytes) {
    struct position *position = NULL;
    if (len_bytes <= POSITION_LEN_MAX_BYTES && header.saved_len_bytes <= len_bytes)
        position = malloc(sizeof *position + len_bytes);
    if (position != NULL) {
        position->header = header;
        position->len_bytes = len_bytes;
    }
    return position;
}

struct position *evp_position_save(inband_ctx *ctx, uint64_t delivered,
                                   const struct evp_parts *parts) {
    int64_t len = inband_save(ctx, NULL, 0);
    struct position_header header = {delivered, (uint64_t)len};
    struct position *position =
        len < 0 ? NULL : evp_position_new(header, (size_t)len + evp_parts_saved_len(parts));
    if (position == NULL || inband_save(ctx, position->bytes, (size_t)len) != len) {
        paxos_log_error("no position: %s", len < 0 ? inband_last_error() : "no memory");
        free(position);
        return NULL;
    }
    evp_parts_save(parts, position->bytes + len);
    return position;
}

/* ---- Files ---- */

static bool write_all(int fd, const void *bytes, size_t len) {
    for (const char *at = bytes; len > 0;) {
        ssize_t written = write(fd, at, len);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return false;
        at += written;
        len -= (size_t)written;
    }
    return true;
}

static bool sync_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL ? strdup(".") : strndup(path, (size_t)(slash - path) + 1);
    int fd = folder == NULL ? -1 : open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(folder);
    if (fd < 0)
        return false;
    bool synced = fsync(fd) == 0;
    close(fd);
    return synced;
}

bool evp_position_store(const char *path, const struct position *position) {
    size_t size = strlen(path) + sizeof ".new";
    char *new = malloc(size);
    if (new == NULL)
        return false;
    snprintf(new, size, "%s.new", path);
    int fd = open(new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool stored = fd >= 0 && write_all(fd, MAGIC, sizeof MAGIC) &&
                  write_all(fd, &position->header, sizeof position->header) &&
                  write_all(fd, position->bytes, position->len_bytes) && fsync(fd) == 0;
    if (fd >= 0)
        stored = close(fd) == 0 && stored;
    stored = stored && rename(new, path) == 0 && sync_folder(path);
    if (!stored)
        paxos_log_error("the position is not stored in %s: %s", path, strerror(errno));
    free(new);
    return stored;
}

bool evp_position_load(const char *path, struct position **result) {
    char magic[sizeof MAGIC];
    struct position_header header;
    struct position *position = NULL;
    long len = 0;
    *result = NULL;
    FILE *file = fopen(path, "re");
    if (file == NULL && errno == ENOENT)
        return true;
    bool loaded = file != NULL && fseek(file, 0, SEEK_END) == 0 && (len = ftell(file)) >= 0;
    if (!loaded) {
        paxos_log_error("the position in %s cannot be read: %s", path, strerror(errno));
    } else {
        rewind(file);
        loaded =
            fread(magic, sizeof magic, 1, file) == 1 && memcmp(magic, MAGIC, sizeof MAGIC) == 0 &&
            fread(&header, sizeof header, 1, file) == 1 &&
            (position = evp_position_new(header, (size_t)len - sizeof magic - sizeof header)) !=
                NULL &&
            fread(position->bytes, 1, position->len_bytes, file) == position->len_bytes;
        if (!loaded)
            paxos_log_error("%s is not a position, or is damaged; use a copy of another replica's "
                            "state with its position",
                            path);
    }
    if (file != NULL)
        fclose(file);
    if (loaded)
        *result = position;
    else
        free(position);
    return loaded;
}

/* ---- From proposers ---- */

static bool receive_all(int fd, void *bytes, size_t len) {
    return len == 0 || recv(fd, bytes, len, MSG_WAITALL) == (ssize_t)len;
}

static struct position *ask(int fd) {
    struct header header = evp_header(FRAME_WANT_POSITION, 0);
    struct position_header begin;
    if (send(fd, &header, sizeof header, MSG_NOSIGNAL) != (ssize_t)sizeof header ||
        !receive_all(fd, &header, sizeof header))
        return NULL;
    size_t len = evp_header_len_bytes(&header);
    if (evp_header_kind(&header) != FRAME_POSITION || len < sizeof begin ||
        !receive_all(fd, &begin, sizeof begin))
        return NULL;
    struct position *position = evp_position_new(begin, len - sizeof begin);
    if (position != NULL && !receive_all(fd, position->bytes, position->len_bytes)) {
        free(position);
        return NULL;
    }
    return position;
}

struct position *evp_position_fetch(struct evpaxos_config *config) {
    /* For connecting, too. */
    struct timeval timeout = {POSITION_TIMEOUT_S, 0};
    for (int id = 0; id < MAX_N_OF_PROPOSERS; id++) {
        struct sockaddr_in address = evpaxos_proposer_address(config, id);
        if (address.sin_port == 0)
            continue;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return NULL;
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
        struct position *position = NULL;
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            position = ask(fd);
        close(fd);
        if (position != NULL) {
            paxos_log_debug("proposer %d is at value %llu", id,
                            (unsigned long long)position->header.delivered);
            return position;
        }
    }
    return NULL;
}
