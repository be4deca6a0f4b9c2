/* Tests src/parts.c: what is complete depends on the log alone, and what never is has a limit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/internal.h"
#include "check.h"

#define VALUE_LEN_BYTES 3000
#define PARTS 3

static char value[VALUE_LEN_BYTES];

/* Adds a part of a value of this origin and number; whether the value is complete. */
static enum evp_part add(struct evp_parts *parts, uint64_t origin, uint32_t number, unsigned part) {
    char piece[WHOLE_LEN_MAX_BYTES];
    void *whole = NULL;
    size_t size = 0;
    size_t len = evp_part_write(piece, value, sizeof value, origin, number, part);
    enum evp_part result = evp_parts_add(parts, piece, len, &whole, &size);
    CHECK((result == EVP_COMPLETE) == (whole != NULL));
    CHECK(whole == NULL || (size == sizeof value && memcmp(whole, value, size) == 0));
    free(whole);
    return result;
}

static void test_any_order(void) {
    struct evp_parts parts;
    evp_parts_init(&parts);
    CHECK(evp_part_count(value, sizeof value) == PARTS);
    CHECK(evp_part_count(value, WHOLE_LEN_MAX_BYTES) == 0 && evp_part_count(value, 0) == 0);
    CHECK(add(&parts, 1, 1, 2) == EVP_INCOMPLETE);
    CHECK(add(&parts, 2, 1, 0) == EVP_INCOMPLETE);
    CHECK(add(&parts, 1, 2, 1) == EVP_INCOMPLETE);
    CHECK(add(&parts, 1, 1, 0) == EVP_INCOMPLETE);
    CHECK(add(&parts, 1, 1, 0) == EVP_INCOMPLETE); /* again */
    CHECK(add(&parts, 1, 1, 1) == EVP_COMPLETE);
    CHECK(add(&parts, 1, 2, 0) == EVP_INCOMPLETE);
    CHECK(add(&parts, 2, 1, 1) == EVP_INCOMPLETE);
    CHECK(add(&parts, 1, 2, 2) == EVP_COMPLETE);
    CHECK(add(&parts, 2, 1, 2) == EVP_COMPLETE);
    CHECK(parts.first == NULL && parts.len_bytes == 0);
}

static void test_what_is_no_part(void) {
    struct evp_parts parts;
    char piece[WHOLE_LEN_MAX_BYTES];
    void *whole;
    size_t size;
    evp_parts_init(&parts);
    size_t len = evp_part_write(piece, value, sizeof value, 1, 1, 0);
    CHECK(evp_parts_add(&parts, value, sizeof value, &whole, &size) == EVP_WHOLE);
    CHECK(evp_parts_add(&parts, piece, len - 1, &whole, &size) == EVP_WHOLE); /* cut short */
    CHECK(evp_parts_add(&parts, piece, 24, &whole, &size) == EVP_WHOLE);      /* empty */
    CHECK(evp_parts_add(&parts, piece, 0, &whole, &size) == EVP_WHOLE);
    piece[21] = PARTS; /* the number of the part */
    CHECK(evp_parts_add(&parts, piece, len, &whole, &size) == EVP_WHOLE);
    piece[21] = 0;
    piece[0]++;
    CHECK(evp_parts_add(&parts, piece, len, &whole, &size) == EVP_WHOLE);
    CHECK(parts.first == NULL);
}

static void test_saved(void) {
    struct evp_parts parts, restored;
    evp_parts_init(&parts);
    evp_parts_init(&restored);
    CHECK(add(&parts, 1, 1, 0) == EVP_INCOMPLETE && add(&parts, 2, 1, 2) == EVP_INCOMPLETE &&
          add(&parts, 1, 1, 2) == EVP_INCOMPLETE);
    size_t len = evp_parts_saved_len(&parts);
    unsigned char *saved = malloc(len);
    evp_parts_save(&parts, saved);
    CHECK(evp_parts_restore(&restored, saved, len));
    CHECK(restored.len_bytes == parts.len_bytes);
    CHECK(add(&restored, 1, 1, 1) == EVP_COMPLETE && add(&restored, 2, 1, 0) == EVP_INCOMPLETE);
    evp_parts_clear(&restored);
    CHECK(!evp_parts_restore(&restored, saved, len - 1));
    evp_parts_clear(&restored);
    evp_parts_clear(&parts);
    free(saved);
}

static void test_limit(void) {
    struct evp_parts parts;
    uint32_t last = PARTS_LEN_MAX_BYTES / WHOLE_LEN_MAX_BYTES / (PARTS - 1) + 1;
    evp_parts_init(&parts);
    for (uint32_t number = 1; number <= last; number++)
        CHECK(add(&parts, 1, number, 0) == EVP_INCOMPLETE);
    CHECK(add(&parts, 1, 1, 1) == EVP_INCOMPLETE && add(&parts, 1, 1, 2) == EVP_COMPLETE);
    for (uint32_t number = last + 1; number <= 2 * last + 2; number++)
        CHECK(add(&parts, 1, number, 0) == EVP_INCOMPLETE);
    CHECK(parts.len_bytes <= PARTS_LEN_MAX_BYTES);
    CHECK(add(&parts, 1, 2, 1) == EVP_INCOMPLETE && add(&parts, 1, 2, 2) == EVP_INCOMPLETE);
    CHECK(add(&parts, 1, last, 1) == EVP_INCOMPLETE && add(&parts, 1, last, 2) == EVP_COMPLETE);
    evp_parts_clear(&parts);
}

int main(void) {
    for (size_t i = 0; i < sizeof value; i++)
        value[i] = (char)(i % 253);
    test_any_order();
    test_what_is_no_part();
    test_saved();
    test_limit();
    printf("ok\n");
    return 0;
}
