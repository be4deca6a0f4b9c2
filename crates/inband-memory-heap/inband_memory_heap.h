/*
 * inband_memory_heap.h - for programs that know that they run under `inband memory run`.
 *
 * No program has to: malloc and its kin are enough. A program that shares memory with programs on other machines
 * (`--shared SIZE`), or wants its writes on the servers at a certain moment, uses the functions below. They are in the
 * preloaded library; declare them weak (this header does) and test for NULL to run without it as well.
 *
 * What is shared: the first SIZE bytes of the replicated memory, the same bytes for every program that says --shared
 * SIZE. Each line of 64 bytes that is aligned to 64 is read and written whole; a page is written back by the lines that
 * differ from what was fetched, so programs that write different lines of one page do not disturb each other. Two programs that
 * write the same line need a lock; take it, then acquire; release, then give it back.
 *
 * All functions that return int return 0, or -1 and errno: ENOSYS not under `inband memory run`, EINVAL a range that is
 * not in the memory. While no majority of the servers answers they wait, as every access to the heap does; after
 * --give-up-after-s the program is killed.
 */
#ifndef INBAND_MEMORY_HEAP_H
#define INBAND_MEMORY_HEAP_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Write back everything that this program has written. */
int inband_memory_flush(void) __attribute__((weak));

/** From now on, reads in this range see what others released before. Writes of this program in it are written back first.
 * Other threads may use the range meanwhile; they wait while their page is written back and fetched. */
int inband_memory_acquire(void *at, size_t len) __attribute__((weak));

/** Write back what this program has written in this range: anyone who acquires it afterwards sees it. */
int inband_memory_release(void *at, size_t len) __attribute__((weak));

/** The shared memory and its length; NULL without --shared. It is aligned to a page. */
void *inband_memory_shared(size_t *len) __attribute__((weak));

#ifdef __cplusplus
}
#endif

#endif
