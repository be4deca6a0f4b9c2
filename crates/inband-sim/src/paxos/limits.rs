//! Times, rates and sizes of the world of Paxos, in one place.

use inband_paxos::timing::Micros;

/// The coordinator of epochs turns to a host, or to it again, within this time.
pub const COORDINATOR_MAX_US: Micros = 20_000;
/// A host is told of a new epoch within this time.
pub const ENTER_MAX_US: Micros = 300_000;
/// How many of a million clusters that change their members have the real control plane.
pub const PLANE_PPM: u64 = 500_000;
/// A part of the control plane looks whether it has something to do within this time.
pub const CONTROL_TICK_MAX_US: Micros = 8_000;
/// A control message takes up to this long,
pub const CONTROL_LINK_MAX_US: Micros = 1_500;
/// and a late one up to this.
pub const CONTROL_LATE_MAX_US: Micros = 300_000;
/// A command takes up to this long until it is in the controllers' log.
pub const CONTROL_COMMAND_MAX_US: Micros = 10_000;
/// How many of a million are lost on the way there.
pub const CONTROL_COMMAND_LOST_PPM: u64 = 100_000;
/// A controller is down for less than this.
pub const CONTROLLER_DOWN_MAX_US: Micros = 200_000;
/// How many of a million clusters change their members.
pub const EPOCHS_PPM: u64 = 400_000;
/// Mean time between their changes.
pub const RECONFIGURE_US: Micros = 120_000;
/// Slots of the acceptors' rings: the smallest allowed, so that rings wrap, fill and are trimmed.
pub const RING_SLOTS: usize = 64;
/// Logs of a cluster that has more than one.
pub const SEVERAL_LOGS: usize = 3;
/// How many of a million clusters have.
pub const SEVERAL_LOGS_PPM: u64 = 300_000;
/// Shortest delay of a packet on a link.
pub const LINK_DELAY_MIN_US: Micros = 15;
/// Usual spread of delays above the shortest; more than the time between packets, so they overtake.
pub const LINK_JITTER_US: Micros = 120;
/// A packet that is held up waits up to this long.
pub const LINK_HOLD_UP_MAX_US: Micros = 20_000;
/// Packets on the way to one host at once; more are lost, as in a full receive buffer.
pub const HOST_QUEUE_PACKETS: usize = 2_048;
/// A host's process is at most this late for what is due.
pub const TICK_LATE_MAX_US: Micros = 300;
/// Time between applying an instance and holding it durably, at most.
pub const FLUSH_MAX_US: Micros = 4_000;
/// Time a copy of a peer's state takes, at most.
pub const CHECKPOINT_COPY_MAX_US: Micros = 5_000;
/// How many of a million clusters keep journals (`sync` mode).
pub const SYNC_PPM: u64 = 400_000;
/// A sync takes up to this long.
pub const SYNC_MAX_US: Micros = 400;
/// A sync is this many operations of a disk, or not many more.
pub const SYNC_OPERATIONS_MAX: u64 = 6;
/// A journal's file is about this long.
pub const SEGMENT_BYTES: u64 = 48 << 10;
/// And is made longer by this much at a time.
pub const EXTEND_BYTES: u64 = 8 << 10;
/// A journal longer than this is written anew.
pub const COMPACT_MIN_BYTES: u64 = 96 << 10;
/// How many of a million clusters run the real store; it takes some ten times as long as the toy.
pub const STORE_PPM: u64 = 40_000;
/// Partitions of a store that has several, and one log more.
pub const STORE_PARTITIONS: usize = 3;
/// How many of a million times that a store with `sync` writes what is applied it is synced, too.
pub const STORE_SYNC_PPM: u64 = 300_000;
/// How many of a million commands over several partitions read all of them: as a rule, and in every
/// other seed, where nothing else covers what they do.
pub const STORE_READS_PPM: [u64; 2] = [200_000, 1_000_000];
/// Keys of the store that expire do so within this time.
pub const STORE_EXPIRY_MAX_MS: u64 = 200;
/// Mean time between commands for the store.
pub const STORE_LOAD_US: Micros = 6_000;
/// Length of the phase with faults unless told otherwise.
pub const FAULTY_PHASE_US: Micros = 800_000;
/// After the last fault everything must be finished within this time.
pub const LIVENESS_MAX_US: Micros = 10_000_000;
/// In the phase without faults a replica submits a command this often until all is finished.
pub const LIVENESS_PROBE_US: Micros = 50_000;
/// A submission may end this much after its deadline, for the lateness of its process.
pub const DEADLINE_SLACK_US: Micros = 50_000;
/// Longest time that one fault lasts.
pub const FAULT_MAX_US: Micros = 250_000;
/// A host that is slow takes at least this long for a packet,
pub const SLOW_PACKET_MIN_US: Micros = 20;
/// and at most this.
pub const SLOW_PACKET_MAX_US: Micros = 1_000;
/// Packets that would wait for longer than this at a slow host are lost.
pub const SLOW_QUEUE_MAX_US: Micros = 50_000;
/// A clock jumps forward by less than this: more than any timeout, and than most deadlines.
pub const CLOCK_JUMP_MAX_US: Micros = 1_000_000;
/// A stray recovery is this many instances ahead of what its replica has applied, at most.
pub const STRAY_RECOVERY_MAX: u64 = 48;
/// Values in commands are mostly this long; a few have the full length of a packet.
pub const COMMAND_LEN_BYTES: usize = 24;
/// Now and then a client is a crowd: this many commands at once, more than a window takes.
pub const CROWD: usize = 100;
/// How many in a million.
pub const CROWD_PPM: u64 = 2_500;
/// How many of a million commands come with a read.
pub const READS_PPM: u64 = 500_000;
/// Mean times between the commands of one replica's clients; a seed has one of them.
pub const LOADS_US: [Micros; 3] = [700, 2_000, 6_000];
/// How many of a million clusters have an attacker on their network, who sends recorded packets again.
pub const ATTACKER_PPM: u64 = 250_000;
/// Mean time between the packets that it sends.
pub const ATTACKER_EVERY_US: Micros = 300;
/// Packets that it remembers, and how many of the last it has at hand.
pub const ATTACKER_RECORDS_MAX: usize = 512;
/// See above.
pub const ATTACKER_FRESH: usize = 32;
/// It sends soon.
pub const ATTACKER_DELAY_MAX_US: Micros = 60;
/// How many of a million clusters have a key.
pub const KEYED_PPM: u64 = 125_000;
/// Events kept for the trace of a failure.
pub const TRACE_EVENTS: usize = 400;
/// Events after which a run is stopped as runaway.
pub const EVENTS_MAX: u64 = 4_000_000;
/// Instances an observer can tell apart in one run.
pub const INSTANCES_MAX: u64 = 1 << 20;
