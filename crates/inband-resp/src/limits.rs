//! Limits of requests, with units in the names.

/// Longest request (all arguments together) that is read into memory. A longer one is skipped as it arrives and
/// answered with an error.
pub const REQUEST_LEN_BYTES_MAX: usize = (1024 + 128) * 1024;

/// Longest argument that a request may announce, as in Redis.
pub const BULK_LEN_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Most arguments that a request may announce, as in Redis.
pub const REQUEST_ARGUMENTS_MAX: usize = 1024 * 1024;

/// Longest inline command, as in Redis.
pub const INLINE_LEN_BYTES_MAX: usize = 64 * 1024;

/// Number of arguments up to which a parser retains its memory between requests.
pub const IDLE_ARGUMENTS_MAX: usize = 4096;

/// Most arguments of an unauthenticated request, as in Redis.
pub const UNTRUSTED_ARGUMENTS_MAX: usize = 10;

/// Longest argument of an unauthenticated request, as in Redis.
pub const UNTRUSTED_BULK_LEN_BYTES_MAX: usize = 16 * 1024;

/// A connection's buffer that has held more than this releases its memory when it is empty.
pub const IDLE_BUFFER_BYTES_MAX: usize = 64 * 1024;

pub const PASSWORD_LEN_BYTES_MAX: usize = 512;

/// Most connections accepted from one listener in one turn.
pub const ACCEPTS_PER_TURN_MAX: usize = 64;

/// TCP keepalive: a client silent for this long is probed,
pub const KEEPALIVE_IDLE_S: u32 = 120;

/// then again at this interval,
pub const KEEPALIVE_INTERVAL_S: u32 = 30;

/// and disconnected after this many unanswered probes.
pub const KEEPALIVE_PROBES: u32 = 3;

/// Interval between checks of clients' timeouts.
pub const TIMEOUTS_CHECK_PERIOD_MS: u64 = 250;

/// A client that has not authenticated within this time is disconnected.
pub const AUTHENTICATION_MS_MAX: u64 = 30_000;

/// A client that reads none of its replies for this long is disconnected, unless configured otherwise.
pub const UNREAD_MS_MAX: u64 = 60_000;

/// A client whose request is incomplete for this long is disconnected, unless configured otherwise.
pub const INCOMPLETE_REQUEST_MS_MAX: u64 = 60_000;
