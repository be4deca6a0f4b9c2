/*
 * The program that programs.rs runs under `inband memory run`: program TEST [NUMBER [NUMBER]]. Prints "ok" at its end,
 * or exits with 1 and a line on standard error.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "inband_memory_heap.h"

#define PAGE 4096

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ x >> 33;
}

/* Writes at random over this many MiB, then reads everything back. */
static void random_writes(long mib, uint64_t seed) {
    size_t words = (size_t)mib << 17;
    uint64_t *at = malloc(words * 8);
    CHECK(at != NULL);
    for (size_t n = 0; n < words; ++n) {
        at[n] = n ^ seed;
    }
    size_t writes = words / 64;
    for (size_t n = 0; n < writes; ++n) {
        at[mix(n ^ seed) % words] += 1ULL << 40;
    }
    uint64_t added = 0;
    for (size_t n = 0; n < words; ++n) {
        uint64_t more = at[n] - (n ^ seed);
        CHECK((more & ((1ULL << 40) - 1)) == 0);
        added += more >> 40;
    }
    CHECK(added == writes);
    free(at);
}

static long thread_mib;

static void *random_writes_thread(void *seed) {
    random_writes(thread_mib, (uint64_t)seed);
    return NULL;
}

static void threads(long mib) {
    pthread_t ids[8];
    thread_mib = mib;
    for (uintptr_t n = 0; n < 8; ++n) {
        CHECK(pthread_create(&ids[n], NULL, random_writes_thread, (void *)(n << 50)) == 0);
    }
    for (int n = 0; n < 8; ++n) {
        CHECK(pthread_join(ids[n], NULL) == 0);
    }
}

/* All threads count in the same pages, in random order: no increment may be lost when a page is evicted and fetched
 * again. */
static uint64_t *counters;
static size_t counters_len;
#define COUNTING_THREADS 4
#define ROUNDS 300000

static void *count_thread(void *seed) {
    for (uint64_t n = 0; n < ROUNDS; ++n) {
        size_t which = mix(n ^ (uint64_t)seed) % counters_len;
        __atomic_fetch_add(&counters[which * (PAGE / 8)], 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void same_pages(long pages) {
    counters_len = (size_t)pages;
    counters = calloc(counters_len, PAGE);
    CHECK(counters != NULL);
    pthread_t ids[COUNTING_THREADS];
    for (uintptr_t n = 0; n < COUNTING_THREADS; ++n) {
        CHECK(pthread_create(&ids[n], NULL, count_thread, (void *)(n << 40)) == 0);
    }
    for (int n = 0; n < COUNTING_THREADS; ++n) {
        CHECK(pthread_join(ids[n], NULL) == 0);
    }
    uint64_t counted = 0;
    for (size_t n = 0; n < counters_len; ++n) {
        counted += counters[n * (PAGE / 8)];
    }
    CHECK(counted == (uint64_t)COUNTING_THREADS * ROUNDS);
}

/* Allocates, resizes and frees blocks of all sizes at random. */
enum { SLOTS = 4000 };
static struct slot {
    unsigned char *at;
    size_t len;
    unsigned char byte;
} slots[SLOTS];

static void churn(long rounds) {
    for (long n = 0; n < rounds; ++n) {
        uint64_t random = mix((uint64_t)n + 1);
        struct slot *slot = &slots[random % SLOTS];
        size_t len = (random >> 20 & 0xfffff) % (random >> 60 == 0 ? 300000 : 3000) + 1;
        unsigned char byte = (unsigned char)(random >> 40);
        if (slot->at != NULL) {
            CHECK(slot->at[0] == slot->byte && slot->at[slot->len - 1] == slot->byte);
        }
        size_t kept = slot->at == NULL ? 0 : slot->len < len ? slot->len : len;
        switch (random >> 56 & 3) {
        case 0:
            free(slot->at);
            slot->at = NULL;
            continue;
        case 1:
            slot->at = realloc(slot->at, len);
            CHECK(slot->at != NULL && (kept == 0 || slot->at[kept - 1] == slot->byte));
            break;
        case 2:
            free(slot->at);
            slot->at = calloc(1, len);
            CHECK(slot->at != NULL);
            for (size_t at = 0; at < len; ++at) {
                CHECK(slot->at[at] == 0);
            }
            break;
        default:
            free(slot->at);
            slot->at = malloc(len);
            CHECK(slot->at != NULL);
        }
        CHECK(malloc_usable_size(slot->at) >= len);
        memset(slot->at, byte, len);
        slot->len = len;
        slot->byte = byte;
    }
}

static void alignment(void) {
    for (size_t align = sizeof(void *); align <= 1 << 21; align *= 2) {
        for (size_t len = 1; len < 100000; len = len * 5 + 3) {
            void *at = NULL;
            CHECK(posix_memalign(&at, align, len) == 0 && (uintptr_t)at % align == 0);
            memset(at, 7, len);
            void *other = aligned_alloc(align, len);
            CHECK(other != NULL && (uintptr_t)other % align == 0);
            void *third = memalign(align, len);
            CHECK(third != NULL && (uintptr_t)third % align == 0);
            memset(other, 8, len);
            CHECK(((unsigned char *)at)[len - 1] == 7);
            free(at);
            free(other);
            free(third);
        }
    }
    for (size_t align = 1 << 22; align <= 1 << 26; align *= 2) {
        void *at = aligned_alloc(align, align);
        CHECK(at != NULL && (uintptr_t)at % align == 0);
        free(at);
    }
    void *at = &at;
    errno = 5;
    CHECK(posix_memalign(&at, 3, 10) == EINVAL && posix_memalign(&at, 2, 10) == EINVAL);
    CHECK(at == (void *)&at && errno == 5);
    at = valloc(10);
    CHECK(at != NULL && (uintptr_t)at % PAGE == 0);
    free(at);
    at = pvalloc(10);
    CHECK(at != NULL && (uintptr_t)at % PAGE == 0 && malloc_usable_size(at) >= PAGE);
    free(at);
    volatile size_t huge = SIZE_MAX / 2;
    errno = 0;
    CHECK(reallocarray(NULL, huge, 3) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(calloc(huge, 3) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(malloc(huge * 2) == NULL && errno == ENOMEM);
}

static void used_up(void) {
    size_t blocks = 0;
    void *volatile last;
    errno = 0;
    while ((last = malloc(1 << 20)) != NULL) {
        ++blocks;
        CHECK(blocks < 1 << 20);
    }
    CHECK(errno == ENOMEM && malloc(1 << 20) == NULL);
    printf("%zu MiB\n", blocks);
}

/* Allocates as many blocks of a size as possible, up to a number of MB, and writes them all. */
static size_t fill(unsigned char **blocks, size_t blocks_max, size_t len, size_t mb) {
    size_t count = 0;
    while (count < blocks_max && count * len < mb * 1000000 &&
           (blocks[count] = malloc(len)) != NULL) {
        memset(blocks[count++], 1, len);
    }
    return count;
}

/* Memory allocated in blocks of one size and freed must serve for any other size. The heap has 64 MiB. */
static void reuse(long first, long second) {
    static unsigned char *blocks[100000];
    size_t lens[] = {(size_t)first, (size_t)second, (size_t)first};
    for (int phase = 0; phase < 3; ++phase) {
        size_t len = lens[phase];
        size_t count = fill(blocks, 100000, len, phase == 0 ? 60 : 1000);
        fprintf(stderr, "%zu blocks of %zu\n", count, len);
        /* Blocks of up to 20 MB may leave the room of nearly one block unused. */
        CHECK(count * len >= (len > 10000000 ? 40000000 : 56000000));
        for (size_t n = 0; n < count; ++n) {
            free(blocks[n]);
        }
    }
    unsigned char *zeros = calloc(1, 30000000);
    CHECK(zeros != NULL);
    for (size_t n = 0; n < 30000000; ++n) {
        CHECK(zeros[n] == 0);
    }
    free(zeros);
}

/* A vector that grows by half each time must reuse the memory it leaves behind. */
static void grow(void) {
    size_t len = PAGE, held = 0;
    unsigned char *at = NULL;
    for (;;) {
        unsigned char *more = realloc(at, len);
        if (more == NULL) {
            break;
        }
        at = more;
        CHECK(held == 0 || (at[0] == 1 && at[held - 1] == 1));
        memset(at, 1, len);
        held = len;
        len += len / 2;
    }
    fprintf(stderr, "%zu bytes\n", held);
    CHECK(held >= 16000000);
}

/* Memory that one thread has freed must serve others. */
static void *reuse_thread(void *expected_mb) {
    static unsigned char *blocks[1000];
    size_t count = fill(blocks, 1000, 1000000, 1000);
    fprintf(stderr, "%zu MB\n", count);
    CHECK(count >= (uintptr_t)expected_mb);
    for (size_t n = 0; n < count; ++n) {
        free(blocks[n]);
    }
    return NULL;
}

static void reuse_threads(void) {
    for (int n = 0; n < 8; ++n) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, reuse_thread, (void *)(uintptr_t)56) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
}

/* A signal handler that interrupts faults, and faults itself. */
static unsigned char *handled;
#define HANDLED_LEN ((size_t)32 << 20)
static volatile uint64_t handler_calls;

static void on_alarm(int signal) {
    (void)signal;
    handled[mix(++handler_calls) % HANDLED_LEN & ~(size_t)1] += 1;
}

static void signals(void) {
    handled = calloc(1, HANDLED_LEN);
    CHECK(handled != NULL);
    struct sigaction action = {.sa_handler = on_alarm};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every = {.it_interval = {.tv_usec = 300}, .it_value = {.tv_usec = 300}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    for (int round = 0; round < 10; ++round) {
        for (size_t n = 1; n < HANDLED_LEN; n += PAGE) {
            handled[n] += 1;
        }
    }
    struct itimerval never = {0};
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    uint64_t counted = 0;
    for (size_t n = 0; n < HANDLED_LEN; n += 2) {
        counted += handled[n];
        CHECK(n % PAGE != 0 || handled[n + 1] == 10);
    }
    CHECK(counted == handler_calls && counted > 10);
}

/* System calls whose buffers are not in local memory. */
static void system_calls(void) {
    size_t len = (size_t)24 << 20;
    char path[] = "/tmp/inband-memory-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0);
    unsigned char *from = malloc(len), *to = malloc(len);
    for (size_t n = 0; n < len; ++n) {
        from[n] = (unsigned char)mix(n / 8);
    }
    for (size_t done = 0; done < len;) {
        ssize_t written = pwrite(fd, from + done, len - done, (off_t)done);
        CHECK(written > 0);
        done += (size_t)written;
    }
    for (size_t done = 0; done < len;) {
        ssize_t got = pread(fd, to + done, len - done, (off_t)done);
        CHECK(got > 0);
        done += (size_t)got;
    }
    CHECK(memcmp(from, to, len) == 0);
}

/* Output stays in a buffer until the end; by then the heap's earlier pages have been evicted. */
static void printed_at_exit(void) {
    printf("kept until the end\n");
    random_writes(16, 5);
    exit(0);
}

extern char **environ;

static void children(void) {
    fflush(stdout);
    CHECK(system(strdup("echo from system")) == 0);
    FILE *pipe = popen("echo ${LD_PRELOAD:-nothing} ${INBAND_MEMORY_HEAP:-nothing}", "r");
    char line[200] = "";
    CHECK(pipe != NULL && fgets(line, sizeof(line), pipe) != NULL && pclose(pipe) == 0);
    CHECK(strcmp(line, "nothing nothing\n") == 0);
    /* The child's arguments lie in the heap. */
    char *arguments[] = {strdup("sh"), strdup("-c"), strdup("exit 7"), NULL};
    pid_t child;
    int status;
    CHECK(posix_spawnp(&child, "sh", NULL, NULL, arguments, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    child = vfork();
    if (child == 0) {
        execvp("sh", arguments);
        _exit(99);
    }
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    errno = 0;
    child = fork();
    if (child == 0) {
        _exit(0);
    }
    CHECK(child == -1 && errno == ENOSYS);
    errno = 0;
    CHECK(daemon(0, 0) == -1 && errno == ENOSYS);
}

/* Writes line `which` (1 or 2) of 16 pages while another program writes the other one: see programs.rs. */
static void shared(long which) {
    size_t len;
    unsigned char *at = inband_memory_shared(&len);
    CHECK(at != NULL && len >= 16 * PAGE);
    CHECK(inband_memory_acquire(at, len) == 0);
    for (size_t page = 0; page < 16; ++page) {
        memset(at + page * PAGE + (size_t)which * 64, (int)which, 64);
    }
    /* Wait until the other program has written, too, then until it has released. */
    printf("written\n");
    fflush(stdout);
    CHECK(getchar() == '\n');
    CHECK(inband_memory_release(at, len) == 0);
    printf("released\n");
    fflush(stdout);
    CHECK(getchar() == '\n');
    CHECK(inband_memory_acquire(at, len) == 0);
    for (size_t page = 0; page < 16; ++page) {
        for (size_t byte = 64; byte < 192; ++byte) {
            CHECK(at[page * PAGE + byte] == byte / 64);
        }
    }
}

/* Exits while pages of the shared memory are being fetched. */
static void shared_exit(long page) {
    size_t len;
    volatile unsigned char *at = inband_memory_shared(&len);
    CHECK(at != NULL);
    /* Sequential, so pages are read ahead. */
    for (long n = page - 3; n <= page; ++n) {
        CHECK(at[n * PAGE] == 0xAA);
    }
    _exit(0);
}

/* Closes files that it did not open, then writes to shared memory. */
static void close_all(void) {
    size_t len;
    unsigned char *at = inband_memory_shared(&len);
    CHECK(at != NULL);
    at[0] = 1;
    CHECK(close_range(3, ~0U, 0) == 0);
    closefrom(3);
    for (int fd = 3; fd < 1024; ++fd) {
        close(fd);
    }
    usleep(300000);
    at[PAGE] = 2;
    CHECK(inband_memory_flush() == 0);
    at[2 * PAGE] = 3;
}

static void direct_io(void) {
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    errno = 0;
    CHECK(fcntl(pipes[0], F_SETFL, O_DIRECT) == -1 && errno == EINVAL);
    CHECK(fcntl(pipes[0], F_SETFL, O_NONBLOCK) == 0);
    errno = 0;
    CHECK(open("/etc/passwd", O_RDONLY | O_DIRECT) == -1 && errno == EINVAL);
    int fd = open("/etc/passwd", O_RDONLY);
    CHECK(fd >= 0 && close(fd) == 0);
    errno = 0;
    CHECK(syscall(SYS_open, "/etc/passwd", O_RDONLY | O_DIRECT) == -1 && errno == EINVAL);
    errno = 0;
    CHECK(syscall(SYS_io_uring_setup, 8, NULL) == -1 && errno == ENOSYS);
    errno = 0;
    CHECK(syscall(SYS_io_setup, 8, NULL) == -1 && errno == ENOSYS);
}

static void *nothing(void *unused) {
    return unused;
}

static void stacks(void) {
    size_t len = 256 << 10;
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstack(&attributes, aligned_alloc(PAGE, len), len) == 0);
    CHECK(pthread_create(&thread, &attributes, nothing, NULL) == EINVAL);
    void *local = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(local != MAP_FAILED && pthread_attr_setstack(&attributes, local, len) == 0);
    CHECK(pthread_create(&thread, &attributes, nothing, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Splits the region into several mappings. */
static void split(long pages) {
    counters_len = (size_t)pages;
    counters = aligned_alloc(PAGE, counters_len * PAGE);
    CHECK(counters != NULL);
    memset(counters, 0, counters_len * PAGE);
    for (size_t n = 0; n < counters_len; n += 3) {
        int access = PROT_READ | PROT_WRITE | PROT_EXEC;
        CHECK(mprotect((char *)counters + n * PAGE, PAGE, access) == 0);
    }
    count_thread((void *)(7ULL << 40));
    uint64_t counted = 0;
    for (size_t n = 0; n < counters_len; ++n) {
        counted += counters[n * (PAGE / 8)];
    }
    CHECK(counted == ROUNDS);
}

static void advice(void) {
    unsigned char *at = aligned_alloc(PAGE, 4 * PAGE);
    memset(at, 7, 4 * PAGE);
    CHECK(madvise(at + PAGE, PAGE, MADV_DONTNEED) == 0);
    CHECK(at[PAGE - 1] == 7 && at[PAGE] == 0 && at[2 * PAGE - 1] == 0 && at[2 * PAGE] == 7);
    errno = 0;
    CHECK(madvise(at, PAGE, MADV_REMOVE) == -1 && errno == EINVAL);
    CHECK(madvise(at, PAGE, MADV_WILLNEED) == 0 && at[0] == 7);
}

/* Pages of the heap must not be moved; others may be. */
static void moves(void) {
    size_t len = 16 * PAGE;
    unsigned char *at = aligned_alloc(PAGE, len);
    CHECK(at != NULL);
    memset(at, 7, len);
    int access = PROT_READ | PROT_WRITE;
    unsigned char *local = mmap(NULL, len, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(local != MAP_FAILED);
    local[0] = 8;
    /* Evicts those pages. */
    random_writes(16, 3);
    int fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
    void *froms[] = {at, at, at + PAGE, local};
    size_t lens[] = {len, 0, PAGE, len};
    void *tos[] = {local, local, local, at};
    for (int n = 0; n < 4; ++n) {
        errno = 0;
        CHECK(mremap(froms[n], lens[n], len, fixed, tos[n]) == MAP_FAILED && errno == EINVAL);
    }
    errno = 0;
    CHECK(mremap(at, len, 2 * len, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    for (size_t n = 0; n < len; ++n) {
        CHECK(at[n] == 7);
    }
    local = mremap(local, len, 64 * len, MREMAP_MAYMOVE);
    CHECK(local != MAP_FAILED && local[0] == 8 && local[64 * len - 1] == 0);
    unsigned char *other = mmap(NULL, len, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mremap(local, len, len, fixed, other) == other && other[0] == 8);
}

static void *flush_on(void *unused) {
    while (inband_memory_flush() == 0) {
    }
    return unused;
}

/* A thread that is cancelled in the middle of a call must leave nothing behind. */
static void cancelled(void) {
    char *at = malloc(8 << 20);
    memset(at, 1, 8 << 20);
    for (int n = 0; n < 20; ++n) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, flush_on, NULL) == 0);
        usleep(1000);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
        CHECK(inband_memory_flush() == 0);
    }
}

static void calls(void) {
    size_t len = 1;
    CHECK(inband_memory_shared(&len) == NULL && len == 0);
    char *at = malloc(100);
    strcpy(at, "kept");
    CHECK(inband_memory_flush() == 0);
    CHECK(inband_memory_release(at, 100) == 0);
    CHECK(inband_memory_acquire(at, 100) == 0);
    CHECK(strcmp(at, "kept") == 0);
    errno = 0;
    CHECK(inband_memory_release(&len, 8) == -1 && errno == EINVAL);
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Measures the time to access a page that is not in the buffer, in random order. */
static void latency(long pages) {
    unsigned char *at = aligned_alloc(PAGE, (size_t)pages * PAGE);
    static uint64_t took[1 << 20];
    static uint32_t order[1 << 20];
    CHECK(at != NULL && pages <= 1 << 20);
    for (long n = 0; n < pages; ++n) {
        at[n * PAGE] = 1;
        order[n] = (uint32_t)n;
    }
    for (long n = pages - 1; n > 0; --n) {
        long other = (long)(mix((uint64_t)n) % (uint64_t)(n + 1));
        uint32_t swapped = order[n];
        order[n] = order[other];
        order[other] = swapped;
    }
    for (int write = 0; write < 2; ++write) {
        for (long n = 0; n < pages; ++n) {
            volatile unsigned char *page = at + (size_t)order[n] * PAGE;
            uint64_t begun = now_ns();
            if (write) {
                *page = 2;
            } else {
                (void)*page;
            }
            took[n] = now_ns() - begun;
        }
        qsort(took, (size_t)pages, 8, compare);
        printf("%s: p50 %.1f us, p90 %.1f us, p99 %.1f us, longest %.1f us\n",
               write ? "write" : "read", (double)took[pages / 2] / 1e3,
               (double)took[pages * 9 / 10] / 1e3, (double)took[pages * 99 / 100] / 1e3,
               (double)took[pages - 1] / 1e3);
    }
}

/* Uses its heap until it is killed. */
static void go_on(long mib) {
    size_t len = (size_t)mib << 20;
    unsigned char *at = malloc(len);
    CHECK(at != NULL);
    memset(at, 1, len);
    printf("ready\n");
    fflush(stdout);
    for (size_t n = 0;; n += PAGE) {
        at[n % len] += 1;
    }
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    const char *test = argv[1];
    long number = argc > 2 ? atol(argv[2]) : 0;
    if (strcmp(test, "random") == 0) {
        random_writes(number, 1ULL << 60);
    } else if (strcmp(test, "threads") == 0) {
        threads(number);
    } else if (strcmp(test, "same-pages") == 0) {
        same_pages(number);
    } else if (strcmp(test, "churn") == 0) {
        churn(number);
    } else if (strcmp(test, "alignment") == 0) {
        alignment();
    } else if (strcmp(test, "used-up") == 0) {
        used_up();
    } else if (strcmp(test, "reuse") == 0) {
        reuse(number, argc > 3 ? atol(argv[3]) : 0);
    } else if (strcmp(test, "grow") == 0) {
        grow();
    } else if (strcmp(test, "reuse-threads") == 0) {
        reuse_threads();
    } else if (strcmp(test, "signals") == 0) {
        signals();
    } else if (strcmp(test, "system-calls") == 0) {
        system_calls();
    } else if (strcmp(test, "printed-at-exit") == 0) {
        printed_at_exit();
    } else if (strcmp(test, "children") == 0) {
        children();
    } else if (strcmp(test, "shared") == 0) {
        shared(number);
    } else if (strcmp(test, "shared-exit") == 0) {
        shared_exit(number);
    } else if (strcmp(test, "close-all") == 0) {
        close_all();
    } else if (strcmp(test, "direct-io") == 0) {
        direct_io();
    } else if (strcmp(test, "stacks") == 0) {
        stacks();
    } else if (strcmp(test, "split") == 0) {
        split(number);
    } else if (strcmp(test, "advice") == 0) {
        advice();
    } else if (strcmp(test, "moves") == 0) {
        moves();
    } else if (strcmp(test, "cancelled") == 0) {
        cancelled();
    } else if (strcmp(test, "calls") == 0) {
        calls();
    } else if (strcmp(test, "latency") == 0) {
        latency(number);
    } else if (strcmp(test, "go-on") == 0) {
        go_on(number);
    } else if (strcmp(test, "exit") == 0) {
        return (int)number;
    } else if (strcmp(test, "signal") == 0) {
        raise((int)number);
    } else {
        CHECK(!"a test of this name");
    }
    printf("ok\n");
    return 0;
}
