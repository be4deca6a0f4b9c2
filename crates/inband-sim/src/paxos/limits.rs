//! Times, rates and sizes of the Paxos world. Rates in `_PPM` that say no more are parts per million of all clusters.

use inband_paxos::timing::Micros;

/// The coordinator of epochs contacts a host, or retries, within this time.
pub const COORDINATOR_MAX_US: Micros = 20_000;
/// A host is told of a new epoch within this time.
pub const ENTER_MAX_US: Micros = 300_000;
/// Share of clusters with reconfigurations that run the real control plane.
pub const PLANE_PPM: u64 = 500_000;
/// Controllers and members check for work within this time.
pub const CONTROL_TICK_MAX_US: Micros = 8_000;
/// Maximum delay of a control message.
pub const CONTROL_LINK_MAX_US: Micros = 1_500;
/// Maximum delay of one that is late.
pub const CONTROL_LATE_MAX_US: Micros = 300_000;
/// A command reaches the controllers' log within this time.
pub const CONTROL_COMMAND_MAX_US: Micros = 10_000;
/// Share of commands lost on the way there.
pub const CONTROL_COMMAND_LOST_PPM: u64 = 100_000;
/// Maximum downtime of a controller.
pub const CONTROLLER_DOWN_MAX_US: Micros = 200_000;
/// Clusters with reconfigurations.
pub const EPOCHS_PPM: u64 = 400_000;
/// Mean time between reconfigurations.
pub const RECONFIGURE_US: Micros = 120_000;
/// Slots of the acceptors' rings: the smallest size allowed, so that rings wrap, fill and are trimmed.
pub const RING_SLOTS: usize = 64;
/// Logs of a cluster that has more than one.
pub const SEVERAL_LOGS: usize = 3;
/// Clusters with several logs.
pub const SEVERAL_LOGS_PPM: u64 = 300_000;
/// Minimum delay of a packet on a link.
pub const LINK_DELAY_MIN_US: Micros = 15;
/// Usual jitter above the minimum; more than the time between packets, so that they overtake each other.
pub const LINK_JITTER_US: Micros = 120;
/// Maximum extra delay of a packet that is held up.
pub const LINK_HOLD_UP_MAX_US: Micros = 20_000;
/// Maximum packets in flight to one host; more are lost, as in a full receive buffer.
pub const HOST_QUEUE_PACKETS: usize = 2_048;
/// Maximum lateness of a host's timers.
pub const TICK_LATE_MAX_US: Micros = 300;
/// Maximum time between applying an instance and making it durable.
pub const FLUSH_MAX_US: Micros = 4_000;
/// Maximum time to copy a peer's state.
pub const CHECKPOINT_COPY_MAX_US: Micros = 5_000;
/// Clusters that keep journals (`sync` mode).
pub const SYNC_PPM: u64 = 400_000;
/// Maximum duration of a sync.
pub const SYNC_MAX_US: Micros = 400;
/// A sync takes about this many disk operations.
pub const SYNC_OPERATIONS_MAX: u64 = 6;
/// Approximate size of a journal file.
pub const SEGMENT_BYTES: u64 = 48 << 10;
/// A journal file grows in steps of this size.
pub const EXTEND_BYTES: u64 = 8 << 10;
/// A journal larger than this is rewritten.
pub const COMPACT_MIN_BYTES: u64 = 96 << 10;
/// Clusters that run the real store, which takes about ten times as long as the toy application.
pub const STORE_PPM: u64 = 40_000;
/// Partitions of a store with several; it has one log more.
pub const STORE_PARTITIONS: usize = 3;
/// How often, when a store in `sync` mode writes what is applied, it is also synced.
pub const STORE_SYNC_PPM: u64 = 300_000;
/// Share of commands over several partitions that read all of them: usually, and in every other seed, where nothing
/// else covers what they do.
pub const STORE_READS_PPM: [u64; 2] = [200_000, 1_000_000];
/// Keys that expire do so within this time.
pub const STORE_EXPIRY_MAX_MS: u64 = 200;
/// Mean time between commands for the store.
pub const STORE_LOAD_US: Micros = 6_000;
/// Default duration of the phase with faults.
pub const FAULTY_PHASE_US: Micros = 800_000;
/// Everything must finish within this time after the last fault.
pub const LIVENESS_MAX_US: Micros = 10_000_000;
/// In the phase without faults a replica submits a command at this interval until everything is finished.
pub const LIVENESS_PROBE_US: Micros = 50_000;
/// How far after its deadline a submission may end, because its process may be late.
pub const DEADLINE_SLACK_US: Micros = 50_000;
/// Maximum duration of a fault.
pub const FAULT_MAX_US: Micros = 250_000;
/// Minimum time per packet on a slow host.
pub const SLOW_PACKET_MIN_US: Micros = 20;
/// Maximum time per packet on a slow host.
pub const SLOW_PACKET_MAX_US: Micros = 1_000;
/// Packets that would wait longer than this at a slow host are lost.
pub const SLOW_QUEUE_MAX_US: Micros = 50_000;
/// Maximum forward jump of a clock: more than any timeout, and than most deadlines.
pub const CLOCK_JUMP_MAX_US: Micros = 1_000_000;
/// Maximum distance of a stray recovery from what its replica has applied, in instances.
pub const STRAY_RECOVERY_MAX: u64 = 48;
/// Usual length of a command's value; a few values fill a packet.
pub const COMMAND_LEN_BYTES: usize = 24;
/// Commands that a client occasionally submits at once: more than fit in a window.
pub const CROWD: usize = 100;
/// How often that happens.
pub const CROWD_PPM: u64 = 2_500;
/// Share of commands that come with a read.
pub const READS_PPM: u64 = 500_000;
/// Mean times between the commands of one replica's clients; each seed uses one.
pub const LOADS_US: [Micros; 3] = [700, 2_000, 6_000];
/// Clusters with an attacker on the network, who replays recorded packets.
pub const ATTACKER_PPM: u64 = 250_000;
/// Mean time between replayed packets.
pub const ATTACKER_EVERY_US: Micros = 300;
/// Old packets that the attacker remembers.
pub const ATTACKER_RECORDS_MAX: usize = 512;
/// Latest packets that it remembers.
pub const ATTACKER_FRESH: usize = 32;
/// Maximum delay of a replayed packet.
pub const ATTACKER_DELAY_MAX_US: Micros = 60;
/// Clusters with a key.
pub const KEYED_PPM: u64 = 125_000;
/// Events kept for the trace of a failure.
pub const TRACE_EVENTS: usize = 400;
/// Events after which a run is stopped as runaway.
pub const EVENTS_MAX: u64 = 4_000_000;
/// Maximum instances per run that an observer can track.
pub const INSTANCES_MAX: u64 = 1 << 20;
