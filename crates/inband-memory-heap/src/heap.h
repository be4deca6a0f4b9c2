/*
 * What the parts of the library share: heap.c connects it to the pager, allocator.c is malloc, refused.c handles what a
 * program may not do with a heap whose pages come and go.
 *
 * Nothing here may allocate, and nothing here may touch the region.
 */
#ifndef INBAND_HEAP_H
#define INBAND_HEAP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "inband_memory_heap.h"

#define PAGE_BYTES 4096
/* More arenas than there are threads allocating at the same time bring nothing, and each spreads over its own pages. */
#define ARENAS 4

/* Programs must not see these names, and calls and accesses need no table. */
#pragma GCC visibility push(hidden)

struct heap {
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
};
extern struct heap heap;

/* Writes to standard error without formatting, which may allocate. */
void say(const char *text);
void say_number(uint64_t number);
/* Ends the program before it has started. */
__attribute__((noreturn)) void cannot(const char *what, int error);

/* Gives the allocator its range. Threads use it from when `is_ready` is set. */
void create_arenas(void);
void refuse_direct_io(void);

#pragma GCC visibility pop

#endif
