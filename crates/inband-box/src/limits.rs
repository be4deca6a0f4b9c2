//! Limits, units in the names.

/// How many nodes a cluster may have.
pub const NODE_COUNTS: [usize; 4] = [3, 4, 5, 7];
/// Longest key, as in memcached.
pub const KEY_LEN_BYTES_MAX: usize = 250;
/// Longest value, as memcached's default.
pub const VALUE_LEN_BYTES_MAX: usize = 1 << 20;
/// Longest command in the log.
pub const COMMAND_LEN_BYTES_MAX: usize = VALUE_LEN_BYTES_MAX + 1024;
/// Longest part of the command stream in one record.
pub const RECORD_LEN_BYTES_MAX: usize = crate::RECORD_LEN_MAX_BYTES;
/// Longest line of a request without its data, as in memcached; only `get` and `gets` may be longer.
pub const LINE_LEN_BYTES_MAX: usize = 2048;
/// Longest line of a `get`.
pub const GET_LINE_LEN_BYTES_MAX: usize = 1 << 20;
/// The table's memory unless the user says otherwise.
pub const TABLE_BYTES_DEFAULT: u64 = 64 << 20;
/// Records of the log that a node keeps unless the user says otherwise.
pub const LOG_RECORDS_DEFAULT: usize = 1 << 16;
/// A gateway: clients at once.
pub const CLIENTS_MAX: usize = 10_000;
/// A gateway: memory that all clients together make it hold; over it the client with most is closed.
pub const CLIENTS_MEMORY_BYTES_MAX: usize = 512 << 20;
/// A gateway: commands of one client that are not answered; more are not read.
pub const CLIENT_COMMANDS_MAX: usize = 1024;
/// A gateway: bytes of answers that wait for one client to read them; then its requests are not read.
pub const CLIENT_OUTPUT_BYTES_MAX: usize = 4 << 20;
/// A gateway: bytes read of one client before others get a turn.
pub const CLIENT_READ_BYTES_MAX: usize = 64 << 10;
/// A gateway: records that are submitted and not applied; then no write is begun.
pub const RECORDS_UNDER_WAY_MAX: u64 = 4096;
/// A gateway: records under way before later writes wait for one of them, and then share a record.
pub const RECORDS_BEFORE_GATHERING: u64 = 2;
/// A gateway: between two looks for clients whose time-outs have run out.
pub const STUCK_CLIENTS_PERIOD_MS: u64 = 250;
/// A gateway: a client whose request is not answered for so long is closed: no quorum is there.
pub const UNANSWERED_MS_MAX: u64 = 10_000;
/// A gateway: datagrams that are read before others get a turn.
pub const DATAGRAMS_PER_TURN_MAX: usize = 256;
/// A gateway: requests in datagrams that are not answered; more are dropped.
pub const DATAGRAMS_UNDER_WAY_MAX: usize = 4096;
/// A gateway: a client that takes nothing of its replies for so long is closed.
pub const UNREAD_MS_MAX: u64 = 60_000;
/// A gateway: a client whose request has not ended so long after it began is closed.
pub const INCOMPLETE_REQUEST_MS_MAX: u64 = 60_000;
