/*
 * malloc and its relatives: jemalloc, which manages the region. Its metadata stays in local memory: arenas 0.. with the
 * default hooks hold what jemalloc and the dynamic linker allocate before the program starts; arenas created here, with
 * `metadata_use_hooks` false, hold what the program's threads allocate. Extents are taken from the region from left to
 * right and never given back: jemalloc retains what is freed, merged with its neighbours, and splits it for later
 * allocations of any size.
 */
#include <errno.h>
#include <stdlib.h>

#include "heap.h"

/* An arena takes small extents from its own chunk, because only neighbours of the same arena merge. A chunk is at
 * most this long, and at most 1/CHUNKS_PER_HEAP of the heap; an extent larger than 1/EXTENTS_PER_CHUNK of a chunk
 * gets its own place. */
#define CHUNK_BYTES_MAX ((size_t)1 << 20)
#define CHUNKS_PER_HEAP 64
#define EXTENTS_PER_CHUNK 8

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

/* Whether this thread allocates from the region. */
static __thread bool is_bound __attribute__((tls_model("initial-exec")));

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

void create_arenas(void) {
    struct arena_config config = {.extent_hooks = &hooks, .metadata_use_hooks = false};
    for (unsigned n = 0; n < ARENAS; ++n) {
        size_t len = sizeof(unsigned);
        int error = _rjem_mallctl("experimental.arenas_create_ext", &heap.arenas[n], &len, &config,
                                  sizeof(config));
        if (error != 0) {
            cannot("jemalloc has no arena", error);
        }
    }
}
