/*
 * inband.h - consensus at packet speed: submit, deliver, recover.
 *
 * The C library of Inband. It gives the application interface of CAANS ("Consensus as a Network
 * Service", Figure 4) to programs that keep their own state: a program submits values, and every
 * program that is a replica of the same cluster is handed all submitted values, in the same order,
 * each once.
 *
 * A context is one host of a cluster, described by a configuration file. Its packet roles run in
 * the kernel or, without any privilege, in this process.
 *
 * Threads. A context belongs to one thread: create it, call everything on it and free it there, or
 * hand it to another thread as you would any other memory. Only inband_stop() may be called from
 * any thread, and from a signal handler. Different contexts are independent. A call from a second
 * thread that meets the owner inside the library is refused with INBAND_ERR_BUSY.
 *
 * Callbacks are called only from inside inband_run() and inband_run_once(), on the thread that
 * called it. In a callback every function but inband_run(), inband_run_once() and inband_free() may
 * be called. What a callback points to is valid until it returns. A callback must return: no
 * longjmp, no C++ exception.
 *
 * Errors. Functions that return int return 0 or more on success and one of enum inband_error
 * otherwise; inband_last_error() then says in words what was wrong.
 *
 * Link with -linband.
 */
#ifndef INBAND_H
#define INBAND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Version of this header; inband_version() tells that of the library. */
#define INBAND_VERSION "0.1.0"

/** Longest value in bytes: what fits one packet of an MTU of 1500 bytes. */
#define INBAND_VALUE_LEN_MAX_BYTES 1376

/** Most values of one context that are submitted and have no end yet. */
#define INBAND_WINDOW_VALUES 1024

/** Most recoveries of one context that have no end yet. */
#define INBAND_RECOVERIES_OPEN_MAX 1024

/** One host of a cluster. Opaque. */
typedef struct inband_ctx inband_ctx;

/** What functions return. After any error but INBAND_ERR_INTERNAL the context is as before. */
enum inband_error {
    /** Done. */
    INBAND_OK = 0,
    /** An argument is NULL or out of range, or a callback that is needed is not set. Correct the
        call; the message names the argument. */
    INBAND_ERR_ARGUMENT = -1,
    /** The configuration cannot be read or has a mistake. Correct it; the message names the file,
        the line, the value found and the values allowed. */
    INBAND_ERR_CONFIG = -2,
    /** The UDP address of this host cannot be bound. End the process that has it, or correct the
        node's address. */
    INBAND_ERR_ADDRESS = -3,
    /** The state directory cannot be used. Correct its path, permissions or space as the message
        says; every host needs its own. */
    INBAND_ERR_STATE_DIR = -4,
    /** The packet programs cannot be loaded into the kernel. Do what the message says, or choose
        INBAND_DATAPLANE_AUTO or INBAND_DATAPLANE_UDP. */
    INBAND_ERR_DATAPLANE = -5,
    /** The value is longer than INBAND_VALUE_LEN_MAX_BYTES. Split it into several. */
    INBAND_ERR_TOO_LONG = -6,
    /** INBAND_WINDOW_VALUES values, or INBAND_RECOVERIES_OPEN_MAX recoveries, have no end yet. Run
        until some have, then try again. */
    INBAND_ERR_WINDOW_FULL = -7,
    /** This host is no replica: it learns nothing and so cannot submit or recover. Do it at a host
        whose node has the role "replica". */
    INBAND_ERR_NOT_REPLICA = -8,
    /** The instance was handed over long ago and is no longer held here. Use the application's own
        state. */
    INBAND_ERR_TRIMMED = -9,
    /** The instance is further ahead than the acceptors' rings reach. Recover lower ones first; the
        message names the limit. */
    INBAND_ERR_TOO_FAR_AHEAD = -10,
    /** The bytes were not made by inband_save(), or were damaged since. Take another copy. */
    INBAND_ERR_SAVED_DAMAGED = -11,
    /** The saved position is older than what was delivered already. Take a newer one, or go on
        without. */
    INBAND_ERR_SAVED_TOO_OLD = -12,
    /** The context is in use: by another thread, or by the run that this callback was called from.
        Give the context one thread; from a callback, return first. */
    INBAND_ERR_BUSY = -13,
    /** inband_stop() was called. No error: leave the loop around inband_run_once(). */
    INBAND_ERR_STOPPED = -14,
    /** This replica needs a peer's state to go on and no state-needed callback is set. Set one, or
        restore; then run again. */
    INBAND_ERR_STATE_NEEDED = -15,
    /** A fault of the library; the context can only be freed. Please report the message. */
    INBAND_ERR_INTERNAL = -99
};

/** Where the packet roles of a host run. */
enum inband_dataplane {
    /** As host.dataplane in the configuration says. */
    INBAND_DATAPLANE_CONFIGURED = 0,
    /** The best that works here. */
    INBAND_DATAPLANE_AUTO = 1,
    /** In the kernel, in the interface's driver. */
    INBAND_DATAPLANE_XDP = 2,
    /** In the kernel, behind the driver: any interface, slower. */
    INBAND_DATAPLANE_XDP_GENERIC = 3,
    /** In this process, over a UDP socket: no privilege. */
    INBAND_DATAPLANE_UDP = 4
};

/** What a delivery is. */
enum inband_kind {
    /** A value that was not delivered before: apply it. These come in the order of their instances,
        each submitted value once, the same on all replicas. Their instances are not consecutive:
        some hold nothing for the application. */
    INBAND_NEW = 0,
    /** Answer to inband_recover(): what the instance holds. Do not apply it: it was delivered
       before, or never takes effect. */
    INBAND_REPLAY = 1,
    /** Answer to inband_recover(): the instance holds no value of any application, and never will;
        the value is the no-op that was decided. Another replica may have decided its own, which is
        empty if it came from the library itself. */
    INBAND_NOOP = 2
};

/** A value for the application. */
typedef struct inband_delivery {
    /** The instance it was decided in, from 1. */
    uint64_t instance;
    /** The ticket that inband_submit() gave, if this context submitted it and the kind is
        INBAND_NEW; else 0. Also 0 if the submission was reported as of unknown outcome before. */
    uint64_t ticket;
    /** The value; not terminated. Never NULL. */
    const char *value;
    /** Its length in bytes, 0 to INBAND_VALUE_LEN_MAX_BYTES. */
    size_t value_len_bytes;
    /** One of enum inband_kind. */
    int kind;
} inband_delivery;

/** How a submission or a recovery ended that has no delivery. */
enum inband_outcome {
    /** The value was certainly not applied and never will be. Submit it again if it is still
        wanted. */
    INBAND_NOT_APPLIED = 0,
    /** No decision within host.timing.submit_deadline_ms. The value may have been applied, may be
        applied later (and is then delivered with ticket 0), or never. Look into the state before it
        is submitted again. Of a recovery: recover again. */
    INBAND_OUTCOME_UNKNOWN = 1,
    /** The value was applied, or the instance is, in the state that was restored. */
    INBAND_IN_RESTORED_STATE = 2
};

/** A submission or a recovery that ended without a delivery. */
typedef struct inband_failure {
    /** The ticket of the submission; 0 for a recovery. */
    uint64_t ticket;
    /** The instance of the recovery; 0 for a submission. */
    uint64_t instance;
    /** One of enum inband_outcome. */
    int outcome;
    /** The same in words. */
    const char *message;
} inband_failure;

/** See inband_on_deliver(). `user` is what was given there. */
typedef void (*inband_deliver_fn)(inband_ctx *ctx, const inband_delivery *delivery, void *user);

/** See inband_on_failed(). */
typedef void (*inband_failed_fn)(inband_ctx *ctx, const inband_failure *failure, void *user);

/** See inband_on_state_needed(). */
typedef void (*inband_state_needed_fn)(inband_ctx *ctx, void *user);

/**
 * Start a host: read its configuration, bind its address, start its packet roles.
 *
 * @param config_path      The host's configuration file (TOML), the same as for `inband run`.
 * @param dataplane        One of enum inband_dataplane; overrides the file.
 * @param saved            What inband_save() made, if the application has state; else NULL. Without
 *                         it the application starts from nothing.
 * @param saved_len_bytes  Its length in bytes; 0 if `saved` is NULL.
 * @param ctx              Where the context is put; set to NULL on failure.
 * @return INBAND_OK, INBAND_ERR_ARGUMENT, INBAND_ERR_CONFIG, INBAND_ERR_ADDRESS,
 *         INBAND_ERR_STATE_DIR, INBAND_ERR_DATAPLANE or INBAND_ERR_SAVED_DAMAGED.
 */
int inband_create(const char *config_path, int dataplane, const void *saved, size_t saved_len_bytes,
                  inband_ctx **ctx);

/**
 * End a host: close its socket, unload its packet programs, free all memory. What is submitted and
 * undecided has no end; it may still be decided. NULL is ignored. In a callback this does nothing.
 */
void inband_free(inband_ctx *ctx);

/**
 * Set the function that is handed decided values. A replica must have one before it runs.
 *
 * @param deliver  NULL: none.
 * @param user     Given to `deliver`.
 * @return INBAND_OK, INBAND_ERR_ARGUMENT or INBAND_ERR_BUSY.
 */
int inband_on_deliver(inband_ctx *ctx, inband_deliver_fn deliver, void *user);

/**
 * Set the function that is told of submissions and recoveries that end without a delivery. Without
 * it they end silently.
 *
 * @return as inband_on_deliver().
 */
int inband_on_failed(inband_ctx *ctx, inband_failed_fn failed, void *user);

/**
 * Set the function that is told, once a second, that this replica is further behind than its peers
 * remember. It must get a peer's state and what inband_save() made at that very state, and give the
 * latter to inband_restore(); not necessarily within the callback. Until then nothing is delivered.
 *
 * @return as inband_on_deliver().
 */
int inband_on_state_needed(inband_ctx *ctx, inband_state_needed_fn state_needed, void *user);

/**
 * Submit a value. It is copied and sent at once. It ends in exactly one of: a delivery of kind
 * INBAND_NEW with its ticket, or a failure with its ticket, at the latest after
 * host.timing.submit_deadline_ms of running. Values are not ordered by when they were submitted; to
 * order two, submit the second when the first is delivered.
 *
 * @param value            May be NULL if the length is 0.
 * @param value_len_bytes  0 to INBAND_VALUE_LEN_MAX_BYTES.
 * @param ticket           Where the ticket is put, from 1, never used again in this context. May be
 *                         NULL.
 * @return INBAND_OK, INBAND_ERR_ARGUMENT, INBAND_ERR_TOO_LONG, INBAND_ERR_WINDOW_FULL,
 *         INBAND_ERR_NOT_REPLICA or INBAND_ERR_BUSY; on an error nothing was sent.
 */
int inband_submit(inband_ctx *ctx, const void *value, size_t value_len_bytes, uint64_t *ticket);

/** How many more values may be submitted now, 0 to INBAND_WINDOW_VALUES; or an error. */
int inband_room(inband_ctx *ctx);

/**
 * Find out what was decided in an instance, or decide a no-op there. The answer is one delivery of
 * that instance, or a failure:
 * - an instance that was handed over before: INBAND_REPLAY or INBAND_NOOP, with the next run;
 * - a later one: in its order, as INBAND_NEW if the value in it is new, else as INBAND_REPLAY or
 *   INBAND_NOOP. All instances before it are closed as well, by asking for what they hold and then
 *   by deciding no-ops.
 * Other replicas deliver what is new, and nothing for a no-op. An instance that is asked for again
 * before its answer has one answer.
 *
 * @param instance        From 1 to the ring's size (cluster.ring_slots) above inband_applied().
 * @param noop            May be NULL if the length is 0.
 * @param noop_len_bytes  0 to INBAND_VALUE_LEN_MAX_BYTES.
 * @return INBAND_OK, INBAND_ERR_ARGUMENT, INBAND_ERR_TOO_LONG, INBAND_ERR_WINDOW_FULL,
 *         INBAND_ERR_NOT_REPLICA, INBAND_ERR_TRIMMED, INBAND_ERR_TOO_FAR_AHEAD or INBAND_ERR_BUSY.
 */
int inband_recover(inband_ctx *ctx, uint64_t instance, const void *noop, size_t noop_len_bytes);

/**
 * Run the host and call the callbacks, until inband_stop().
 *
 * @return INBAND_OK once stopped; else INBAND_ERR_ARGUMENT, INBAND_ERR_BUSY,
 *         INBAND_ERR_STATE_NEEDED or INBAND_ERR_INTERNAL.
 */
int inband_run(inband_ctx *ctx);

/**
 * Do what is ready and call the callbacks for it; if there is nothing, wait for it. A host takes
 * part in the cluster only while it runs: call this again without delay.
 *
 * @param timeout_ms  Longest wait in milliseconds; 0: none, -1: without limit.
 * @return How many callbacks were called, 0 if the time passed; or INBAND_ERR_STOPPED,
 *         INBAND_ERR_ARGUMENT, INBAND_ERR_BUSY, INBAND_ERR_STATE_NEEDED, INBAND_ERR_INTERNAL.
 */
int inband_run_once(inband_ctx *ctx, int timeout_ms);

/**
 * Make the current inband_run() return INBAND_OK, or the current inband_run_once()
 * INBAND_ERR_STOPPED, after the callback it may be in; without one, the next. What was decided and
 * not delivered yet is delivered by the run after that. From any thread, callback or signal
 * handler; keeps errno. The context must not be freed meanwhile. NULL is ignored.
 */
void inband_stop(inband_ctx *ctx);

/**
 * Write down the position in the log, to be kept with the application's state: what is applied, and
 * what makes deliveries exactly-once. In a deliver callback of kind INBAND_NEW the position
 * includes that value: apply it first. Equal on all replicas at equal positions.
 *
 * @param buffer          May be NULL if the capacity is 0.
 * @param capacity_bytes  Bytes that fit the buffer.
 * @return The length of the position in bytes, at least 16. If that is more than the capacity,
 *         nothing was written: call again with a larger buffer before anything else. Or an error:
 *         INBAND_ERR_ARGUMENT, INBAND_ERR_BUSY, INBAND_ERR_INTERNAL.
 */
int64_t inband_save(inband_ctx *ctx, void *buffer, size_t capacity_bytes);

/**
 * Continue behind a state copied from a peer. The application's state must be the one that was
 * saved with it. What was submitted here and decided in between ends as INBAND_IN_RESTORED_STATE.
 *
 * @return INBAND_OK, INBAND_ERR_ARGUMENT, INBAND_ERR_SAVED_DAMAGED, INBAND_ERR_SAVED_TOO_OLD or
 *         INBAND_ERR_BUSY.
 */
int inband_restore(inband_ctx *ctx, const void *saved, size_t saved_len_bytes);

/**
 * Last instance handed over; 0: none, or `ctx` is NULL or in use. During a delivery of kind
 * INBAND_NEW it is that one's.
 */
uint64_t inband_applied(inband_ctx *ctx);

/**
 * Where the packet roles of this host run and why, for people: "udp: no host.interface is
 * configured". Valid until the context is freed; "" if `ctx` is NULL.
 */
const char *inband_dataplane_used(inband_ctx *ctx);

/**
 * What was wrong with the last failed call on this thread, in words; "" if none failed. Valid until
 * the next call on this thread that fails.
 */
const char *inband_last_error(void);

/** Version of the library, as INBAND_VERSION. */
const char *inband_version(void);

#ifdef __cplusplus
}
#endif

#endif /* INBAND_H */
