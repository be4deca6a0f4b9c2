/* The last decided values, for learners without a host. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

struct decided {
    size_t size;
    char bytes[];
};

struct evp_history {
    struct decided *values[HISTORY_VALUES_MAX]; /* value `iid` is at iid modulo the length */
    size_t len_bytes;
    unsigned first;
    unsigned last; /* first - 1: none */
};

static struct decided **at(struct evp_history *history, unsigned iid) {
    return &history->values[iid % HISTORY_VALUES_MAX];
}

struct evp_history *evp_history_new(unsigned last) {
    struct evp_history *history = calloc(1, sizeof *history);
    if (history != NULL) {
        history->first = last + 1;
        history->last = last;
    }
    return history;
}

static void forget_first(struct evp_history *history) {
    struct decided **value = at(history, history->first++);
    history->len_bytes -= sizeof **value + (*value)->size;
    free(*value);
    *value = NULL;
}

bool evp_history_add(struct evp_history *history, const void *bytes, size_t size) {
    struct decided *value = malloc(sizeof *value + size);
    if (value == NULL)
        return false;
    value->size = size;
    if (size > 0)
        memcpy(value->bytes, bytes, size);
    while (history->last - history->first + 1 == HISTORY_VALUES_MAX ||
           (history->last >= history->first &&
            history->len_bytes + sizeof *value + size > HISTORY_LEN_MAX_BYTES))
        forget_first(history);
    history->len_bytes += sizeof *value + size;
    *at(history, ++history->last) = value;
    return true;
}

unsigned evp_history_first(const struct evp_history *history) {
    return history->first;
}

unsigned evp_history_last(const struct evp_history *history) {
    return history->last;
}

const void *evp_history_get(struct evp_history *history, unsigned iid, size_t *size) {
    const struct decided *value = *at(history, iid);
    *size = value->size;
    return value->bytes;
}

void evp_history_free(struct evp_history *history) {
    if (history == NULL)
        return;
    while (history->first <= history->last)
        forget_first(history);
    free(history);
}
