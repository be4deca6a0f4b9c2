/*
 * lines.c - lines of replicated memory as registers: one writer, whose writes are never lost.
 *
 *     inband up memory --detach
 *     cc -Ibindings/c bindings/c/example/lines.c -o lines -Ltarget/release -linband
 *     ./lines .inband-memory 1000
 *
 * Writes sixteen lines the given number of times, and reads them back each time. Kill servers and switches meanwhile.
 */
#include <inband.h>
#include <inband_memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINES 16

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, inband_last_error());
    return 1;
}

int main(int argc, char **argv) {
    char values[LINES][INBAND_MEMORY_LINE_LEN_BYTES], read[LINES][INBAND_MEMORY_LINE_LEN_BYTES];
    uint64_t lines[LINES];
    unsigned long unknown = 0, rounds;
    inband_memory *memory;

    if (argc != 3) {
        fprintf(stderr, "usage: %s DIRECTORY ROUNDS\n", argv[0]);
        return 2;
    }
    rounds = strtoul(argv[2], NULL, 10);
    if (inband_memory_connect(argv[1], 0, &memory) != INBAND_MEMORY_OK)
        return fail("connect");
    for (unsigned i = 0; i < LINES; i++)
        lines[i] = i;
    for (unsigned long round = 1; round <= rounds; round++) {
        int result;
        for (unsigned i = 0; i < LINES; i++) {
            memset(values[i], 0, sizeof values[i]);
            snprintf(values[i], sizeof values[i], "round %lu of line %u", round, i);
        }
        /* There is no other writer of these lines, so a write with an unknown outcome is simply
         * repeated. */
        while ((result = inband_memory_write(memory, lines, LINES, values)) ==
               INBAND_MEMORY_ERR_OUTCOME_UNKNOWN)
            unknown++;
        if (result != INBAND_MEMORY_OK)
            return fail("write");
        if (inband_memory_read(memory, lines, LINES, read) != INBAND_MEMORY_OK)
            return fail("read");
        if (memcmp(values, read, sizeof values) != 0) {
            fprintf(stderr, "round %lu: other values than were written\n", round);
            return 1;
        }
        if (round == 1)
            printf("begun\n"), fflush(stdout);
    }
    printf("%lu rounds, %lu writes of unknown outcome\n", rounds, unknown);
    inband_memory_free(memory);
    return 0;
}
