/* Tests every function of inband_memory.h: memory.c DIRECTORY SWITCHES KEY_FILE. */
#include <inband.h>
#include <inband_memory.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(so)                                                                                  \
    do {                                                                                           \
        if (!(so)) {                                                                               \
            fprintf(stderr, "line %d: not so: %s; last error: %s\n", __LINE__, #so,                \
                    inband_last_error());                                                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define LINE INBAND_MEMORY_LINE_LEN_BYTES
#define MANY 100

static int says(const char *text) {
    return strstr(inband_last_error(), text) != NULL;
}

static void lines_are_registers(inband_memory *memory) {
    uint64_t lines[MANY], count = inband_memory_lines(memory);
    static char values[MANY][LINE], read[MANY][LINE];

    CHECK(count > 1000 && count % 16 == 0);
    for (unsigned i = 0; i < MANY; i++) {
        lines[i] = i * 37 % count; /* in several chunks, in mixed order */
        snprintf(values[i], LINE, "value %u", i);
    }
    CHECK(inband_memory_write(memory, lines, MANY, values) == INBAND_MEMORY_OK);
    CHECK(inband_memory_read(memory, lines, MANY, read) == INBAND_MEMORY_OK);
    CHECK(memcmp(values, read, sizeof values) == 0);
    /* A line may be read twice, and in any order; neighbouring lines are zero. */
    uint64_t some[4] = {lines[5], lines[3], lines[5], 38};
    CHECK(inband_memory_read(memory, some, 4, read) == INBAND_MEMORY_OK);
    CHECK(!strcmp(read[0], "value 5") && !strcmp(read[1], "value 3") &&
          !strcmp(read[2], "value 5"));
    CHECK(read[3][0] == 0);
    CHECK(inband_memory_read(memory, NULL, 0, NULL) == INBAND_MEMORY_OK);
    CHECK(inband_memory_write(memory, NULL, 0, NULL) == INBAND_MEMORY_OK);
}

static void several_are_under_way(inband_memory *memory) {
    uint64_t line = 7, other = 8, beyond = 1ULL << 40, requests[MANY], none = 0;
    char value[LINE] = "seven", ended[MANY] = {0};
    inband_memory_done done;

    CHECK(inband_memory_wait(memory, -1, &done) == INBAND_MEMORY_OK && done.request == 0);
    CHECK(inband_memory_write(memory, &line, 1, value) == INBAND_MEMORY_OK);
    for (unsigned i = 0; i < MANY; i++) {
        int begun = i % 2 ? inband_memory_begin_read(memory, &line, 1, &requests[i])
                          : inband_memory_begin_write(memory, &other, 1, value, &requests[i]);
        CHECK(begun == INBAND_MEMORY_OK && requests[i] > none);
        none = requests[i];
    }
    CHECK(inband_memory_begin_read(memory, &beyond, 1, &none) == INBAND_MEMORY_ERR_OUT_OF_RANGE);
    /* A blocking call does not consume the results of other requests. */
    CHECK(inband_memory_read(memory, &line, 1, value) == INBAND_MEMORY_OK);
    for (unsigned i = 0; i < MANY; i++) {
        unsigned at = 0;
        CHECK(inband_memory_wait(memory, 5000, &done) == INBAND_MEMORY_OK && done.request != 0);
        CHECK(done.result == INBAND_MEMORY_OK);
        while (at < MANY && requests[at] != done.request)
            at++;
        CHECK(at < MANY && !ended[at]);
        ended[at] = 1;
        if (at % 2)
            CHECK(done.count == 1 && !strcmp(done.values, "seven"));
        else
            CHECK(done.count == 0 && done.values == NULL);
    }
    CHECK(inband_memory_wait(memory, 0, &done) == INBAND_MEMORY_OK && done.request == 0);
}

static void wrong_calls_are_refused(inband_memory *memory) {
    uint64_t twice[2] = {3, 3}, last = inband_memory_lines(memory), request;
    char values[2][LINE] = {{0}};
    uint64_t *many = calloc(INBAND_MEMORY_LINES_UNDER_WAY_MAX + 1, sizeof *many);
    inband_memory_done done;

    CHECK(inband_memory_write(memory, twice, 2, values) == INBAND_MEMORY_ERR_ARGUMENT);
    CHECK(says("line 3 is to be written twice"));
    CHECK(inband_memory_read(memory, &last, 1, values) == INBAND_MEMORY_ERR_OUT_OF_RANGE);
    CHECK(says("the memory has lines 0 to"));
    CHECK(inband_memory_read(NULL, &last, 1, values) == INBAND_MEMORY_ERR_ARGUMENT);
    CHECK(inband_memory_read(memory, NULL, 1, values) == INBAND_MEMORY_ERR_ARGUMENT);
    CHECK(inband_memory_read(memory, twice, 1, NULL) == INBAND_MEMORY_ERR_ARGUMENT);
    CHECK(inband_memory_write(memory, twice, (size_t)-1, values) == INBAND_MEMORY_ERR_ARGUMENT);
    CHECK(inband_memory_begin_read(memory, twice, 1, NULL) == INBAND_MEMORY_ERR_ARGUMENT);
    CHECK(inband_memory_wait(memory, -2, &done) == INBAND_MEMORY_ERR_ARGUMENT);
    CHECK(inband_memory_wait(memory, 0, NULL) == INBAND_MEMORY_ERR_ARGUMENT);
    CHECK(inband_memory_begin_read(memory, many, INBAND_MEMORY_LINES_UNDER_WAY_MAX + 1, &request) ==
          INBAND_MEMORY_ERR_TOO_MANY);
    CHECK(inband_memory_lines(NULL) == 0);
    inband_memory_free(NULL);
    free(many);
}

static void connections_that_cannot_be(const char *directory, const char *switches,
                                       const char *key_file, const char *exposed) {
    inband_memory *memory = (inband_memory *)1;

    CHECK(inband_memory_connect("/nowhere", 0, &memory) == INBAND_MEMORY_ERR_CONFIG);
    CHECK(memory == NULL && says("/nowhere/cluster.json"));
    CHECK(inband_memory_connect(directory, -1, &memory) == INBAND_MEMORY_ERR_ARGUMENT);
    CHECK(inband_memory_connect(NULL, 0, &memory) == INBAND_MEMORY_ERR_ARGUMENT);
    CHECK(inband_memory_connect(directory, 0, NULL) == INBAND_MEMORY_ERR_ARGUMENT);
    CHECK(inband_memory_connect_to("nowhere", key_file, 0, &memory) == INBAND_MEMORY_ERR_ARGUMENT);
    CHECK(says("give ADDRESS:PORT"));
    CHECK(inband_memory_connect_to(switches, exposed, 0, &memory) == INBAND_MEMORY_ERR_CONFIG);
    CHECK(says(exposed));
    /* Without the key there is no answer. The timeout is in milliseconds. */
    CHECK(inband_memory_connect_to(switches, NULL, 200, &memory) == INBAND_MEMORY_ERR_NO_ANSWER);
    CHECK(says("within 200 ms"));
    CHECK(inband_memory_connect_to(switches, key_file, 5000, &memory) == INBAND_MEMORY_OK);
    inband_memory_free(memory);
}

static unsigned refused_of_reads(void *memory) {
    uint64_t line = 1;
    char value[LINE];
    unsigned refused = 0;

    for (unsigned i = 0; i < 2000; i++) {
        int result = inband_memory_read(memory, &line, 1, value);
        CHECK(result == INBAND_MEMORY_OK || result == INBAND_MEMORY_ERR_BUSY);
        refused += result == INBAND_MEMORY_ERR_BUSY;
    }
    return refused;
}

static void *reads(void *memory) {
    return (void *)(uintptr_t)refused_of_reads(memory);
}

static void a_second_thread_is_refused(inband_memory *memory) {
    pthread_t thread;
    void *refused;
    unsigned refused_here;

    CHECK(pthread_create(&thread, NULL, reads, memory) == 0);
    refused_here = refused_of_reads(memory);
    CHECK(pthread_join(thread, &refused) == 0);
    CHECK(refused_here + (uintptr_t)refused > 0);
}

static void a_forked_child_is_refused(inband_memory *memory) {
    uint64_t line = 7;
    char value[LINE];
    int status;
    pid_t child = fork();

    if (child == 0) {
        CHECK(inband_memory_read(memory, &line, 1, value) == INBAND_MEMORY_ERR_FORKED);
        inband_memory_free(memory);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* The session still belongs to the parent. */
    CHECK(inband_memory_read(memory, &line, 1, value) == INBAND_MEMORY_OK);
    CHECK(!strcmp(value, "seven"));
}

int main(int argc, char **argv) {
    inband_memory *memory;

    CHECK(argc == 5);
    connections_that_cannot_be(argv[1], argv[2], argv[3], argv[4]);
    CHECK(inband_memory_connect(argv[1], 5000, &memory) == INBAND_MEMORY_OK);
    lines_are_registers(memory);
    several_are_under_way(memory);
    wrong_calls_are_refused(memory);
    a_second_thread_is_refused(memory);
    a_forked_child_is_refused(memory);
    inband_memory_free(memory);
    printf("ok\n");
    return 0;
}
