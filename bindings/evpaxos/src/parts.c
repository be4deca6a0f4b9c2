/* A value that is longer than a packet is submitted in parts, and is decided with the last of them.
   Which values are complete depends on the log alone, so that it is the same at all hosts. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* Before each part. A short value that begins like one is submitted as a part, too. */
struct part_header {
    unsigned char magic[8];
    uint64_t origin; /* of the process; any bytes */
    uint32_t value;  /* of that process */
    uint16_t part;   /* from 0; the following are in network order */
    uint16_t parts;
};

static const unsigned char MAGIC[8] = {0xff, 'e', 'v', 'p', 'a', 'r', 't', 0x01};

#define PART_LEN_MAX_BYTES (WHOLE_LEN_MAX_BYTES - sizeof(struct part_header))

/* A part whose value is incomplete. */
struct stored {
    struct stored *next;
    struct part_header header;
    size_t size; /* with the header */
    unsigned char bytes[];
};

void evp_parts_init(struct evp_parts *parts) {
    *parts = (struct evp_parts){.end = &parts->first};
}

void evp_parts_clear(struct evp_parts *parts) {
    for (struct stored *next, *part = parts->first; part != NULL; part = next) {
        next = part->next;
        free(part);
    }
    evp_parts_init(parts);
}

unsigned evp_part_count(const void *value, size_t size) {
    bool is_like_part = size >= sizeof MAGIC && memcmp(value, MAGIC, sizeof MAGIC) == 0;
    if (size <= WHOLE_LEN_MAX_BYTES && !is_like_part)
        return 0;
    return (unsigned)((size + PART_LEN_MAX_BYTES - 1) / PART_LEN_MAX_BYTES);
}

size_t evp_part_write(void *out, const void *value, size_t size, uint64_t origin, uint32_t number,
                      unsigned part) {
    size_t from = part * PART_LEN_MAX_BYTES;
    size_t len = size - from < PART_LEN_MAX_BYTES ? size - from : PART_LEN_MAX_BYTES;
    struct part_header header = {
        .origin = origin,
        .value = number,
        .part = htons((uint16_t)part),
        .parts = htons((uint16_t)evp_part_count(value, size)),
    };
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    memcpy(out, &header, sizeof header);
    memcpy((char *)out + sizeof header, (const char *)value + from, len);
    return sizeof header + len;
}

static bool read_header(struct part_header *header, const void *bytes, size_t size) {
    if (size <= sizeof *header || size > WHOLE_LEN_MAX_BYTES)
        return false;
    memcpy(header, bytes, sizeof *header);
    header->part = ntohs(header->part);
    header->parts = ntohs(header->parts);
    bool is_last = header->part + 1 == header->parts;
    return memcmp(header->magic, MAGIC, sizeof MAGIC) == 0 && header->part < header->parts &&
           header->parts <= PARTS_MAX && (is_last || size == WHOLE_LEN_MAX_BYTES);
}

static bool same_value(const struct part_header *a, const struct part_header *b) {
    return a->origin == b->origin && a->value == b->value && a->parts == b->parts;
}

/* Removes the parts of one value. */
static void forget(struct evp_parts *parts, struct part_header value) {
    struct stored **at = &parts->first;
    while (*at != NULL) {
        struct stored *part = *at;
        if (!same_value(&part->header, &value)) {
            at = &part->next;
            continue;
        }
        *at = part->next;
        parts->len_bytes -= part->size;
        free(part);
    }
    parts->end = at;
}

static void store(struct evp_parts *parts, const struct part_header *header, const void *bytes,
                  size_t size) {
    struct stored *part = malloc(sizeof *part + size);
    if (part == NULL) {
        /* A host that leaves a part out would differ from the others. */
        paxos_log_error("no memory for a part of a decided value");
        abort();
    }
    *part = (struct stored){.header = *header, .size = size};
    memcpy(part->bytes, bytes, size);
    *parts->end = part;
    parts->end = &part->next;
    parts->len_bytes += size;
    /* Of a proposer that has ended in between. */
    while (parts->len_bytes > PARTS_LEN_MAX_BYTES)
        forget(parts, parts->first->header);
}

enum evp_part evp_parts_add(struct evp_parts *parts, const void *bytes, size_t size, void **value,
                            size_t *value_size) {
    struct part_header header;
    unsigned count = 1;
    size_t total = size - sizeof header;
    if (!read_header(&header, bytes, size))
        return EVP_WHOLE;
    for (struct stored *part = parts->first; part != NULL; part = part->next) {
        if (!same_value(&part->header, &header))
            continue;
        if (part->header.part == header.part)
            return EVP_INCOMPLETE;
        count++;
        total += part->size - sizeof header;
    }
    if (count < header.parts) {
        store(parts, &header, bytes, size);
        return EVP_INCOMPLETE;
    }
    unsigned char *whole = malloc(total);
    if (whole == NULL) {
        paxos_log_error("no memory for a decided value of %zu bytes", total);
        abort();
    }
    memcpy(whole + header.part * PART_LEN_MAX_BYTES, (const char *)bytes + sizeof header,
           size - sizeof header);
    for (struct stored *part = parts->first; part != NULL; part = part->next)
        if (same_value(&part->header, &header))
            memcpy(whole + part->header.part * PART_LEN_MAX_BYTES, part->bytes + sizeof header,
                   part->size - sizeof header);
    forget(parts, header);
    *value = whole;
    *value_size = total;
    return EVP_COMPLETE;
}

size_t evp_parts_saved_len(const struct evp_parts *parts) {
    size_t len = 0;
    for (const struct stored *part = parts->first; part != NULL; part = part->next)
        len += sizeof(uint32_t) + part->size;
    return len;
}

void evp_parts_save(const struct evp_parts *parts, unsigned char *out) {
    for (const struct stored *part = parts->first; part != NULL; part = part->next) {
        uint32_t size = htonl((uint32_t)part->size);
        memcpy(out, &size, sizeof size);
        memcpy(out + sizeof size, part->bytes, part->size);
        out += sizeof size + part->size;
    }
}

bool evp_parts_restore(struct evp_parts *parts, const unsigned char *saved, size_t len) {
    while (len > 0) {
        struct part_header header;
        uint32_t size;
        if (len < sizeof size)
            return false;
        memcpy(&size, saved, sizeof size);
        size = ntohl(size);
        if (size > len - sizeof size || !read_header(&header, saved + sizeof size, size))
            return false;
        store(parts, &header, saved + sizeof size, size);
        saved += sizeof size + size;
        len -= sizeof size + size;
    }
    return true;
}
