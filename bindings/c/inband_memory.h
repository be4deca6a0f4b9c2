/*
 * inband_memory.h - lines of replicated memory as registers (docs/memory.md).
 *
 * A memory is an array of lines of 64 bytes, numbered from 0 and stored by a majority of servers. A program connects to
 * a cluster that was started with `inband up memory`, or with `inband memory switch` and `inband memory server`, and
 * reads and writes lines. (Programs whose heap is in replicated memory do not need this; see inband_memory_heap.h.)
 *
 * Guarantees. Each line is linearizable: the reads and writes of a line by all clients take effect one at a time, each
 * between its call and its return, and never partially. A request for several lines accesses independent registers: it
 * is not atomic, and its lines take effect in any order, as do concurrent requests. Nothing is cached.
 *
 * Unknown outcomes. A write that was sent and not acknowledged ends with INBAND_MEMORY_ERR_OUTCOME_UNKNOWN: it may have
 * taken effect, or may still do so, at most once. Read the line to find out, or write again if there is no other
 * writer. Every other error except INBAND_MEMORY_ERR_SYSTEM and INBAND_MEMORY_ERR_INTERNAL means that nothing was
 * written.
 *
 * Threads. Only one thread may use a connection at a time. A call from a second thread while another one is inside the
 * library with the same connection fails with INBAND_MEMORY_ERR_BUSY; for concurrent requests, open a connection per
 * thread. After fork() the child cannot use the parent's connections (INBAND_MEMORY_ERR_FORKED) but may free them.
 *
 * Times are in milliseconds.
 *
 * Errors. Functions that return int return INBAND_MEMORY_OK or one of enum inband_memory_error; inband_last_error() (in
 * inband.h) then returns a message.
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

/** Length of a line in bytes. */
#define INBAND_MEMORY_LINE_LEN_BYTES 64

/** Maximum number of lines in all requests in flight of a connection. */
#define INBAND_MEMORY_LINES_UNDER_WAY_MAX 65536

/** The default timeout in ms, selected by 0. */
#define INBAND_MEMORY_TIMEOUT_DEFAULT_MS 10000

/** A connection to a memory. Opaque. */
typedef struct inband_memory inband_memory;

/** Return values. */
enum inband_memory_error {
    /** Done. */
    INBAND_MEMORY_OK = 0,
    /** An argument is NULL or out of range, or a request writes a line twice. Nothing was sent. */
    INBAND_MEMORY_ERR_ARGUMENT = -1,
    /** The cluster's directory or key file cannot be used: it is missing or damaged, or the key file is readable by
        other users (it must have mode 0600 or less). The message names the file. */
    INBAND_MEMORY_ERR_CONFIG = -2,
    /** No switch became active within the timeout: none is running, no majority of servers is, or the key is wrong. */
    INBAND_MEMORY_ERR_NO_ANSWER = -3,
    /** The memory has no such line. Nothing was sent. */
    INBAND_MEMORY_ERR_OUT_OF_RANGE = -4,
    /** Some or all lines of a write may have been written, or may be written later; see above. */
    INBAND_MEMORY_ERR_OUTCOME_UNKNOWN = -5,
    /** A read was not answered within the timeout. The output is undefined. */
    INBAND_MEMORY_ERR_TIMED_OUT = -6,
    /** INBAND_MEMORY_LINES_UNDER_WAY_MAX lines are in flight. Wait until some requests have ended. */
    INBAND_MEMORY_ERR_TOO_MANY = -7,
    /** Another thread is using this connection. */
    INBAND_MEMORY_ERR_BUSY = -8,
    /** The connection was opened before fork(). Open one in this process. */
    INBAND_MEMORY_ERR_FORKED = -9,
    /** A socket error. The outcome of writes in flight is unknown. */
    INBAND_MEMORY_ERR_SYSTEM = -10,
    /** A bug in the library; the connection can only be freed. Please report the message. */
    INBAND_MEMORY_ERR_INTERNAL = -99
};

/**
 * Connect to the cluster that `inband up memory` has started in a directory: finds the active switch and opens a
 * session.
 *
 * @param directory   The directory, for example ".inband-memory".
 * @param timeout_ms  Maximum duration of this call, and of each later request; 0: the default.
 * @param memory      Set to the connection; NULL on failure.
 * @return INBAND_MEMORY_OK, or INBAND_MEMORY_ERR_ARGUMENT, _CONFIG, _NO_ANSWER or _SYSTEM.
 */
int inband_memory_connect(const char *directory, int timeout_ms, inband_memory **memory);

/**
 * Connect to a cluster by the addresses of its switches.
 *
 * @param switches    All its switches, in the same order at every client: "10.0.0.4:7000,10.0.0.5:7000".
 * @param key_file    The cluster's key file; NULL if it has no key.
 * @param timeout_ms  As above.
 * @param memory      As above.
 * @return Like inband_memory_connect().
 */
int inband_memory_connect_to(const char *switches, const char *key_file, int timeout_ms,
                             inband_memory **memory);

/** Close a connection. Requests in flight get no outcome, and writes may still take effect. NULL is ignored. */
void inband_memory_free(inband_memory *memory);

/** The number of lines of the memory; 0 on an error. */
uint64_t inband_memory_lines(inband_memory *memory);

/**
 * Read lines, and wait for the result.
 *
 * @param lines   Their numbers, in any order.
 * @param count   The number of lines; may be 0.
 * @param values  Receives the lines in this order: count * INBAND_MEMORY_LINE_LEN_BYTES bytes. Not written on an error.
 * @return INBAND_MEMORY_OK, or INBAND_MEMORY_ERR_ARGUMENT, _OUT_OF_RANGE, _TIMED_OUT, _TOO_MANY, _BUSY, _FORKED or
 *         _SYSTEM.
 */
int inband_memory_read(inband_memory *memory, const uint64_t *lines, size_t count, void *values);

/**
 * Write lines, and wait until a majority of servers has them.
 *
 * @param lines   Their numbers, without duplicates.
 * @param count   The number of lines; may be 0.
 * @param values  count * INBAND_MEMORY_LINE_LEN_BYTES bytes.
 * @return INBAND_MEMORY_OK, or INBAND_MEMORY_ERR_ARGUMENT, _OUT_OF_RANGE, _OUTCOME_UNKNOWN, _TOO_MANY, _BUSY, _FORKED
 *         or _SYSTEM.
 */
int inband_memory_write(inband_memory *memory, const uint64_t *lines, size_t count,
                        const void *values);

/**
 * Send a read and return immediately; inband_memory_wait() returns the result.
 *
 * @param request  Set to the request's number, which is at least 1 and never reused in this connection.
 * @return Like inband_memory_read(); on an error nothing was sent.
 */
int inband_memory_begin_read(inband_memory *memory, const uint64_t *lines, size_t count,
                             uint64_t *request);

/** The same for a write. The values are copied. */
int inband_memory_begin_write(inband_memory *memory, const uint64_t *lines, size_t count,
                              const void *values, uint64_t *request);

/** A request that has ended. */
typedef struct inband_memory_done {
    /** The number from inband_memory_begin_read() or inband_memory_begin_write(); 0: none has ended. */
    uint64_t request;
    /** INBAND_MEMORY_OK, INBAND_MEMORY_ERR_OUTCOME_UNKNOWN or INBAND_MEMORY_ERR_TIMED_OUT. */
    int result;
    /** For a successful read: its lines, in the requested order. Valid until the next call with this connection. */
    const void *values;
    /** The number of lines in `values`. */
    size_t count;
} inband_memory_done;

/**
 * Wait for the next request that ends, in any order. Requests progress only during calls with this connection.
 *
 * @param timeout_ms  Maximum wait; 0: do not wait, -1: until one has ended.
 * @param done        The request that has ended. Its `request` is 0 if none is in flight, or on timeout.
 * @return INBAND_MEMORY_OK, or INBAND_MEMORY_ERR_ARGUMENT, _BUSY, _FORKED or _SYSTEM. The request's result is in
 *         `done`.
 */
int inband_memory_wait(inband_memory *memory, int timeout_ms, inband_memory_done *done);

#ifdef __cplusplus
}
#endif

#endif
