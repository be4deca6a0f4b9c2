/*
 * inband_memory.h - lines of replicated memory as registers (docs/memory.md).
 *
 * A memory is an array of lines of 64 bytes, numbered from 0, kept by a majority of servers. A program connects to a
 * cluster that `inband up memory` or `inband memory switch` and `inband memory server` have started, and reads and writes
 * lines. (Programs whose heap is in replicated memory need nothing of this; see inband_memory_heap.h.)
 *
 * Guarantees. Each line is linearizable: the reads and writes of a line by all clients take effect one at a time, each
 * between its call and its return, and never in part. A request of several lines is as many registers: it is not atomic,
 * and its lines take effect in any order; so do requests that are under way at the same time. Nothing is cached.
 *
 * Unknown outcomes. A write that was sent and not acknowledged ends with INBAND_MEMORY_ERR_OUTCOME_UNKNOWN: it may have
 * taken effect, or may still do so, at most once. Read the line to find out, or write again if nobody else writes it.
 * Every other error but INBAND_MEMORY_ERR_SYSTEM and INBAND_MEMORY_ERR_INTERNAL says that nothing was written.
 *
 * Threads. A connection is used by one thread at a time. A call from a second thread that meets the first inside the
 * library is refused with INBAND_MEMORY_ERR_BUSY; a thread that wants its own requests makes a connection of its own.
 * After fork() the child cannot use the parent's connections (INBAND_MEMORY_ERR_FORKED) but may free them.
 *
 * Times are in milliseconds.
 *
 * Errors. Functions that return int return INBAND_MEMORY_OK or one of enum inband_memory_error; inband_last_error() (in
 * inband.h) then says in words what was wrong.
 *
 * Link with -linband.
 */
#ifndef INBAND_MEMORY_H
#define INBAND_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Bytes of a line. */
#define INBAND_MEMORY_LINE_LEN_BYTES 64

/** Lines of all requests of a connection that are under way, at most. */
#define INBAND_MEMORY_LINES_UNDER_WAY_MAX 65536

/** The timeout, in ms, that 0 stands for. */
#define INBAND_MEMORY_TIMEOUT_DEFAULT_MS 10000

/** A connection to a memory. Opaque. */
typedef struct inband_memory inband_memory;

/** What functions return. */
enum inband_memory_error {
    /** Done. */
    INBAND_MEMORY_OK = 0,
    /** An argument is NULL or out of range, or a line is to be written twice by one request. Nothing was sent. */
    INBAND_MEMORY_ERR_ARGUMENT = -1,
    /** The cluster's directory or key file cannot be used: it is not there, damaged, or a key file that others may read
        (it must have mode 0600 or less). The message names the file. */
    INBAND_MEMORY_ERR_CONFIG = -2,
    /** No switch became active within the timeout: none runs, a majority of servers does not, or the key is another. */
    INBAND_MEMORY_ERR_NO_ANSWER = -3,
    /** The memory has no such line. Nothing was sent. */
    INBAND_MEMORY_ERR_OUT_OF_RANGE = -4,
    /** Some or all lines of a write may have been written or may still be; see above. */
    INBAND_MEMORY_ERR_OUTCOME_UNKNOWN = -5,
    /** A read was not answered within the timeout. What was read is not defined. */
    INBAND_MEMORY_ERR_TIMED_OUT = -6,
    /** INBAND_MEMORY_LINES_UNDER_WAY_MAX lines are under way. Wait until some requests have ended. */
    INBAND_MEMORY_ERR_TOO_MANY = -7,
    /** Another thread is using this connection. */
    INBAND_MEMORY_ERR_BUSY = -8,
    /** The connection was made before fork(). Make one in this process. */
    INBAND_MEMORY_ERR_FORKED = -9,
    /** The socket. The outcome of writes that are under way is unknown. */
    INBAND_MEMORY_ERR_SYSTEM = -10,
    /** A fault of the library; the connection can only be freed. Please report the message. */
    INBAND_MEMORY_ERR_INTERNAL = -99
};

/**
 * Connect to the cluster that `inband up memory` has started in a directory: find the active switch and open a session.
 *
 * @param directory   The directory, for example ".inband-memory".
 * @param timeout_ms  Longest time that this call may take, and each request later; 0: the default.
 * @param memory      Where the connection is put; set to NULL on failure.
 * @return INBAND_MEMORY_OK, or INBAND_MEMORY_ERR_ARGUMENT, _CONFIG, _NO_ANSWER or _SYSTEM.
 */
int inband_memory_connect(const char *directory, int timeout_ms, inband_memory **memory);

/**
 * Connect to a cluster elsewhere.
 *
 * @param switches    All its switches, in the same order at every client: "10.0.0.4:7000,10.0.0.5:7000".
 * @param key_file    The cluster's key file; NULL if it has no key.
 * @param timeout_ms  As above.
 * @param memory      As above.
 * @return as inband_memory_connect().
 */
int inband_memory_connect_to(const char *switches, const char *key_file, int timeout_ms,
                             inband_memory **memory);

/** Close a connection. Requests under way have no end; writes among them may still take effect. NULL is ignored. */
void inband_memory_free(inband_memory *memory);

/** How many lines the memory has; 0: an error. */
uint64_t inband_memory_lines(inband_memory *memory);

/**
 * Read lines, and wait until they are read.
 *
 * @param lines   Their numbers, in any order.
 * @param count   How many; 0 is nothing to do.
 * @param values  Where they are put, in this order: count * INBAND_MEMORY_LINE_LEN_BYTES bytes. Not written on an error.
 * @return INBAND_MEMORY_OK, or INBAND_MEMORY_ERR_ARGUMENT, _OUT_OF_RANGE, _TIMED_OUT, _TOO_MANY, _BUSY, _FORKED or
 *         _SYSTEM.
 */
int inband_memory_read(inband_memory *memory, const uint64_t *lines, size_t count, void *values);

/**
 * Write lines, and wait until a majority of servers has them.
 *
 * @param lines   Their numbers, each once.
 * @param count   How many; 0 is nothing to do.
 * @param values  count * INBAND_MEMORY_LINE_LEN_BYTES bytes.
 * @return INBAND_MEMORY_OK, or INBAND_MEMORY_ERR_ARGUMENT, _OUT_OF_RANGE, _OUTCOME_UNKNOWN, _TOO_MANY, _BUSY, _FORKED or
 *         _SYSTEM.
 */
int inband_memory_write(inband_memory *memory, const uint64_t *lines, size_t count,
                        const void *values);

/**
 * Send a read and return at once; inband_memory_wait() says how it ended.
 *
 * @param request  Where its number is put, from 1, never used again in this connection.
 * @return as inband_memory_read(); on an error nothing was sent.
 */
int inband_memory_begin_read(inband_memory *memory, const uint64_t *lines, size_t count,
                             uint64_t *request);

/** The same, of a write. The values are copied. */
int inband_memory_begin_write(inband_memory *memory, const uint64_t *lines, size_t count,
                              const void *values, uint64_t *request);

/** A request that has ended. */
typedef struct inband_memory_done {
    /** What inband_memory_begin_read() or inband_memory_begin_write() put; 0: none has ended. */
    uint64_t request;
    /** INBAND_MEMORY_OK, INBAND_MEMORY_ERR_OUTCOME_UNKNOWN or INBAND_MEMORY_ERR_TIMED_OUT. */
    int result;
    /** Of a read that ended well: its lines, in the order asked for. Valid until the next call with this connection. */
    const void *values;
    /** How many lines these are. */
    size_t count;
} inband_memory_done;

/**
 * Wait for the next request that ends, in any order. It progresses only in calls with this connection.
 *
 * @param timeout_ms  Longest wait; 0: none, -1: until one has ended.
 * @param done        What has ended. Its `request` is 0 if none is under way, or the time has passed.
 * @return INBAND_MEMORY_OK, or INBAND_MEMORY_ERR_ARGUMENT, _BUSY, _FORKED or _SYSTEM. How the request ended is in `done`.
 */
int inband_memory_wait(inband_memory *memory, int timeout_ms, inband_memory_done *done);

#ifdef __cplusplus
}
#endif

#endif
