//! Limits. Names contain the units.

use std::ops::RangeInclusive;

/// Possible numbers of nodes in a cluster.
pub const NODE_COUNTS: [usize; 4] = [3, 4, 5, 7];
/// Maximum length of a key, as in memcached.
pub const KEY_LEN_BYTES_MAX: usize = 250;
/// Maximum length of a value, as memcached's default.
pub const VALUE_LEN_BYTES_MAX: usize = 1 << 20;
/// Maximum length of a command in the log.
pub const COMMAND_LEN_BYTES_MAX: usize = VALUE_LEN_BYTES_MAX + 1024;
/// Maximum part of the command stream in one record.
pub const RECORD_LEN_BYTES_MAX: usize = crate::RECORD_LEN_MAX_BYTES;
/// Maximum length of a request's line without its data, as in memcached; only `get` and `gets` may be longer.
pub const LINE_LEN_BYTES_MAX: usize = 2048;
/// Maximum length of a `get` line.
pub const GET_LINE_LEN_BYTES_MAX: usize = 1 << 20;
/// Default size of the table.
pub const TABLE_BYTES_DEFAULT: u64 = 64 << 20;
/// Default number of log records that a node keeps.
pub const LOG_RECORDS_DEFAULT: usize = 1 << 16;
/// Gateway: default of the maximum number of concurrent clients.
pub const CLIENTS_MAX: usize = 10_000;
/// Gateway: values that the maximum number of concurrent clients may have.
pub const CLIENTS_MAX_RANGE: RangeInclusive<u64> = 1..=100_000;
/// Gateway: maximum memory that all clients together may make it hold; above that, the client with the most is closed.
pub const CLIENTS_MEMORY_BYTES_MAX: usize = 512 << 20;
/// Gateway: what an allocation takes beside its contents, at most, in glibc: its header, and the rounding.
pub const ALLOCATION_OVERHEAD_BYTES: usize = 24;
/// Gateway: maximum number of unanswered commands per client; beyond that its requests are not read.
pub const CLIENT_COMMANDS_MAX: usize = 1024;
/// Gateway: maximum bytes of answers that a client has not read; beyond that its requests are not read.
pub const CLIENT_OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Gateway: bytes of answers to reads in one turn; then other reads wait for the next turn, so that everything else does not
/// wait for them.
pub const READS_PER_TURN_BYTES_MAX: usize = 1 << 20;
/// Gateway: bytes read from one client before others get a turn.
pub const CLIENT_READ_BYTES_MAX: usize = 64 << 10;
/// Gateway: maximum number of records submitted but not applied; beyond that no write is begun.
pub const RECORDS_UNDER_WAY_MAX: u64 = 4096;
/// Gateway: records in flight from which on later writes wait for one of them, and then share a record.
pub const RECORDS_BEFORE_GATHERING: u64 = 2;
/// Gateway: how often clients' timeouts are checked.
pub const TIMEOUT_CHECK_PERIOD_MS: u64 = 250;
/// Gateway: a client whose request has not been answered for this long is closed, since there is no quorum.
pub const UNANSWERED_MS_MAX: u64 = 10_000;
/// Gateway: datagrams read before others get a turn.
pub const DATAGRAMS_PER_TURN_MAX: usize = 256;
/// Gateway: maximum number of unanswered requests in datagrams; more are dropped.
pub const DATAGRAMS_UNDER_WAY_MAX: usize = 4096;
/// Gateway: a client that has read nothing of its replies for this long is closed.
pub const UNREAD_MS_MAX: u64 = 60_000;
/// Gateway: a client whose request is still incomplete after this time is closed.
pub const INCOMPLETE_REQUEST_MS_MAX: u64 = 60_000;
