/*
 * inband.h - consensus at packet speed: submit, deliver, recover.
 *
 * The C library of Inband. It provides the application interface of CAANS ("Consensus as a Network
 * Service", Figure 4) for programs that keep their own state: a program submits values, and all
 * submitted values are delivered to every program that is a replica of the same cluster, in the
 * same order, each exactly once.
 *
 * A context is one host of a cluster, described by a configuration file. Its packet roles run in
 * the kernel or, without any privilege, in this process.
 *
 * Threads. Only one thread may use a context at a time; it may be handed over to another thread
 * like any other memory. Only inband_stop() may be called from any thread, and from a signal
 * handler. Different contexts are independent. A call from a second thread while another one is
 * inside the library with the same context fails with INBAND_ERR_BUSY.
 *
 * Callbacks are called only from inside inband_run() and inband_run_once(), on the thread that
 * called it. A callback may call every function except inband_run(), inband_run_once() and
 * inband_free(). Pointers passed to a callback are valid until it returns. A callback must return:
 * no longjmp, no C++ exception.
 *
 * Errors. Functions that return int return 0 or more on success and one of enum inband_error
 * otherwise; inband_last_error() then returns a message.
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

/** Version of this header; inband_version() returns that of the library. */
#define INBAND_VERSION "0.1.0"

/** Maximum length of a value in bytes: what fits in one packet with an MTU of 1500 bytes. */
#define INBAND_VALUE_LEN_MAX_BYTES 1376

/** Maximum number of values in flight per context: submitted, but not ended. */
#define INBAND_WINDOW_VALUES 1024

/** Maximum number of recoveries in flight per context. */
#define INBAND_RECOVERIES_OPEN_MAX 1024

/** One host of a cluster. Opaque. */
typedef struct inband_ctx inband_ctx;

/** Return values. After any error except INBAND_ERR_INTERNAL the context is unchanged. */
enum inband_error {
    /** Done. */
    INBAND_OK = 0,
    /** An argument is NULL or out of range, or a required callback is not set. Correct the call;
        the message names the argument. */
    INBAND_ERR_ARGUMENT = -1,
    /** The configuration cannot be read or has a mistake. Correct it; the message names the file,
        the line, the value found and the values allowed. */
    INBAND_ERR_CONFIG = -2,
    /** The UDP address of this host cannot be bound. Stop the process that uses it, or correct the
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
    /** INBAND_WINDOW_VALUES values, or INBAND_RECOVERIES_OPEN_MAX recoveries, are in flight. Run
        until some have ended, then retry. */
    INBAND_ERR_WINDOW_FULL = -7,
    /** This host is not a replica: it learns nothing and so cannot submit or recover. Use a host
        whose node has the role "replica". */
    INBAND_ERR_NOT_REPLICA = -8,
    /** The instance was delivered long ago and is no longer stored here. Use the application's own
        state. */
    INBAND_ERR_TRIMMED = -9,
    /** The instance is beyond the acceptors' rings. Recover lower ones first; the message names the
        limit. */
    INBAND_ERR_TOO_FAR_AHEAD = -10,
    /** The bytes were not written by inband_save(), or were damaged since. Use another copy. */
    INBAND_ERR_SAVED_DAMAGED = -11,
    /** The saved position is older than what has already been delivered. Use a newer one, or
        continue without. */
    INBAND_ERR_SAVED_TOO_OLD = -12,
    /** The context is in use: by another thread, or by the run that called this callback. Use the
        context in one thread; from a callback, return first. */
    INBAND_ERR_BUSY = -13,
    /** inband_stop() was called. Not an error: leave the loop around inband_run_once(). */
    INBAND_ERR_STOPPED = -14,
    /** This replica needs a peer's state to continue, and no state-needed callback is set. Set one,
        or restore; then run again. */
    INBAND_ERR_STATE_NEEDED = -15,
    /** A bug in the library; the context can only be freed. Please report the message. */
    INBAND_ERR_INTERNAL = -99
};

/** Where the packet roles of a host run. */
enum inband_dataplane {
    /** According to host.dataplane in the configuration. */
    INBAND_DATAPLANE_CONFIGURED = 0,
    /** The best one that works here. */
    INBAND_DATAPLANE_AUTO = 1,
    /** In the kernel, in the interface's driver. */
    INBAND_DATAPLANE_XDP = 2,
    /** In the kernel, after the driver: works on any interface, but is slower. */
    INBAND_DATAPLANE_XDP_GENERIC = 3,
    /** In this process, over a UDP socket: needs no privilege. */
    INBAND_DATAPLANE_UDP = 4
};

/** Kinds of deliveries. */
enum inband_kind {
    /** A value that was not delivered before: apply it. These are in order of their instances, each
        submitted value once, the same on all replicas. Their instances are not consecutive, because
        some hold nothing for the application. */
    INBAND_NEW = 0,
    /** Answer to inband_recover(): the value of the instance. Do not apply it: it was delivered
        before, or never takes effect. */
    INBAND_REPLAY = 1,
    /** Answer to inband_recover(): the instance holds no application's value, and never will. The
        value is the no-op that was decided. It may be another replica's, and is empty if the
        library itself proposed it. */
    INBAND_NOOP = 2
};

/** A value delivered to the application. */
typedef struct inband_delivery {
    /** The instance it was decided in, from 1. */
    uint64_t instance;
    /** The ticket from inband_submit(), if this context submitted it and the kind is INBAND_NEW;
        otherwise 0. Also 0 if the submission was reported with an unknown outcome before. */
    uint64_t ticket;
    /** The value; not NUL-terminated. Never NULL. */
    const char *value;
    /** Its length in bytes, 0 to INBAND_VALUE_LEN_MAX_BYTES. */
    size_t value_len_bytes;
    /** One of enum inband_kind. */
    int kind;
} inband_delivery;

/** How a submission or a recovery ended without a delivery. */
enum inband_outcome {
    /** The value was not applied and never will be. Submit it again if it is still needed. */
    INBAND_NOT_APPLIED = 0,
    /** No decision within host.timing.submit_deadline_ms. The value may have been applied, may be
        applied later (and is then delivered with ticket 0), or may never be. Check the state before
        you submit it again. For a recovery: recover again. */
    INBAND_OUTCOME_UNKNOWN = 1,
    /** The restored state already includes the value or the instance. */
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
    /** The outcome as a message. */
    const char *message;
} inband_failure;

/** See inband_on_deliver(). `user` is the pointer passed there. */
typedef void (*inband_deliver_fn)(inband_ctx *ctx, const inband_delivery *delivery, void *user);

/** See inband_on_failed(). */
typedef void (*inband_failed_fn)(inband_ctx *ctx, const inband_failure *failure, void *user);

/** See inband_on_state_needed(). */
typedef void (*inband_state_needed_fn)(inband_ctx *ctx, void *user);

/**
 * Start a host: reads its configuration, binds its address, and starts its packet roles.
 *
 * @param config_path      The host's configuration file (TOML), the same as for `inband run`.
 * @param dataplane        One of enum inband_dataplane; overrides the file.
 * @param saved            The output of inband_save(), if the application has state; otherwise
 *                         NULL, and the application starts with an empty state.
 * @param saved_len_bytes  Its length in bytes; 0 if `saved` is NULL.
 * @param ctx              Set to the context; NULL on failure.
 * @return INBAND_OK, INBAND_ERR_ARGUMENT, INBAND_ERR_CONFIG, INBAND_ERR_ADDRESS,
 *         INBAND_ERR_STATE_DIR, INBAND_ERR_DATAPLANE or INBAND_ERR_SAVED_DAMAGED.
 */
int inband_create(const char *config_path, int dataplane, const void *saved, size_t saved_len_bytes,
                  inband_ctx **ctx);

/**
 * Stop a host: closes its socket, unloads its packet programs, and frees all memory. Submissions in
 * flight get no outcome; they may still be decided. NULL is ignored. In a callback this does
 * nothing.
 */
void inband_free(inband_ctx *ctx);

/**
 * Set the callback for decided values. A replica must have one before it runs.
 *
 * @param deliver  The callback; NULL for none.
 * @param user     Passed to `deliver`.
 * @return INBAND_OK, INBAND_ERR_ARGUMENT or INBAND_ERR_BUSY.
 */
int inband_on_deliver(inband_ctx *ctx, inband_deliver_fn deliver, void *user);

/**
 * Set the callback for submissions and recoveries that end without a delivery. Without it they end
 * silently.
 *
 * @return Like inband_on_deliver().
 */
int inband_on_failed(inband_ctx *ctx, inband_failed_fn failed, void *user);

/**
 * Set the callback that is called every second while this replica is too far behind for its peers'
 * logs. The application must copy a peer's state and the output of inband_save() at exactly that
 * state, and pass the latter to inband_restore(), in the callback or later. Until then nothing is
 * delivered.
 *
 * @return Like inband_on_deliver().
 */
int inband_on_state_needed(inband_ctx *ctx, inband_state_needed_fn state_needed, void *user);

/**
 * Submit a value. It is copied and sent immediately. It ends with exactly one of: a delivery of
 * kind INBAND_NEW with its ticket, or a failure with its ticket, at the latest after
 * host.timing.submit_deadline_ms of running. The order of values is not the order of their
 * submission; to order two, submit the second one after the first was delivered.
 *
 * @param value            May be NULL if the length is 0.
 * @param value_len_bytes  0 to INBAND_VALUE_LEN_MAX_BYTES.
 * @param ticket           Set to the ticket, which is at least 1 and never reused in this context.
 *                         May be NULL.
 * @return INBAND_OK, INBAND_ERR_ARGUMENT, INBAND_ERR_TOO_LONG, INBAND_ERR_WINDOW_FULL,
 *         INBAND_ERR_NOT_REPLICA or INBAND_ERR_BUSY; on an error nothing was sent.
 */
int inband_submit(inband_ctx *ctx, const void *value, size_t value_len_bytes, uint64_t *ticket);

/** How many more values may be submitted now, 0 to INBAND_WINDOW_VALUES; or an error. */
int inband_room(inband_ctx *ctx);

/**
 * Find out what was decided in an instance, or decide a no-op there. The answer is one delivery of
 * that instance, or a failure:
 * - for an instance that was delivered before: INBAND_REPLAY or INBAND_NOOP, in the next run;
 * - for a later one: in order, as INBAND_NEW if its value is new, otherwise as INBAND_REPLAY or
 *   INBAND_NOOP. All instances before it are closed as well, by querying their values and then by
 *   deciding no-ops.
 * Other replicas deliver new values, and nothing for a no-op. If an instance is requested again
 * before its answer, there is only one answer.
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
 * Process everything that is ready and call the callbacks for it. If there is nothing, wait. A host
 * participates in the cluster only while it runs: call this again without delay.
 *
 * @param timeout_ms  Maximum wait in milliseconds; 0: do not wait, -1: no limit.
 * @return The number of callbacks called, 0 on timeout; or INBAND_ERR_STOPPED,
 *         INBAND_ERR_ARGUMENT, INBAND_ERR_BUSY, INBAND_ERR_STATE_NEEDED, INBAND_ERR_INTERNAL.
 */
int inband_run_once(inband_ctx *ctx, int timeout_ms);

/**
 * Make the current inband_run() return INBAND_OK, or the current inband_run_once() return
 * INBAND_ERR_STOPPED, after any callback in progress. If none is running, this affects the next
 * run. Values that are decided but not delivered yet are delivered by the run after that. May be
 * called from any thread, callback or signal handler; preserves errno. The context must not be
 * freed concurrently. NULL is ignored.
 */
void inband_stop(inband_ctx *ctx);

/**
 * Save the position in the log: what is applied, and the data that makes deliveries exactly-once.
 * Store it together with the application's state. In a deliver callback of kind INBAND_NEW the
 * position includes that value: apply it first. The bytes are equal on all replicas at equal
 * positions.
 *
 * @param buffer          May be NULL if the capacity is 0.
 * @param capacity_bytes  Size of the buffer.
 * @return The length of the position in bytes, at least 16. If that exceeds the capacity, nothing
 *         was written: call again with a larger buffer before anything else. Or an error:
 *         INBAND_ERR_ARGUMENT, INBAND_ERR_BUSY, INBAND_ERR_INTERNAL.
 */
int64_t inband_save(inband_ctx *ctx, void *buffer, size_t capacity_bytes);

/**
 * Continue from a state copied from a peer. The application's state must be the one that was saved
 * with it. Submissions from here that were decided in between end as INBAND_IN_RESTORED_STATE.
 *
 * @return INBAND_OK, INBAND_ERR_ARGUMENT, INBAND_ERR_SAVED_DAMAGED, INBAND_ERR_SAVED_TOO_OLD or
 *         INBAND_ERR_BUSY.
 */
int inband_restore(inband_ctx *ctx, const void *saved, size_t saved_len_bytes);

/**
 * The last instance delivered; 0 if there is none, or if `ctx` is NULL or in use. During a delivery
 * of kind INBAND_NEW it is that delivery's instance.
 */
uint64_t inband_applied(inband_ctx *ctx);

/**
 * Where the packet roles of this host run, and why, as text: "udp: no host.interface is
 * configured". Valid until the context is freed; "" if `ctx` is NULL.
 */
const char *inband_dataplane_used(inband_ctx *ctx);

/**
 * The message of the last failed call on this thread; "" if none failed. Valid until the next call
 * on this thread that fails.
 */
const char *inband_last_error(void);

/** Version of the library, in the format of INBAND_VERSION. */
const char *inband_version(void);

#ifdef __cplusplus
}
#endif

#endif /* INBAND_H */
