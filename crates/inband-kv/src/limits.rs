//! Every limit of this crate in one place, units in the names.
//!
//! Limits marked *replicated* take part in what a log means: all replicas of a cluster must run
//! with the same number, so they are constants and not configuration.

/// Longest value of a key. *Replicated.*
pub const STORED_VALUE_LEN_BYTES_MAX: usize = 1024 * 1024;

/// Longest key that is stored. What is stored can so be exported and set again.
pub const KEY_LEN_BYTES_MAX: usize = 32 * 1024;

/// Longest encoded command: a value and its key. One that does not fit a value of the log is sent
/// in chunks. *Replicated.*
pub const COMMAND_LEN_BYTES_MAX: usize = STORED_VALUE_LEN_BYTES_MAX + 64 * 1024;

/// Most commands of which some chunks are there and others missing, in one log; beginning one more
/// drops the oldest. *Replicated.*
pub const TRANSFERS_MAX: usize = 32;

/// A command of which chunks are missing for longer, by replicated time, is dropped: its proposer is
/// gone. *Replicated.*
pub const TRANSFER_AGE_MS_MAX: u64 = 60 * 1000;

/// Most commands that one replica sends in chunks to one log at a time.
pub const TRANSFERS_PER_REPLICA_MAX: usize = 4;

/// Of what the log's window takes, one in so many values may be a chunk.
pub const WINDOW_PER_CHUNKS: usize = 4;

/// Longest value that `APPEND` makes in a log that programs of value version 1 can still follow.
/// *Replicated.*
pub const APPENDED_LEN_BYTES_MAX_V1: usize = 64 * 1024;

/// Most named client sessions (`INBAND.SESSION`); opening one more expires the one that has been
/// idle for longest. *Replicated.*
pub const CLIENT_SESSIONS_MAX: usize = 1024;

/// A named client session that was idle for longer, by replicated time, is expired. *Replicated.*
pub const CLIENT_SESSION_IDLE_MS_MAX: u64 = 60 * 60 * 1000;

/// Most stored replies of one client session; the oldest is forgotten first. *Replicated.*
pub const CLIENT_SESSION_REPLIES_MAX: usize = 256;

/// Most bytes of stored replies of one client session; the oldest is forgotten first, the newest is
/// always kept. *Replicated.*
pub const CLIENT_SESSION_REPLY_BYTES_MAX: usize = 128 * 1024;

/// Most bytes of stored replies of all client sessions of one partition; over it the sessions that
/// were idle for longest expire. *Replicated.*
pub const CLIENT_SESSIONS_REPLY_BYTES_MAX: usize =
    CLIENT_SESSIONS_MAX * CLIENT_SESSION_REPLY_BYTES_MAX;

/// A longer reply to a command that only reads is not stored: a retry reads again. *Replicated.*
pub const CLIENT_SESSION_READ_REPLY_BYTES_MAX: usize = 4 * 1024;

/// Most idle client sessions expired by one log entry. *Replicated.*
pub const CLIENT_SESSIONS_EXPIRED_PER_ENTRY_MAX: usize = 16;

/// Most expired keys deleted by a log entry that carries commands. *Replicated.*
pub const EXPIRED_KEYS_PER_ENTRY_MAX: usize = 32;

/// Most expired keys deleted by a tick, a log entry without commands. *Replicated.*
pub const EXPIRED_KEYS_PER_TICK_MAX: usize = 1024;

/// A replica proposes a tick when nothing was delivered for this long and a key is due to expire.
pub const TICK_IDLE_MS: u64 = 500;

/// The same while a tick left expired keys behind.
pub const TICK_BACKLOG_MS: u64 = 20;

/// How much later each further replica proposes a tick, so that one of them does it for all.
pub const TICK_STAGGER_MS: u64 = 100;

/// Bytes of recently used records kept in memory beside RocksDB's own caches, all partitions
/// together.
pub const RECORD_CACHE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// RocksDB: size of one memtable of the data column family.
pub const ROCKSDB_WRITE_BUFFER_BYTES: usize = 32 * 1024 * 1024;

/// RocksDB: size of the shared block cache.
pub const ROCKSDB_BLOCK_CACHE_BYTES: usize = 32 * 1024 * 1024;

/// RocksDB: background threads for flushing and compaction.
pub const ROCKSDB_BACKGROUND_JOBS: i32 = 2;

/// RocksDB: write-ahead log kept before old memtables are flushed.
pub const ROCKSDB_WAL_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// What is applied is written to RocksDB when it is so many instances of one log: many at once cost
/// less, and values that are overwritten in between are never written.
pub const UNWRITTEN_INSTANCES_MAX: u64 = 128;

/// What is applied is written to RocksDB after so long at the latest.
pub const UNWRITTEN_AGE_MS_MAX: u64 = 10;

/// How long somebody who reads the stores from outside waits for what is applied to be written.
pub const UNWRITTEN_WAIT_MS_MAX: u64 = 5_000;

/// Bytes read from one socket before the others get their turn.
pub const READ_BUDGET_BYTES: usize = 64 * 1024;

/// Most unanswered commands of one connection; over it the socket is not read.
pub const PENDING_COMMANDS_MAX: usize = 1024;

/// Most bytes of unanswered commands of one connection; over it the socket is not read.
pub const PENDING_COMMAND_BYTES_MAX: usize = 256 * 1024;

/// Over this many unsent reply bytes a connection's commands are not executed and it is not read.
pub const OUTPUT_SOFT_BYTES_MAX: usize = 256 * 1024;

/// Most bytes of commands of one connection that are undecided or being read; over it the socket is not
/// read.
pub const IN_FLIGHT_COMMAND_BYTES_MAX: usize = 1024 * 1024;

/// Over this many unsent reply bytes a connection is closed.
pub const OUTPUT_HARD_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Most memory that all clients together make a replica hold, unless configured otherwise: requests,
/// commands, replies. Over it the client with most is closed.
pub const CLIENTS_MEMORY_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Most keys of one command, or of one transaction: their execution is one step of a loop that serves
/// everybody, and on many hosts votes as well.
pub const REQUEST_KEYS_MAX: usize = 100_000;

/// Memory that a list of reads keeps for the next reads.
pub const IDLE_READS_BYTES_MAX: usize = 1024 * 1024;

/// Most bytes of keys that one connection watches.
pub const WATCHED_BYTES_MAX: usize = 256 * 1024;

/// Most bytes of keys that one `KEYS` returns.
pub const KEYS_REPLY_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Most bytes of values that one `MGET`, and of replies that one `EXEC` returns. *Replicated.*
pub const VALUES_REPLY_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Most reads of one connection in one value: how long their replies are is not known beforehand.
pub const READS_PER_VALUE_MAX: usize = 32;

/// When the replies to what a turn of the loop applies are as long, further reads through the log are
/// refused in it.
pub const READ_REPLIES_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Most keys that one `SCAN` looks at, whatever `COUNT` asks for.
pub const SCAN_COUNT_MAX: usize = 10_000;

/// Below this many values in flight a value is submitted however little is in it; from then on
/// values are filled first.
pub const VALUES_IN_FLIGHT_BEFORE_FILLING: usize = 8;

/// Most values one replica has in flight, whatever the log would take.
pub const VALUES_IN_FLIGHT_MAX: usize = 1024;

/// Longest name a client may give itself.
pub const CLIENT_NAME_LEN_BYTES_MAX: usize = 256;

/// Checkpoint transfer: give up on a peer that is silent for this long.
pub const CHECKPOINT_IO_TIMEOUT_MS: u64 = 10_000;

/// Checkpoint transfer: most peers served at the same time.
pub const CHECKPOINT_TRANSFERS_MAX: usize = 4;

/// Checkpoint transfer: the peer must have asked after so long.
pub const CHECKPOINT_REQUEST_MS_MAX: u64 = 10_000;

/// Checkpoint transfer: bytes a second that must get through, after
/// [`CHECKPOINT_PACE_GRACE_MS`].
pub const CHECKPOINT_BYTES_PER_S_MIN: u64 = 64 * 1024;

/// Checkpoint transfer: how long its pace does not matter.
pub const CHECKPOINT_PACE_GRACE_MS: u64 = 30_000;

/// Checkpoint transfer: most files of one checkpoint.
pub const CHECKPOINT_FILES_MAX: u32 = 1_000_000;

/// Checkpoint transfer: longest file name.
pub const CHECKPOINT_FILE_NAME_LEN_BYTES_MAX: usize = 255;

/// Checkpoint transfer: pause after every peer has failed once.
pub const CHECKPOINT_RETRY_MS: u64 = 500;

/// Most exports that one replica sends at the same time.
pub const EXPORTS_MAX: usize = 4;

/// Longest time that a replica stands still for an export to take its snapshots.
pub const CUT_WAIT_MS_MAX: u64 = 1_000;

/// Export: give up on somebody who is silent for this long.
pub const EXPORT_IO_TIMEOUT_MS: u64 = 30_000;

/// Most commands of one transaction; together they are at most [`COMMAND_LEN_BYTES_MAX`] long.
pub const TRANSACTION_COMMANDS_MAX: usize = 16 * 1024;

/// Bytes of values that one transaction may write; then its commands that write are answered with an error. Small
/// commands write long values: `SETRANGE`, and whatever rewrites a value that is there. *Replicated.*
pub const TRANSACTION_WRITTEN_BYTES_MAX: usize = 32 << 20;

/// What is applied is written to RocksDB when it is so many bytes of values.
pub const UNWRITTEN_BYTES_MAX: usize = 32 << 20;

/// Most keys that one connection watches.
pub const WATCHED_KEYS_MAX: usize = 1024;

/// Commands over several partitions that wait to be executed may take this much memory; then a replica
/// takes no more of them.
pub const SEVERAL_QUEUED_BYTES_MAX: usize = 64 << 20;

/// A partition that decides nothing of what it should for this long is stuck: until it goes on, a replica
/// takes no commands over several partitions, all of which might have to wait for it.
pub const PARTITION_STUCK_MS: u64 = 1_000;

/// A cursor of `SCAN` has no more bits: many clients keep it in a double, as JavaScript does.
pub const SCAN_CURSOR_BITS: u32 = 53;

/// Replicated time may be behind the wall clock by this much when `TTL` is answered beside the log, which
/// alone moves it.
pub const TTL_LAG_MS_MAX: u64 = 10;

/// A replica refuses writes while less than this is free on a disk of its stores, and writes nothing any
/// more while it is less than half.
pub const DISK_FREE_BYTES_MIN: u64 = 128 << 20;

/// On small disks, it keeps one part in so many free instead.
pub const DISK_FREE_SHARE_MIN: u64 = 8;

/// What is delivered of a partition that waits at a marker may take this much memory; then its log delivers no more
/// until it goes on. So may the commands of the log of commands over several partitions, and those that a marker covers
/// at which a partition waits.
pub const DELIVERED_BYTES_MAX: usize = 32 << 20;

/// What was decided and waits for room on a disk may take this much memory; then the replica ends.
pub const UNAPPLIED_BYTES_MAX: usize = 256 << 20;

/// Wall clocks of replicas agree if they are no further apart.
pub const CLOCK_SKEW_MS_MAX: u64 = 1_000;

/// Replicas' cluster times may be so far apart before one steps to the others'.
pub const CLOCK_TOLERANCE_MS: u64 = 20;

/// Cluster time approaches the wall clocks by one part in so many of the time that passes.
pub const CLOCK_SLEW: u64 = 128;

/// A replica that starts and reaches no majority of replicas goes by its own wall clock after so long.
pub const CLOCK_LONE_MS: u64 = 10_000;

/// Such a clock is not believed if it is further ahead of what was applied: a year.
pub const CLOCK_LONE_STEP_MS_MAX: u64 = 366 * 24 * 60 * 60 * 1000;

/// An answer to a question for the time says nothing if it took longer.
pub const CLOCK_ROUND_TRIP_MS_MAX: u64 = 200;

/// Time between such questions until the time is known.
pub const CLOCK_START_PERIOD_MS: u64 = 50;

/// Time between such questions from then on.
pub const CLOCK_PERIOD_MS: u64 = 5_000;

/// A marker that another replica's client needs is submitted by this one as well when it was not
/// seen for this long.
pub const MARKER_REPEAT_MS: u64 = 100;

/// How much later each further replica does so, so that one of them does it for all.
pub const MARKER_STAGGER_MS: u64 = 50;

/// A command and its key fit a request.
const _: () = assert!(COMMAND_LEN_BYTES_MAX < inband_resp::limits::REQUEST_LEN_BYTES_MAX);
