//! Every limit of this crate in one place, units in the names.

use crate::dataplane as flair;
use inband_ground::wire::VALUE_LEN_MAX_BYTES;

/// Longest key.
pub const KEY_LEN_BYTES_MAX: usize = 1024;
/// Longest key and data together: what one packet carries.
pub const KEY_AND_DATA_LEN_BYTES_MAX: usize = VALUE_LEN_MAX_BYTES;
/// Replica sets of a cluster.
pub const SETS_MAX: usize = 8;
/// Replicas of a set.
pub const REPLICAS_MAX: usize = flair::REPLICAS_MAX;
/// Switches that a replica set can be served by.
pub const SWITCHES_MAX: usize = 8;
/// Writes that a leader has proposed and not yet applied; more are dropped, and sent again by their clients.
pub const PENDING_WRITES_MAX: usize = 1 << 16;
/// Requests of one client under way.
pub const CLIENT_REQUESTS_MAX: usize = 1024;
/// From the oldest write of a client that has not ended to its last one. Replicas remember as many.
pub const CLIENT_WINDOW_MAX: usize = 4000;
const _: () = assert!(CLIENT_WINDOW_MAX < inband_host::session::SEQUENCES_ABOVE_LOW_MAX);
/// Reads that wait at a leader; more are dropped, and sent again by their clients.
pub const WAITING_READS_MAX: usize = 1 << 16;
/// A replica that lacks no more entries than this is about to have them.
pub const AHEAD_ENTRIES_MAX: u64 = 64;
/// Confirmations that a leader waits for at a time.
pub const CONFIRMATIONS_MAX: usize = 16;
/// The gateway: clients at once.
pub const GATEWAY_CLIENTS_MAX: usize = 4096;
/// The gateway: memory that all clients together make it hold; over it the client with most is closed.
pub const GATEWAY_MEMORY_BYTES_MAX: usize = 256 << 20;
/// The gateway: requests of one client that are not answered; more are not read.
pub const GATEWAY_PENDING_MAX: usize = 1024;
/// The gateway: operations of these.
pub const GATEWAY_STEPS_MAX: usize = 1024;
/// The gateway: bytes of these. A request that is longer alone is taken if it is the only one.
pub const GATEWAY_PENDING_BYTES_MAX: usize = 512 << 10;
/// The gateway: bytes of answers that wait for one client to read them; then its requests are not read.
pub const GATEWAY_OUTPUT_BYTES_MAX: usize = 1 << 20;
/// The gateway: bytes read of one client before others get a turn.
pub const GATEWAY_READ_BUDGET_BYTES: usize = 64 << 10;
/// The gateway: keys of one command.
pub const GATEWAY_KEYS_MAX: usize = 4096;
/// Clocks of two machines run apart by less than this, in parts per million.
pub const CLOCK_DRIFT_PPM_MAX: u64 = 10_000;
