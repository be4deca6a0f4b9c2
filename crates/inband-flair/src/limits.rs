//! All limits of this crate, with units in the names.

use crate::dataplane as flair;
use inband_ground::wire::VALUE_LEN_MAX_BYTES;

pub const KEY_LEN_BYTES_MAX: usize = 1024;
/// Maximum length of key and data together: what fits in one packet.
pub const KEY_AND_DATA_LEN_BYTES_MAX: usize = VALUE_LEN_MAX_BYTES;
/// Maximum replica sets in a cluster.
pub const SETS_MAX: usize = 8;
/// Maximum replicas in a set.
pub const REPLICAS_MAX: usize = flair::REPLICAS_MAX;
/// Maximum switches of a cluster.
pub const SWITCHES_MAX: usize = 8;
/// Writes that a leader has proposed and not yet applied. Further ones are dropped; clients retransmit them.
pub const PENDING_WRITES_MAX: usize = 1 << 16;
/// Requests in flight of one client.
pub const CLIENT_REQUESTS_MAX: usize = 1024;
/// Maximum distance between the oldest write in flight of a client and the newest. Replicas remember this many
/// outcomes.
pub const CLIENT_WINDOW_MAX: usize = 4000;
const _: () = assert!(CLIENT_WINDOW_MAX < inband_host::session::SEQUENCES_ABOVE_LOW_MAX);
/// Reads waiting at a leader. Further ones are dropped; clients retransmit them.
pub const WAITING_READS_MAX: usize = 1 << 16;
/// A replica that lacks at most this many entries is expected to receive them soon.
pub const AHEAD_ENTRIES_MAX: u64 = 64;
/// Outstanding leadership confirmations of a leader.
pub const CONFIRMATIONS_MAX: usize = 16;
pub const GATEWAY_CLIENTS_MAX: usize = 4096;
/// Gateway: memory of all clients together; above this, the client with the most is closed.
pub const GATEWAY_MEMORY_BYTES_MAX: usize = 256 << 20;
/// Gateway: unanswered requests of one client; further ones are not read.
pub const GATEWAY_PENDING_MAX: usize = 1024;
/// Gateway: operations in these requests.
pub const GATEWAY_STEPS_MAX: usize = 1024;
/// Gateway: bytes of these requests. A single longer request is accepted if no other is pending.
pub const GATEWAY_PENDING_BYTES_MAX: usize = 512 << 10;
/// Gateway: unread answers of one client; above this, its requests are not read.
pub const GATEWAY_OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Gateway: bytes read from one client before others get a turn.
pub const GATEWAY_READ_BUDGET_BYTES: usize = 64 << 10;
/// Gateway: keys in one command.
pub const GATEWAY_KEYS_MAX: usize = 4096;
/// Assumed maximum relative drift of two machines' clocks, in parts per million.
pub const CLOCK_DRIFT_PPM_MAX: u64 = 10_000;
