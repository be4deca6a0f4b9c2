/*
 * The library that `inband memory run` preloads: malloc and its relatives, with memory from a region whose page faults
 * are handled by another process, the pager.
 *
 * jemalloc manages the region. Its metadata stays in local memory: arenas 0.. with the default hooks hold what jemalloc
 * and the dynamic linker allocate before the program starts; arenas created here, with `metadata_use_hooks` false, hold
 * what the program's threads allocate. Extents are taken from the region from left to right and never given back:
 * jemalloc retains what is freed, merged with its neighbours, and splits it for later allocations of any size.
 *
 * Nothing here may allocate, and nothing here may touch the region.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inband_memory_heap.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

/* Set by the pager: "SOCKET MEMFD INODE BYTES SHARED HEAP_FROM HEAP_TO", and the user's own LD_PRELOAD=... entry, if
 * any, with a prefix. */
#define ENVIRONMENT "INBAND_MEMORY_HEAP="
#define FORMER_PREFIX "INBAND_MEMORY_FORMER_"
#define PRELOAD "LD_PRELOAD="
#define PAGE_BYTES 4096
/* More arenas than there are threads allocating at the same time bring nothing, and each spreads over its own pages. */
#define ARENAS 4
/* An arena takes small extents from its own chunk, because only neighbours of the same arena merge. A chunk is at
 * most this long, and at most 1/CHUNKS_PER_HEAP of the heap; an extent larger than 1/EXTENTS_PER_CHUNK of a chunk
 * gets its own place. */
#define CHUNK_BYTES_MAX ((size_t)1 << 20)
#define CHUNKS_PER_HEAP 64
#define EXTENTS_PER_CHUNK 8
/* Above the descriptors that programs close or rely on, so that their own files keep the numbers they expect. */
#define FD_FROM 900
#define EXIT_CANNOT_START 127
/* Size of the buffers of standard input and output; stdio writes longer blocks directly from their place. */
#define STDIO_BYTES (64 << 10)

extern void *_rjem_malloc(size_t);
extern void *_rjem_calloc(size_t, size_t);
extern void *_rjem_realloc(void *, size_t);
extern void _rjem_free(void *);
extern void *_rjem_aligned_alloc(size_t, size_t);
extern int _rjem_posix_memalign(void **, size_t, size_t);
extern void *_rjem_mallocx(size_t, int);
extern void *_rjem_rallocx(void *, size_t, int);
extern size_t _rjem_malloc_usable_size(void *);
extern int _rjem_mallctl(const char *, void *, size_t *, void *, size_t);

/* Flags of mallocx, as in jemalloc's header. */
#define MALLOCX_ZERO 0x40
#define MALLOCX_TCACHE_NONE (1 << 8)
#define MALLOCX_ALIGN(alignment) __builtin_ctzl(alignment)
#define MALLOCX_ARENA(arena) ((int)(((arena) + 1) << 20))

/* No background thread, and no arena for large allocations, which would be a local one. What is freed is retained at
 * once (decay times of 0): dirty extents would be merged late, and a long one would not be split for a small
 * allocation, so that memory freed in blocks of one size would not serve another. The hooks purge nothing, so pages
 * keep their content. `retain` is off, because it lets an arena grow by ever longer extents that do not merge with
 * each other; what the hooks do not take back is retained in any case. Of jemalloc's sources of settings this is the one
 * that overrides /etc/malloc.conf. */
const char *_rjem_malloc_conf_2_conf_harder =
    "background_thread:false,dirty_decay_ms:0,muzzy_decay_ms:0,retain:false,"
    "oversize_threshold:0,percpu_arena:disabled,narenas:1,thp:never";

/* jemalloc reads MALLOC_CONF, which is for a jemalloc of the program's own. */
char *_rjem_secure_getenv(const char *name) {
    (void)name;
    return NULL;
}

/* As in jemalloc's headers, whose names have a different prefix in each build. */
typedef struct extent_hooks_s extent_hooks_t;
struct extent_hooks_s {
    void *(*alloc)(extent_hooks_t *, void *, size_t, size_t, bool *, bool *, unsigned);
    bool (*dalloc)(extent_hooks_t *, void *, size_t, bool, unsigned);
    void (*destroy)(extent_hooks_t *, void *, size_t, bool, unsigned);
    bool (*commit)(extent_hooks_t *, void *, size_t, size_t, size_t, unsigned);
    bool (*decommit)(extent_hooks_t *, void *, size_t, size_t, size_t, unsigned);
    bool (*purge_lazy)(extent_hooks_t *, void *, size_t, size_t, size_t, unsigned);
    bool (*purge_forced)(extent_hooks_t *, void *, size_t, size_t, size_t, unsigned);
    bool (*split)(extent_hooks_t *, void *, size_t, size_t, size_t, bool, unsigned);
    bool (*merge)(extent_hooks_t *, void *, size_t, void *, size_t, bool, unsigned);
};
struct arena_config {
    extent_hooks_t *extent_hooks;
    bool metadata_use_hooks;
};

/* Messages on the socket; crates/inband-memory/src/heap/link.rs is the other end. */
enum { OP_HELLO = 1, OP_FLUSH, OP_ACQUIRE, OP_RELEASE };
struct message {
    uint32_t op;
    uint32_t user_mode_only;
    uint64_t from;
    uint64_t len;
};

static struct {
    char *base;
    size_t len;
    /* Bytes at the start that are shared with other programs. */
    size_t shared;
    /* The allocator's range. */
    size_t heap_from;
    size_t heap_to;
    /* Protects `used` and `chunks`. */
    pthread_mutex_t extents;
    size_t used;
    struct chunk {
        size_t from;
        size_t to;
    } chunks[ARENAS];
    unsigned arenas[ARENAS];
    _Atomic unsigned next_arena;
    _Atomic bool is_ready;
    _Atomic bool is_exhausted;
    _Atomic bool said_exhausted;
    int socket;
    int uffd;
    ino_t socket_inode;
    int (*pthread_create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    pthread_mutex_t calls;
} heap = {
    .socket = -1,
    .uffd = -1,
    .calls = PTHREAD_MUTEX_INITIALIZER,
    .extents = PTHREAD_MUTEX_INITIALIZER,
};

/* Whether this thread allocates from the region. */
static __thread bool is_bound __attribute__((tls_model("initial-exec")));

/* Writes to standard error without formatting, which may allocate. */
static void say(const char *text) {
    ssize_t written = write(2, text, strlen(text));
    (void)written;
}

static void say_number(uint64_t number) {
    char digits[24];
    char *at = digits + sizeof(digits) - 1;
    *at = '\0';
    do {
        *--at = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    say(at);
}

__attribute__((noreturn)) static void cannot(const char *what, int error) {
    say("inband memory: cannot start the program: ");
    say(what);
    say(": error ");
    say_number((uint64_t)error);
    say(" (");
    /* Not strerror: translations allocate. */
    const char *name = strerrordesc_np(error);
    say(name != NULL ? name : "unknown");
    say(")\n");
    _exit(EXIT_CANNOT_START);
}

#define NO_ROOM SIZE_MAX

/* Takes an extent from the beginning of a chunk. */
static size_t take(struct chunk *chunk, size_t size, size_t alignment) {
    /* The address must be aligned, not the offset in the region. */
    uintptr_t at = (uintptr_t)heap.base + chunk->from;
    size_t from = chunk->from + (-at & (alignment - 1));
    if (from < chunk->from || from > chunk->to || size > chunk->to - from) {
        return NO_ROOM;
    }
    chunk->from = from + size;
    return from;
}

static size_t take_for(unsigned arena, size_t size, size_t alignment) {
    size_t chunk_len =
        (heap.heap_to - heap.heap_from) / CHUNKS_PER_HEAP & ~(size_t)(PAGE_BYTES - 1);
    if (chunk_len > CHUNK_BYTES_MAX) {
        chunk_len = CHUNK_BYTES_MAX;
    }
    size_t from = NO_ROOM;
    if (size <= chunk_len / EXTENTS_PER_CHUNK && alignment <= chunk_len / EXTENTS_PER_CHUNK) {
        for (unsigned n = 0; n < ARENAS; ++n) {
            struct chunk *chunk = &heap.chunks[n];
            if (heap.arenas[n] != arena) {
                continue;
            }
            from = take(chunk, size, alignment);
            if (from == NO_ROOM && chunk_len <= heap.heap_to - heap.used) {
                *chunk = (struct chunk){.from = heap.used, .to = heap.used + chunk_len};
                heap.used += chunk_len;
                from = take(chunk, size, alignment);
            }
        }
    }
    if (from == NO_ROOM) {
        struct chunk rest = {.from = heap.used, .to = heap.heap_to};
        from = take(&rest, size, alignment);
        heap.used = rest.from;
    }
    for (unsigned n = 0; n < ARENAS && from == NO_ROOM; ++n) {
        from = take(&heap.chunks[n], size, alignment);
    }
    return from;
}

static void *hook_alloc(extent_hooks_t *hooks, void *wanted, size_t size, size_t alignment,
                        bool *zero, bool *commit, unsigned arena) {
    (void)hooks;
    if (wanted != NULL) {
        return NULL;
    }
    pthread_mutex_lock(&heap.extents);
    size_t from = take_for(arena, size, alignment);
    pthread_mutex_unlock(&heap.extents);
    if (from == NO_ROOM) {
        atomic_store(&heap.is_exhausted, true);
        return NULL;
    }
    /* The pager maps pages that were not written yet as zeros. */
    *zero = true;
    *commit = true;
    return heap.base + from;
}

/* Returns "not deallocated": jemalloc keeps the extent. */
static bool hook_dalloc(extent_hooks_t *hooks, void *at, size_t size, bool committed,
                        unsigned arena) {
    (void)hooks;
    (void)at;
    (void)size;
    (void)committed;
    (void)arena;
    return true;
}

static bool hook_split(extent_hooks_t *hooks, void *at, size_t size, size_t a, size_t b,
                       bool committed, unsigned arena) {
    (void)hooks;
    (void)at;
    (void)size;
    (void)a;
    (void)b;
    (void)committed;
    (void)arena;
    return false;
}

static bool hook_merge(extent_hooks_t *hooks, void *a, size_t a_size, void *b, size_t b_size,
                       bool committed, unsigned arena) {
    (void)hooks;
    (void)a;
    (void)a_size;
    (void)b;
    (void)b_size;
    (void)committed;
    (void)arena;
    return false;
}

static extent_hooks_t hooks = {
    .alloc = hook_alloc,
    .dalloc = hook_dalloc,
    .split = hook_split,
    .merge = hook_merge,
};

static void bind_thread(void) {
    /* Set first, because mallctl may allocate. */
    is_bound = true;
    unsigned n = atomic_fetch_add(&heap.next_arena, 1);
    unsigned arena = heap.arenas[n % ARENAS];
    _rjem_mallctl("thread.arena", NULL, NULL, &arena, sizeof(arena));
}

static inline void enter(void) {
    if (__builtin_expect(!is_bound, 0) &&
        atomic_load_explicit(&heap.is_ready, memory_order_acquire)) {
        bind_thread();
    }
}

/* Reports a failed allocation, once. */
static void say_exhausted(size_t size) {
    if (atomic_exchange(&heap.said_exhausted, true)) {
        return;
    }
    say("inband memory: malloc of ");
    say_number(size);
    say(" bytes fails (ENOMEM): no free piece of the heap (");
    say_number(heap.heap_to - heap.heap_from);
    say(" bytes) is that long; the memory's size is chosen when its servers start, or with "
        "--local-size\n");
}

/* Handles an allocation for which the thread's arena has no room: flushes the thread's cache and tries all arenas.
 * `at` is the block to resize, or NULL. */
static __attribute__((noinline)) void *try_others(void *at, size_t size, int flags) {
    if (!atomic_load(&heap.is_exhausted)) {
        return NULL;
    }
    int error = errno;
    void *found = NULL;
    if (is_bound && size <= heap.heap_to - heap.heap_from) {
        size_t needed = size > 0 ? size : 1;
        _rjem_mallctl("thread.tcache.flush", NULL, NULL, NULL, 0);
        for (unsigned n = 0; n < ARENAS && found == NULL; ++n) {
            int all = flags | MALLOCX_TCACHE_NONE | MALLOCX_ARENA(heap.arenas[n]);
            found = at != NULL ? _rjem_rallocx(at, needed, all) : _rjem_mallocx(needed, all);
        }
    }
    if (found == NULL) {
        say_exhausted(size);
    }
    errno = error;
    return found;
}

void *inband_heap_malloc(size_t size) {
    enter();
    void *at = _rjem_malloc(size);
    return __builtin_expect(at != NULL, 1) ? at : try_others(NULL, size, 0);
}

void *inband_heap_calloc(size_t count, size_t size) {
    enter();
    void *at = _rjem_calloc(count, size);
    size_t bytes;
    if (__builtin_expect(at != NULL, 1) || __builtin_mul_overflow(count, size, &bytes)) {
        return at;
    }
    return try_others(NULL, bytes, MALLOCX_ZERO);
}

void *inband_heap_realloc(void *at, size_t size) {
    enter();
    /* As glibc does and ISO C before C23 allows; programs rely on it. */
    if (size == 0 && at != NULL) {
        _rjem_free(at);
        return NULL;
    }
    void *resized = _rjem_realloc(at, size);
    return __builtin_expect(resized != NULL, 1) ? resized : try_others(at, size, 0);
}

void *inband_heap_reallocarray(void *at, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return inband_heap_realloc(at, bytes);
}

void inband_heap_free(void *at) {
    _rjem_free(at);
}

void *inband_heap_aligned_alloc(size_t alignment, size_t size) {
    enter();
    void *at = _rjem_aligned_alloc(alignment, size);
    if (__builtin_expect(at != NULL, 1) || errno != ENOMEM) {
        return at;
    }
    return try_others(NULL, size, MALLOCX_ALIGN(alignment));
}

/* glibc rounds an alignment that is not a power of two up. */
void *inband_heap_memalign(size_t alignment, size_t size) {
    size_t power = sizeof(void *);
    while (power < alignment && power <= SIZE_MAX / 2) {
        power *= 2;
    }
    return inband_heap_aligned_alloc(power, size);
}

int inband_heap_posix_memalign(void **to, size_t alignment, size_t size) {
    enter();
    /* posix_memalign must not change errno nor, if it fails, *to. */
    int before = errno;
    int error = _rjem_posix_memalign(to, alignment, size);
    if (error == ENOMEM) {
        void *at = try_others(NULL, size, MALLOCX_ALIGN(alignment));
        if (at != NULL) {
            *to = at;
            error = 0;
        }
    }
    errno = before;
    return error;
}

void *inband_heap_valloc(size_t size) {
    return inband_heap_aligned_alloc(PAGE_BYTES, size);
}

void *inband_heap_pvalloc(size_t size) {
    if (size > SIZE_MAX - PAGE_BYTES) {
        errno = ENOMEM;
        return NULL;
    }
    return inband_heap_aligned_alloc(PAGE_BYTES,
                                     (size + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1));
}

size_t inband_heap_malloc_usable_size(void *at) {
    return _rjem_malloc_usable_size(at);
}

/* fork is refused, because the child would write to the parent's heap. In a child that gets around this the region
 * is not mapped (MADV_DONTFORK), so it ends with SIGSEGV instead. vfork, posix_spawn, system and popen work as
 * usual: their child shares the parent's memory until it executes a program, which runs in local memory. */

static bool refuse_fork(const char *name) {
    if (!atomic_load(&heap.is_ready)) {
        return false;
    }
    say("inband memory: ");
    say(name);
    say("() refused (ENOSYS): parent and child would write to one heap; posix_spawn, vfork, system "
        "and popen "
        "work\n");
    errno = ENOSYS;
    return true;
}

/* glibc's own function, which this library's names hide. */
extern pid_t __fork(void);

pid_t inband_heap_fork(void) {
    return refuse_fork("fork") ? -1 : __fork();
}

pid_t inband_heap_bare_fork(void) {
    return refuse_fork("_Fork") ? -1 : __fork();
}

int inband_heap_daemon(int no_chdir, int no_close) {
    (void)no_chdir;
    (void)no_close;
    if (!refuse_fork("daemon")) {
        errno = ENOSYS;
    }
    return -1;
}

pid_t inband_heap_forkpty(int *terminal, char *name, const struct termios *settings,
                          const struct winsize *size) {
    (void)terminal;
    (void)name;
    (void)settings;
    (void)size;
    if (!refuse_fork("forkpty")) {
        errno = ENOSYS;
    }
    return -1;
}

/* Returns whether any of these bytes is in the region. */
static bool is_in_region(const void *at, size_t len) {
    uintptr_t from = (uintptr_t)at, base = (uintptr_t)heap.base;
    return atomic_load(&heap.is_ready) && from < base + heap.len &&
           (len > base || from > base - len);
}

/* When a thread ends, the kernel writes to a block on its stack, and fails if that page is missing: pthread_join
 * would then wait forever. So stacks in the region are refused. */
int inband_heap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                               void *(*run)(void *), void *argument) {
    void *stack = NULL;
    size_t len = 0;
    if (attributes != NULL && pthread_attr_getstack(attributes, &stack, &len) == 0 &&
        stack != NULL && is_in_region(stack, len)) {
        say("inband memory: pthread_create() refused (EINVAL): the stack is in the heap; allocate "
            "stacks "
            "with mmap\n");
        return EINVAL;
    }
    if (heap.pthread_create == NULL) {
        *(void **)&heap.pthread_create = dlsym(RTLD_NEXT, "pthread_create");
    }
    return heap.pthread_create(thread, attributes, run, argument);
}

/* Does what madvise does to anonymous memory, which is what programs take their heap for. */
int inband_heap_madvise(void *at, size_t len, int advice) {
    if (is_in_region(at, len)) {
        switch (advice) {
        case MADV_DONTNEED:
        case MADV_FREE:
            memset(at, 0, len);
            return 0;
        case MADV_REMOVE:
        case MADV_DOFORK:
            errno = EINVAL;
            return -1;
        default:
            break;
        }
    }
    return (int)syscall(SYS_madvise, at, len, advice);
}

/* Refuses to move pages of the region, or to move others over them: the pager would not find them where it looks,
 * and they would read as zeros. The kernel reads `to` only if the flags say that it is given. */
void *inband_heap_mremap(void *at, size_t len, size_t new_len, int flags, void *to) {
    /* A length of 0 maps the same pages a second time. */
    if (is_in_region(at, len > 0 ? len : 1) ||
        (flags & MREMAP_FIXED && is_in_region(to, new_len))) {
        say("inband memory: mremap() refused (EINVAL): the pages are in the heap; allocate what is "
            "to be moved with mmap\n");
        errno = EINVAL;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mremap, at, len, new_len, flags, to);
}

/* Protects this library's two files from programs that close what they have not opened. */

static bool is_ours(int fd) {
    return fd >= 0 && (fd == heap.socket || fd == heap.uffd);
}

int inband_heap_close(int fd) {
    extern int __close(int);
    if (__builtin_expect(is_ours(fd), 0)) {
        errno = EBADF;
        return -1;
    }
    return __close(fd);
}

int inband_heap_close_range(unsigned first, unsigned last, int flags) {
    if (first > last) {
        errno = EINVAL;
        return -1;
    }
    unsigned a = (unsigned)heap.socket, b = (unsigned)heap.uffd;
    /* As an unsigned number, -1 sorts last. */
    unsigned spared[2] = {a < b ? a : b, a < b ? b : a};
    for (int n = 0; n < 2; ++n) {
        if (spared[n] < first || spared[n] > last) {
            continue;
        }
        if (spared[n] > first && syscall(SYS_close_range, first, spared[n] - 1, flags) != 0) {
            return -1;
        }
        if (spared[n] == last) {
            return 0;
        }
        first = spared[n] + 1;
    }
    return (int)syscall(SYS_close_range, first, last, flags);
}

void inband_heap_closefrom(int from) {
    inband_heap_close_range(from < 0 ? 0 : (unsigned)from, ~0U, 0);
}

/* A device that writes to a page of the heap while the page is evicted would write to a freed frame, so direct I/O,
 * io_uring and aio are refused, as on systems without them. Programs then fall back to ordinary reads and writes.
 * Children inherit the filter. */
static void refuse_direct_io(void) {
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF(what, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, what, then, otherwise)
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)
    static struct sock_filter filter[] = {
        LOAD(arch),
        IF(AUDIT_ARCH_X86_64, 0, 14), /* else 16 */
        LOAD(nr),
        IF(SYS_io_uring_setup, 13, 0), /* 17 */
        IF(SYS_io_setup, 12, 0),       /* 17 */
        IF(SYS_openat2, 11, 0),        /* 17: its flags are behind a pointer */
        IF(SYS_open, 3, 0),            /* 10 */
        IF(SYS_openat, 6, 0),          /* 14 */
        IF(SYS_fcntl, 3, 0),           /* 12 */
        RETURN(SECCOMP_RET_ALLOW),
        /* 10: open */ LOAD(args[1]),
        BPF_STMT(BPF_JMP | BPF_JA, 3), /* 15 */
        /* 12: fcntl */ LOAD(args[1]),
        IF(F_SETFL, 0, 2), /* else 16 */
        /* 14: openat, and F_SETFL */ LOAD(args[2]),
        /* 15 */ BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_DIRECT, 2, 0), /* 18 */
        /* 16 */ RETURN(SECCOMP_RET_ALLOW),
        /* 17 */ RETURN(SECCOMP_RET_ERRNO | ENOSYS),
        /* 18 */ RETURN(SECCOMP_RET_ERRNO | EINVAL),
    };
    struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};
    unsigned flags = SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0) {
        return;
    }
    /* Unprivileged processes may install a filter only with NO_NEW_PRIVS. */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) != 0) {
        cannot("refusing direct I/O (seccomp)", errno);
    }
}

/* Sends a request to the pager and waits for the answer. One call at a time. */
static int call(uint32_t op, uint64_t from, uint64_t len) {
    struct stat now;
    /* The program may have closed the socket (by a direct system call), and another file may have its number now. */
    if (!atomic_load(&heap.is_ready) || fstat(heap.socket, &now) != 0 ||
        now.st_ino != heap.socket_inode) {
        errno = ENOSYS;
        return -1;
    }
    struct message message = {.op = op, .from = from, .len = len};
    int32_t error = EIO;
    ssize_t done;
    pthread_testcancel();
    /* A thread cancelled in here, or a signal handler that calls this again, would leave the lock taken. */
    sigset_t all, before;
    int cancelled;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled);
    pthread_mutex_lock(&heap.calls);
    do {
        done = send(heap.socket, &message, sizeof(message), MSG_NOSIGNAL);
    } while (done < 0 && errno == EINTR);
    if (done >= 0) {
        do {
            done = recv(heap.socket, &error, sizeof(error), 0);
        } while (done < 0 && errno == EINTR);
        if (done != (ssize_t)sizeof(error)) {
            error = EIO;
        }
    }
    pthread_mutex_unlock(&heap.calls);
    pthread_setcancelstate(cancelled, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return error == 0 ? 0 : -1;
}

static int call_range(uint32_t op, const void *at, size_t len) {
    uintptr_t from = (uintptr_t)at - (uintptr_t)heap.base;
    if (atomic_load(&heap.is_ready) &&
        ((uintptr_t)at < (uintptr_t)heap.base || from > heap.len || len > heap.len - from)) {
        errno = EINVAL;
        return -1;
    }
    return call(op, from, len);
}

int inband_heap_flush(void) {
    return call(OP_FLUSH, 0, heap.len);
}

int inband_heap_acquire(void *at, size_t len) {
    return call_range(OP_ACQUIRE, at, len);
}

int inband_heap_release(void *at, size_t len) {
    return call_range(OP_RELEASE, at, len);
}

void *inband_heap_shared(size_t *len) {
    bool is_shared = atomic_load(&heap.is_ready) && heap.shared > 0;
    if (len != NULL) {
        *len = is_shared ? heap.shared : 0;
    }
    return is_shared ? heap.base : NULL;
}

/* Start. */

static uint64_t next_number(const char **text) {
    uint64_t number = 0;
    while (**text == ' ') {
        ++*text;
    }
    for (; **text >= '0' && **text <= '9'; ++*text) {
        number = number * 10 + (uint64_t)(**text - '0');
    }
    return number;
}

/* Opens a userfaultfd, which also handles faults in the kernel if that is allowed. */
static int open_uffd(uint32_t *user_mode_only) {
    int flags = O_CLOEXEC | O_NONBLOCK;
    *user_mode_only = 0;
    int fd = (int)syscall(SYS_userfaultfd, flags);
    if (fd >= 0) {
        return fd;
    }
    int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    if (device >= 0) {
        fd = ioctl(device, USERFAULTFD_IOC_NEW, flags);
        close(device);
        if (fd >= 0) {
            return fd;
        }
    }
    *user_mode_only = 1;
    return (int)syscall(SYS_userfaultfd, flags | UFFD_USER_MODE_ONLY);
}

static void send_hello(int socket, int uffd, uint32_t user_mode_only) {
    struct message message = {
        .op = OP_HELLO,
        .user_mode_only = user_mode_only,
        .from = (uint64_t)(uintptr_t)heap.base,
        .len = heap.len,
    };
    struct iovec part = {.iov_base = &message, .iov_len = sizeof(message)};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr header = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &uffd, sizeof(int));
    int32_t answer;
    if (sendmsg(socket, &header, MSG_NOSIGNAL) < 0) {
        cannot("the pager does not listen", errno);
    }
    ssize_t got;
    do {
        got = recv(socket, &answer, sizeof(answer), 0);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof(answer) || answer != 0) {
        cannot("the pager does not answer", got < 0 ? errno : EIO);
    }
}

static int move_up(int fd) {
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, FD_FROM);
    if (moved < 0) {
        /* The limit on open files may be low. */
        moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    }
    if (moved < 0) {
        cannot("fcntl", errno);
    }
    close(fd);
    return moved;
}

/* Returns what the pager has passed, or NULL. It is removed from the environment, so programs started by this one
 * use local memory. getenv and the like are avoided, because shells define functions of these names. */
static const char *take_environment(void) {
    extern char **environ;
    const char *found = NULL;
    char *former = NULL;
    if (environ == NULL) {
        return NULL;
    }
    for (char **at = environ; *at != NULL; ++at) {
        if (strncmp(*at, ENVIRONMENT, strlen(ENVIRONMENT)) == 0) {
            found = *at + strlen(ENVIRONMENT);
        }
    }
    if (found == NULL || *found == '\0') {
        return NULL;
    }
    char **to = environ;
    for (char **at = environ; *at != NULL; ++at) {
        if (strncmp(*at, FORMER_PREFIX PRELOAD, strlen(FORMER_PREFIX PRELOAD)) == 0) {
            former = *at + strlen(FORMER_PREFIX);
        } else if (strncmp(*at, ENVIRONMENT, strlen(ENVIRONMENT)) != 0 &&
                   strncmp(*at, PRELOAD, strlen(PRELOAD)) != 0) {
            *to++ = *at;
        }
    }
    if (former != NULL) {
        *to++ = former;
    }
    *to = NULL;
    return found;
}

/* For programs without fault handling in the kernel: write(2) of a buffer in the heap may fail when the program
 * ends, and nobody would check that. */
static void keep_stdio_local(void) {
    static char in[STDIO_BYTES], out[STDIO_BYTES];
    setvbuf(stdin, in, _IOFBF, sizeof(in));
    setvbuf(stdout, out, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, sizeof(out));
}

__attribute__((constructor)) static void start(void) {
    const char *text = take_environment();
    if (text == NULL) {
        return;
    }
    int socket = (int)next_number(&text);
    int memfd = (int)next_number(&text);
    ino_t inode = (ino_t)next_number(&text);
    heap.len = next_number(&text);
    heap.shared = next_number(&text);
    heap.heap_from = next_number(&text);
    heap.heap_to = next_number(&text);
    heap.used = heap.heap_from;
    struct stat now;
    if (fstat(memfd, &now) != 0 || now.st_ino != inode || now.st_size != (off_t)heap.len) {
        /* Not the program that was started, but one that has inherited its environment. */
        return;
    }
    heap.base = mmap(NULL, heap.len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memfd, 0);
    if (heap.base == MAP_FAILED) {
        cannot("mapping the heap", errno);
    }
    close(memfd);
    if (syscall(SYS_madvise, heap.base, heap.len, MADV_DONTFORK) != 0 ||
        syscall(SYS_madvise, heap.base, heap.len, MADV_DONTDUMP) != 0) {
        cannot("madvise", errno);
    }
    uint32_t user_mode_only;
    int uffd = open_uffd(&user_mode_only);
    if (uffd < 0) {
        cannot("userfaultfd (a container's seccomp profile may forbid it; Docker: --device "
               "/dev/userfaultfd)",
               errno);
    }
    struct uffdio_api api = {
        .api = UFFD_API,
        .features = UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_PAGEFAULT_FLAG_WP |
                    UFFD_FEATURE_WP_HUGETLBFS_SHMEM,
    };
    if (ioctl(uffd, UFFDIO_API, &api) != 0) {
        cannot(
            "userfaultfd without write protection of shared memory: Linux 5.19 or newer is needed",
            errno);
    }
    struct uffdio_register range = {
        .range = {.start = (uintptr_t)heap.base, .len = heap.len},
        .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP,
    };
    if (ioctl(uffd, UFFDIO_REGISTER, &range) != 0) {
        cannot("registering the heap with userfaultfd", errno);
    }
    send_hello(socket, uffd, user_mode_only);
    if (user_mode_only) {
        keep_stdio_local();
    }
    /* Keep this end open: if the pager held the only one and died, pages would read as zeros. */
    heap.uffd = move_up(uffd);
    heap.socket = move_up(socket);
    if (fstat(heap.socket, &now) != 0) {
        cannot("fstat", errno);
    }
    heap.socket_inode = now.st_ino;

    refuse_direct_io();

    struct arena_config config = {.extent_hooks = &hooks, .metadata_use_hooks = false};
    for (unsigned n = 0; n < ARENAS; ++n) {
        size_t len = sizeof(unsigned);
        int error = _rjem_mallctl("experimental.arenas_create_ext", &heap.arenas[n], &len, &config,
                                  sizeof(config));
        if (error != 0) {
            cannot("jemalloc has no arena", error);
        }
    }
    atomic_store_explicit(&heap.is_ready, true, memory_order_release);
}
