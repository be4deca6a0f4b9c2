//! Limits of requests, units in the names.

/// Longest request (all arguments together) that is read into memory. A longer one is skipped as it
/// arrives and answered with an error.
pub const REQUEST_LEN_BYTES_MAX: usize = (1024 + 128) * 1024;

/// Longest argument a request may announce at all, as in Redis.
pub const BULK_LEN_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Most arguments a request may announce, as in Redis.
pub const REQUEST_ARGUMENTS_MAX: usize = 1024 * 1024;

/// Longest inline command, as in Redis.
pub const INLINE_LEN_BYTES_MAX: usize = 64 * 1024;

/// Most requests whose sequence of arguments keeps its memory, in arguments.
pub const IDLE_ARGUMENTS_MAX: usize = 4096;

/// Most arguments of a request before the password was said, as in Redis.
pub const UNTRUSTED_ARGUMENTS_MAX: usize = 10;

/// Longest argument before the password was said, as in Redis.
pub const UNTRUSTED_BULK_LEN_BYTES_MAX: usize = 16 * 1024;

/// A connection's buffer that has held more gives its memory back when it is empty.
pub const IDLE_BUFFER_BYTES_MAX: usize = 64 * 1024;

/// Longest password.
pub const PASSWORD_LEN_BYTES_MAX: usize = 512;

/// Connections accepted from one listener in one turn.
pub const ACCEPTS_PER_TURN_MAX: usize = 64;

/// TCP asks for a sign of life of a client that was silent for so long.
pub const KEEPALIVE_IDLE_S: u32 = 120;

/// Then again so often,
pub const KEEPALIVE_INTERVAL_S: u32 = 30;

/// and gives the client up after so many questions without an answer.
pub const KEEPALIVE_PROBES: u32 = 3;

/// Between two looks for clients whose time-outs have run out.
pub const STUCK_CLIENTS_PERIOD_MS: u64 = 250;

/// A client that has not said the password so long after it came is closed.
pub const AUTHENTICATION_MS_MAX: u64 = 30_000;

/// A client that takes nothing of its replies for so long is closed, unless configured otherwise.
pub const UNREAD_MS_MAX: u64 = 60_000;

/// A client whose request has not ended so long after it began is closed, unless configured otherwise.
pub const INCOMPLETE_REQUEST_MS_MAX: u64 = 60_000;
