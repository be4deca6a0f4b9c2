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
