/*
 * inband_memory_heap.h - for programs that are aware of running under `inband memory run`.
 *
 * No program has to be: malloc and its relatives are enough. A program uses the functions below if it shares memory
 * with programs on other machines (`--shared SIZE`), or needs its writes to be on the servers at a certain moment. They
 * are in the preloaded library; declare them weak (as this header does) and test for NULL, so that the program also
 * runs without it.
 *
 * The shared memory is the first SIZE bytes of the replicated memory, the same bytes for every program started with
 * --shared SIZE. Each 64-byte line, aligned to 64, is read and written as a whole. Of a page, only the lines that
 * differ from what was fetched are written back, so programs that write different lines of one page do not disturb each
 * other. Two programs that write the same line need a lock: take the lock, then acquire; release, then drop the lock.
 *
 * Functions that return int return 0, or -1 and set errno: ENOSYS if the program does not run under `inband memory
 * run`, EINVAL if the range is not in the memory. While no majority of the servers answers they block, as every access
 * to the heap does; after --give-up-after-s the program is killed.
 */
#ifndef INBAND_MEMORY_HEAP_H
#define INBAND_MEMORY_HEAP_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Writes back everything that this program has written. */
int inband_memory_flush(void) __attribute__((weak));

/** Makes later reads in this range see what other programs have released before. Writes of this program in the range
 * are written back first. Other threads may use the range meanwhile; they wait while their page is written back and
 * fetched. */
int inband_memory_acquire(void *at, size_t len) __attribute__((weak));

/** Writes back what this program has written in this range, so that any program that acquires it afterwards sees it. */
int inband_memory_release(void *at, size_t len) __attribute__((weak));

/** Returns the page-aligned shared memory and stores its length in *len, unless len is NULL. Returns NULL without
 * --shared. */
void *inband_memory_shared(size_t *len) __attribute__((weak));

#ifdef __cplusplus
}
#endif

#endif
