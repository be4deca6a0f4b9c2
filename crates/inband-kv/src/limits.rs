//! Every limit of this crate in one place, units in the names.
//!
//! Limits marked *replicated* affect the meaning of the log: all replicas of a cluster must use the same number, so
//! they are constants and not configuration.

/// Longest value of a key. *Replicated.*
pub const STORED_VALUE_LEN_BYTES_MAX: usize = 1024 * 1024;

/// Longest stored key, so that every stored key can be exported and set again.
pub const KEY_LEN_BYTES_MAX: usize = 32 * 1024;

/// Longest encoded command: a value and its key. A command that does not fit in one value of the log is sent in chunks.
/// *Replicated.*
pub const COMMAND_LEN_BYTES_MAX: usize = STORED_VALUE_LEN_BYTES_MAX + 64 * 1024;

/// Most incomplete chunked commands per log; one more drops the oldest. *Replicated.*
pub const TRANSFERS_MAX: usize = 32;

/// An incomplete chunked command is dropped after this much replicated time: its proposer has failed. *Replicated.*
pub const TRANSFER_AGE_MS_MAX: u64 = 60 * 1000;

/// Most chunked commands that one replica sends to one log at a time.
pub const TRANSFERS_PER_REPLICA_MAX: usize = 4;

/// At most one in this many values of the log's window may be a chunk.
pub const WINDOW_PER_CHUNKS: usize = 4;

/// Longest value that `APPEND` may create in a log that programs of value version 1 can still follow. *Replicated.*
pub const APPENDED_LEN_BYTES_MAX_V1: usize = 64 * 1024;

/// Most named client sessions (`INBAND.SESSION`); opening one more evicts one. *Replicated.*
pub const CLIENT_SESSIONS_MAX: usize = 1024;

/// A named client session idle for longer than this, by replicated time, expires. *Replicated.*
pub const CLIENT_SESSION_IDLE_MS_MAX: u64 = 60 * 60 * 1000;

/// Most stored replies of one client session; the oldest is dropped first. *Replicated.*
pub const CLIENT_SESSION_REPLIES_MAX: usize = 256;

/// Most bytes of stored replies of one client session; the oldest is dropped first, the newest is always kept.
/// *Replicated.*
pub const CLIENT_SESSION_REPLY_BYTES_MAX: usize = 128 * 1024;

/// Most bytes of stored replies of all client sessions of one partition; beyond it, sessions are evicted. *Replicated.*
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

/// The same interval while a tick has left expired keys behind.
pub const TICK_BACKLOG_MS: u64 = 20;

/// Each further replica proposes a tick this much later, so that normally only one does.
pub const TICK_STAGGER_MS: u64 = 100;

/// Recently used records kept in memory in addition to RocksDB's own caches, for all partitions together.
pub const RECORD_CACHE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// RocksDB: size of one memtable of the data column family. The smaller it is, the fewer keys an insertion passes, and the
/// more of them are in the CPU's cache.
pub const ROCKSDB_WRITE_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// RocksDB: this many full memtables of the data column family become one file, so files are not smaller than with one
/// large memtable.
pub const ROCKSDB_MEMTABLES_OF_FILE: i32 = 8;

/// RocksDB: at this many memtables of the data column family, writes wait until a file is written.
pub const ROCKSDB_MEMTABLES_MAX: i32 = 2 * ROCKSDB_MEMTABLES_OF_FILE;

/// RocksDB: size of the shared block cache.
pub const ROCKSDB_BLOCK_CACHE_BYTES: usize = 32 * 1024 * 1024;

/// RocksDB: background threads for flushing and compaction.
pub const ROCKSDB_BACKGROUND_JOBS: i32 = 2;

/// RocksDB: size of the write-ahead log at which old memtables are flushed.
pub const ROCKSDB_WAL_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Applied instances are written to RocksDB when one log has this many: batching is cheaper, and values overwritten in
/// between are never written.
pub const UNWRITTEN_INSTANCES_MAX: u64 = 128;

/// While instances are being written, others are applied and not written; at this many in one log, the replica waits for
/// the write. Acceptors keep what is not written. A ring of fewer slots is full before that, and proposers wait.
pub const UNWRITTEN_BEHIND_INSTANCES_MAX: u64 = 1024;

/// A write of applied instances to RocksDB begins after this long at the latest, or when the one before it has ended.
pub const UNWRITTEN_AGE_MS_MAX: u64 = 10;

/// How long an external reader of the stores waits for applied instances to be written.
pub const UNWRITTEN_WAIT_MS_MAX: u64 = 5_000;

/// Most bytes read from one socket before the others are served.
pub const READ_BUDGET_BYTES: usize = 64 * 1024;

/// Most unanswered commands of one connection; at this limit the socket is not read.
pub const PENDING_COMMANDS_MAX: usize = 1024;

/// Most bytes of unanswered commands of one connection; at this limit the socket is not read.
pub const PENDING_COMMAND_BYTES_MAX: usize = 256 * 1024;

/// Beyond this many unsent reply bytes, a connection's commands are not executed and its socket is not read.
pub const OUTPUT_SOFT_BYTES_MAX: usize = 256 * 1024;

/// Most bytes of commands of one connection that are undecided or being read; at this limit the socket is not read.
pub const IN_FLIGHT_COMMAND_BYTES_MAX: usize = 1024 * 1024;

/// Beyond this many unsent reply bytes, a connection is closed.
pub const OUTPUT_HARD_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Most memory that a replica holds for all clients together (requests, commands, replies), unless configured
/// otherwise. Beyond it, the client holding most is disconnected.
pub const CLIENTS_MEMORY_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Most keys of one command or transaction. It is executed in one step of a loop that serves all clients and, on many
/// hosts, votes as well.
pub const REQUEST_KEYS_MAX: usize = 100_000;

/// Memory that a list of reads retains for reuse.
pub const IDLE_READS_BYTES_MAX: usize = 1024 * 1024;

/// Most bytes of watched keys per connection.
pub const WATCHED_BYTES_MAX: usize = 256 * 1024;

/// Most clients of a replica in blocking pops, unless configured otherwise.
pub const WAITING_CLIENTS_MAX: usize = 8192;

/// Most keys of a blocking pop.
pub const AWAITED_KEYS_MAX: usize = 1024;

/// Most bytes of these keys.
pub const AWAITED_KEY_BYTES_MAX: usize = 64 * 1024;

/// Longest name of a channel, and longest pattern.
pub const CHANNEL_LEN_BYTES_MAX: usize = 4096;

/// Most channels and patterns that one client subscribes to.
pub const SUBSCRIPTIONS_MAX: usize = 1024;

/// Most different patterns at one replica: each message is compared with all of them.
pub const PATTERNS_MAX: usize = 1024;
/// A channel is compared with a subscriber's pattern until this many times the bytes of both have been compared. Only
/// a pattern made for it needs more, such as `*aaaaaaaab` for a channel of many `a`; its subscribers are disconnected.
pub const GLOB_PASSES_MAX: usize = 16;

/// Beyond this many unsent bytes, a subscriber is disconnected, unless configured otherwise.
pub const SUBSCRIBER_OUTPUT_BYTES_MAX: usize = 32 << 20;

/// Most bytes of messages that were executed in one step and not delivered; beyond it all subscribers are disconnected.
pub const UNDELIVERED_BYTES_MAX: usize = 64 << 20;

/// The sockets get their turn after this many bytes for subscribers.
pub const DELIVERED_AT_ONCE_BYTES_MAX: usize = 4 << 20;

/// Most bytes of the latest changes of the keys, which a replica keeps in memory for clients that watch them. An
/// ordinary write takes one or two hundred.
pub const CHANGES_BYTES_MAX: usize = 32 << 20;

/// A longer value is not kept with its change.
pub const CHANGE_VALUE_LEN_BYTES_MAX: usize = 16 * 1024;

/// Most prefixes that are watched at one replica: each change is compared with all of them.
pub const WATCHERS_MAX: usize = 1024;

/// Most prefixes that one client watches.
pub const WATCHERS_PER_CLIENT_MAX: usize = 64;

/// The other clients get their turn after this many changes have been compared with a prefix.
pub const CHANGES_AT_ONCE_MAX: usize = 4096;

/// After one in this many of the bytes of kept changes without a push, a client is told how far it has seen the changes.
pub const CHANGES_PER_PROGRESS: usize = 8;

/// Most bytes of keys in one `KEYS` reply.
pub const KEYS_REPLY_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Most bytes of values in one `MGET` reply, of the reply to a command for collections, and of replies in one
/// `EXEC` reply. *Replicated.*
pub const VALUES_REPLY_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Most steps on collections of one command, transaction or script: an element that is visited is one, and so
/// are 8 bytes that are visited or copied. *Replicated.*
pub const COLLECTION_STEPS_MAX: u64 = 16_000_000;

/// Most reads of one connection in one value: the length of their replies is not known in advance.
pub const READS_PER_VALUE_MAX: usize = 32;

/// Once the reads in one turn of the loop have used this many steps on collections, the others wait for the next turn.
pub const READ_STEPS_PER_TURN_MAX: u64 = 1_000_000;

/// Once the replies in one turn of the loop reach this length, the other reads wait for the next turn.
pub const READ_REPLIES_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Most keys that one `SCAN` examines, whatever its `COUNT`.
pub const SCAN_COUNT_MAX: usize = 10_000;

/// With fewer values than this in flight, a value is submitted no matter how full it is; from then on values are filled
/// first.
pub const VALUES_IN_FLIGHT_BEFORE_FILLING: usize = 8;

/// Most values that one replica has in flight, even if the log accepts more.
pub const VALUES_IN_FLIGHT_MAX: usize = 1024;

/// Longest name that a client may set.
pub const CLIENT_NAME_LEN_BYTES_MAX: usize = 256;

/// Checkpoint transfer: give up on a peer that is silent for this long.
pub const CHECKPOINT_IO_TIMEOUT_MS: u64 = 10_000;

/// Checkpoint transfer: most concurrent transfers served.
pub const CHECKPOINT_TRANSFERS_MAX: usize = 4;

/// Checkpoint transfer: the peer must send its request within this time.
pub const CHECKPOINT_REQUEST_MS_MAX: u64 = 10_000;

/// Checkpoint transfer: minimum rate in bytes per second after [`CHECKPOINT_PACE_GRACE_MS`].
pub const CHECKPOINT_BYTES_PER_S_MIN: u64 = 64 * 1024;

/// Checkpoint transfer: how long the minimum rate is not enforced.
pub const CHECKPOINT_PACE_GRACE_MS: u64 = 30_000;

/// Checkpoint transfer: most files per checkpoint.
pub const CHECKPOINT_FILES_MAX: u32 = 1_000_000;

/// Checkpoint transfer: longest file name.
pub const CHECKPOINT_FILE_NAME_LEN_BYTES_MAX: usize = 255;

/// Checkpoint transfer: pause after all peers have failed once.
pub const CHECKPOINT_RETRY_MS: u64 = 500;

/// Most concurrent exports per replica.
pub const EXPORTS_MAX: usize = 4;

/// Longest time that a replica pauses for an export to take its snapshots.
pub const CUT_WAIT_MS_MAX: u64 = 1_000;

/// Export: give up on a peer that is silent for this long.
pub const EXPORT_IO_TIMEOUT_MS: u64 = 30_000;

/// Longest owner of a lock of `INBAND.LOCK`.
pub const LOCK_OWNER_LEN_BYTES_MAX: usize = 256;

/// Most commands of one transaction; their total length is limited by [`COMMAND_LEN_BYTES_MAX`].
pub const TRANSACTION_COMMANDS_MAX: usize = 16 * 1024;

/// Most bytes of values that one transaction may write; after that its writing commands fail. Short commands can write
/// long values: `SETRANGE`, and everything that rewrites an existing value. *Replicated.*
pub const TRANSACTION_WRITTEN_BYTES_MAX: usize = 32 << 20;

/// Maximum number of scripts that a transaction executes: each may use all its steps, and nothing else is executed
/// meanwhile.
pub const TRANSACTION_SCRIPTS_MAX: usize = 16;
/// Bytes of former values that a script keeps in order to be undone; writes beyond them get an error.
pub const SCRIPT_UNDO_BYTES_MAX: usize = 32 << 20;

/// Most steps of one script: instructions, and what library functions do by length. *Replicated.*
pub const SCRIPT_STEPS_MAX: u64 = 2_000_000;

/// Most bytes that one script may allocate in total. *Replicated.*
pub const SCRIPT_MEMORY_BYTES_MAX: usize = 32 << 20;

/// Most scripts that a replica remembers for `EVALSHA`; the one not used for longest is forgotten first.
pub const SCRIPTS_MAX: usize = 1024;

/// Most bytes of these scripts.
pub const SCRIPTS_BYTES_MAX: usize = 16 << 20;

/// Applied values are written to RocksDB when they reach this many bytes.
pub const UNWRITTEN_BYTES_MAX: usize = 32 << 20;

/// Most watched keys per connection.
pub const WATCHED_KEYS_MAX: usize = 1024;

/// Most memory for cross-partition commands that wait for execution; beyond it a replica accepts no more of them.
pub const SEVERAL_QUEUED_BYTES_MAX: usize = 64 << 20;

/// A partition that makes no progress for this long is stuck: until it recovers, a replica accepts no cross-partition
/// commands, because all of them might have to wait for it.
pub const PARTITION_STUCK_MS: u64 = 1_000;

/// Number of bits in a `SCAN` cursor: many clients, such as JavaScript's, store it in a double.
pub const SCAN_CURSOR_BITS: u32 = 53;

/// How long a replica that may be behind the log lets commands wait, before it refuses them.
pub const CATCH_UP_GRACE_MS: u64 = 500;
/// How long it waits before it asks again what was decided.
pub const CATCH_UP_RETRY_MS: u64 = 100;
/// If catching up took longer, much may have been decided meanwhile: it asks again.
pub const CATCH_UP_STEP_MS: u64 = 1000;
/// A replica whose loop did not turn for so long may be behind.
pub const STOPPED_MS: u64 = 2000;
/// How far replicated time may lag behind cluster time when `TTL` is answered without the log, which alone advances it.
pub const TTL_LAG_MS_MAX: u64 = 10;

/// A replica refuses client writes while less than this is free on a disk of its stores, and writes nothing at all
/// while less than half of it is free.
pub const DISK_FREE_BYTES_MIN: u64 = 128 << 20;

/// On small disks, this fraction (one part in this many) is kept free instead.
pub const DISK_FREE_SHARE_MIN: u64 = 8;

/// Memory limit for what has been delivered of a partition that waits at a marker; beyond it the log delivers no more
/// until the partition continues. The same limit applies to the commands of the log of cross-partition commands, and to
/// those covered by a marker at which a partition waits.
pub const DELIVERED_BYTES_MAX: usize = 32 << 20;

/// Memory limit for decided values that wait for free disk space; beyond it the replica exits.
pub const UNAPPLIED_BYTES_MAX: usize = 256 << 20;

/// Wall clocks of replicas agree if they differ by no more than this.
pub const CLOCK_SKEW_MS_MAX: u64 = 1_000;

/// A replica whose cluster time differs from the others' by more than this steps to theirs.
pub const CLOCK_TOLERANCE_MS: u64 = 20;

/// Cluster time approaches the wall clocks by one part in this many of the elapsed time.
pub const CLOCK_SLEW: u64 = 128;

/// A starting replica that reaches no majority of replicas uses its own wall clock after this long.
pub const CLOCK_LONE_MS: u64 = 10_000;

/// A lone wall clock is rejected if it is further ahead of what was applied than this: a year.
pub const CLOCK_LONE_STEP_MS_MAX: u64 = 366 * 24 * 60 * 60 * 1000;

/// A clock answer that took longer than this is ignored.
pub const CLOCK_ROUND_TRIP_MS_MAX: u64 = 200;

/// Interval between clock queries until the time is known.
pub const CLOCK_START_PERIOD_MS: u64 = 50;

/// Interval between clock queries after that.
pub const CLOCK_PERIOD_MS: u64 = 5_000;

/// The cluster times of two replicas differ by no more than this: each may be off by half a round trip, is left alone
/// within the tolerance, and is slewed until its next query.
pub const CLOCKS_APART_MS_MAX: u64 =
    2 * (CLOCK_ROUND_TRIP_MS_MAX / 2 + CLOCK_TOLERANCE_MS + CLOCK_PERIOD_MS / CLOCK_SLEW);

/// Interval between the questions of a replica to the others where their clients connect.
pub const PEER_PERIOD_MS: u64 = 1_000;

/// The same while not all of them serve.
pub const PEER_MISSING_PERIOD_MS: u64 = 200;

/// A replica that has not answered this many of these questions in a row is taken for dead.
pub const PEER_MISSES_MAX: u32 = 3;

/// An answer to such a question that takes longer than this is not waited for.
pub const PEER_ROUND_TRIP_MS_MAX: u64 = 200;

/// A replica also submits a marker that another replica's client needs if it has not appeared for this long.
pub const MARKER_REPEAT_MS: u64 = 100;

/// Each further replica does so this much later, so that normally only one does.
pub const MARKER_STAGGER_MS: u64 = 50;

/// A command and its key fit in a request.
const _: () = assert!(COMMAND_LEN_BYTES_MAX < inband_resp::limits::REQUEST_LEN_BYTES_MAX);
