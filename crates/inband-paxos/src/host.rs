//! All protocol state of one host, sans-I/O: the roles that run in user space, and the state machines beside them, one
//! set for each log.
//!
//! A driver passes it packets, time and decided values, and sends what it puts into an [`Outbox`]. The simulator is
//! such a driver, so it tests the code that runs in production.

use std::collections::VecDeque;

use crate::dataplane::registers::LeaderView;
use crate::dataplane::round;
use crate::dataplane::soft::{Geometry, Registers, Roles, SoftSwitch, Verdict};
use crate::dataplane::wire::{self, flag, Header, Type, PACKET_LEN_MAX_BYTES};
use inband_ground::auth::Digest;

use crate::decided_log::LogLimit;
use crate::journal::{AcceptorJournal, Restored};
use crate::leadership::LeaderEvent;
use crate::log::{Burst, Origin, ReadTicket, SubmitError, Ticket};
use crate::outbox::{Dest, Outbox};
use crate::partition::{Partition, Shared};
use crate::rounds::RoundSource;
use crate::timing::{next_beat, Micros, Timing, DECIDED_LOG_BYTES_MAX, DECIDED_LOG_BYTES_MIN};

/// Most packets of a host to itself handled in one call; more than any exchange of roles can cause.
const LOCAL_PACKETS_MAX: usize = 100_000;
/// Node ids are one byte.
const NODES: usize = 256;
/// No log reaches this instance in a hundred thousand years. A packet with a higher one is damaged; accepting it would
/// make a host wait for instances that never come, or overflow.
const INSTANCE_END: u64 = 1 << 62;
/// There are never this many leader changes: half of what a round can count. A host that accepted such a round would
/// have none left.
const ROUND_COUNTER_END: u64 = 1 << 31;
/// Length of the part of an ALIVE's value for one log: applied instance and round of the leader.
const ALIVE_LOG_LEN_BYTES: usize = 16;

/// Where a log starts on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogStart {
    /// First instance of this epoch; everything below is in the replicas' state.
    pub first_instance: u64,
    /// Last instance that the application has applied.
    pub applied: u64,
}

/// Configuration of a host.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// This node's id, 1..=254.
    pub node: u8,
    pub epoch: u32,
    /// One for each log; as many as `geometry.partitions`.
    pub logs: Vec<LogStart>,
    /// Acceptors' node ids.
    pub acceptors: Vec<u8>,
    /// Replicas' node ids: hosts with a quorum counter and a learner.
    pub replicas: Vec<u8>,
    /// For each log, the nodes that may lead it, in take-over order; the same set for all logs.
    pub leaders: Vec<Vec<u8>>,
    /// Roles that this host runs in user space.
    pub soft_roles: Roles,
    /// Roles that this host runs in the kernel.
    pub kernel_roles: Roles,
    pub geometry: Geometry,
    pub timing: Timing,
    /// Decided values kept for peers that have fallen behind, for all logs together.
    pub log_values_max: usize,
    /// Maximum packet length in the cluster.
    pub packet_len_max_bytes: usize,
    /// Number of this process run: durable, never reused by this node.
    pub incarnation: u64,
    /// How values are digested.
    pub digest: Digest,
    /// Whether a soft acceptor may vote; `false` if it may have lost votes of this epoch.
    pub voting: bool,
}

/// The members of a configuration epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochConfig {
    pub epoch: u32,
    /// Acceptors' node ids.
    pub acceptors: Vec<u8>,
    /// Replicas' node ids.
    pub replicas: Vec<u8>,
    /// For each log, the nodes that may lead it, in take-over order; the same set for all logs.
    pub leaders: Vec<Vec<u8>>,
}

/// Take-over orders for `logs` logs, each with a different first node, so that leaders share the load.
pub fn spread_leaders(leaders: &[u8], logs: usize) -> Vec<Vec<u8>> {
    let order = |log: usize| {
        let mut order = leaders.to_vec();
        order.rotate_left(log % leaders.len().max(1));
        order
    };
    (0..logs).map(order).collect()
}

impl HostConfig {
    /// Returns all replicas and leaders, without duplicates.
    fn peers(&self) -> Vec<u8> {
        let mut peers = [&self.replicas[..], self.leader_nodes()].concat();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Returns the nodes that may lead.
    pub fn leader_nodes(&self) -> &[u8] {
        self.leaders.first().map_or(&[], Vec::as_slice)
    }

    /// Returns what each log may keep for peers: its share, but no less than a ring, because otherwise every replica
    /// that misses a little would need a checkpoint.
    pub fn peer_log_limit(&self) -> LogLimit {
        let logs = self.geometry.partitions;
        LogLimit {
            values_max: (self.log_values_max / logs).max(self.geometry.ring_slots),
            bytes_max: (DECIDED_LOG_BYTES_MAX / logs).max(DECIDED_LOG_BYTES_MIN),
        }
    }
}

/// Why an instance cannot be recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// Only learners recover.
    #[error("this node is no replica and learns nothing; recover at a replica")]
    NoLearner,
    /// Delivered before and dropped from the log.
    #[error(
        "instance {instance} was delivered before and is no longer held; the log starts at {first}"
    )]
    Trimmed {
        instance: u64,
        /// Lowest instance still held.
        first: u64,
    },
    /// Further ahead than the acceptors' rings reach.
    #[error("instance {instance} is too far ahead; instances below {limit} can be recovered now")]
    TooFarAhead {
        instance: u64,
        /// First instance that cannot be recovered.
        limit: u64,
    },
}

/// A host's packets to itself.
#[derive(Default)]
struct LocalPackets {
    waiting: VecDeque<Vec<u8>>,
    /// Handled ones, whose memory is reused.
    spare: Vec<Vec<u8>>,
}

impl LocalPackets {
    fn push(&mut self, packet: &[u8]) {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(packet);
        self.waiting.push_back(copy);
    }
}

pub struct Host {
    shared: Shared,
    partitions: Vec<Partition>,
    /// When each partition is next due, and the earliest of these times.
    dues: Vec<Micros>,
    due: Micros,
    /// Partitions that had events since bursts were taken.
    touched: Vec<usize>,
    is_touched: Vec<bool>,
    /// All learners and leaders, without duplicates.
    peers: Vec<u8>,
    /// When they are next told what this host has applied; [`Micros::MAX`]: it has nothing to tell.
    alive_at: Micros,
    highest_epoch_seen: u32,
    missed_by_kernel: u64,
    /// The last ALIVE of each node: its process and its number.
    alives_heard: Vec<(u64, u64)>,
    local: LocalPackets,
    /// The acceptor's, in `sync` mode.
    journal: Option<AcceptorJournal>,
    /// Packets that a state machine has just produced; kept here to reuse the memory.
    own: Outbox,
    value: Vec<u8>,
}

impl Host {
    /// A host that starts at `now`.
    ///
    /// # Panics
    /// If there are not as many `logs` as `geometry.partitions`.
    pub fn new(now: Micros, config: HostConfig) -> Host {
        let logs = config.geometry.partitions;
        assert_eq!(config.logs.len(), logs, "a start for each log");
        assert_eq!(config.leaders.len(), logs, "leaders of each log");
        let soft = config.soft_roles;
        let switch = (soft.leader || soft.acceptor || soft.quorum).then(|| {
            let switch = SoftSwitch::new(config.node, soft, config.geometry);
            let registers = switch.registers();
            let epoch = u64::from(config.epoch);
            for (partition, start) in config.logs.iter().enumerate().filter(|_| soft.acceptor) {
                let acceptor = &registers.acceptor;
                acceptor.start(partition, epoch, start.first_instance, config.voting);
            }
            // Outside of all epochs nothing is counted.
            if soft.quorum && epoch != 0 {
                registers.quorum.configure(epoch, &config.acceptors);
            }
            switch
        });
        let partitions: Vec<Partition> = (0..logs)
            .map(|partition| Partition::new(now, partition, &config))
            .collect();
        let peers = config.peers();
        let tells = peers.contains(&config.node);
        Host {
            peers,
            dues: partitions.iter().map(Partition::due).collect(),
            due: 0,
            touched: Vec::with_capacity(logs),
            is_touched: vec![false; logs],
            alive_at: if tells { now } else { Micros::MAX },
            local: LocalPackets::default(),
            journal: None,
            own: Outbox::for_packets_of(config.packet_len_max_bytes),
            value: Vec::new(),
            partitions,
            highest_epoch_seen: config.epoch,
            missed_by_kernel: 0,
            alives_heard: vec![(0, 0); NODES],
            shared: Shared {
                rounds: RoundSource::new(config.node, config.incarnation),
                switch,
                events: Vec::new(),
                kernel_commands: Vec::new(),
                bad_packets: 0,
                alives: 0,
                config,
            },
        }
    }

    /// Makes the acceptor, which must run in user space, keep a journal from now on (`sync` mode). `restored`: what it
    /// knew when the process ended; without it, it starts as configured.
    ///
    /// # Panics
    /// If there is no such acceptor.
    pub fn keep_journal(&mut self, restored: Option<&Restored>) {
        let geometry = self.shared.config.geometry;
        assert!(self.shared.config.soft_roles.acceptor, "an acceptor");
        if let (Some(restored), Some(switch)) = (restored, &self.shared.switch) {
            restored.install(geometry, switch.registers());
        }
        let mut journal = AcceptorJournal::new(geometry);
        journal.set_holds(restored.and_then(Restored::holds));
        self.journal = Some(journal);
    }

    /// Returns the acceptor's journal, if it keeps one, and its registers.
    pub fn journal(&self) -> Option<(&AcceptorJournal, &Registers)> {
        Some((
            self.journal.as_ref()?,
            self.shared.switch.as_ref()?.registers(),
        ))
    }

    /// Returns the same, for a driver that writes the journal to disk; see [`Host::release`].
    pub fn journal_mut(&mut self) -> Option<(&mut AcceptorJournal, &Registers)> {
        Some((
            self.journal.as_mut()?,
            self.shared.switch.as_ref()?.registers(),
        ))
    }

    /// Sends the acceptor's answers that may now leave, because more of the journal has been synced.
    pub fn release(&mut self, now: Micros, out: &mut Outbox) {
        self.drain_local(now, out);
    }

    pub fn config(&self) -> &HostConfig {
        &self.shared.config
    }

    /// Returns the soft switch, if any role runs in user space.
    pub fn switch(&self) -> Option<&SoftSwitch> {
        self.shared.switch.as_ref()
    }

    /// Returns the same, mutable: for tests and the simulator.
    pub fn switch_mut(&mut self) -> Option<&mut SoftSwitch> {
        self.shared.switch.as_mut()
    }

    /// Returns the logs, by partition.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Returns a log.
    ///
    /// # Panics
    /// If there is none of this number.
    pub fn partition(&self, partition: usize) -> &Partition {
        &self.partitions[partition]
    }

    /// Enters a later epoch with its members. The quorum counter counts for it from now on; undecided values are
    /// queried and proposed again. The acceptor's own registers are not touched: the reconfiguration seals, fills and
    /// opens them. An epoch that is not later has no effect.
    pub fn enter_epoch(&mut self, now: Micros, entered: &EpochConfig, out: &mut Outbox) {
        let config = &mut self.shared.config;
        if entered.epoch <= config.epoch {
            return;
        }
        assert_eq!(entered.leaders.len(), config.logs.len(), "of each log");
        config.epoch = entered.epoch;
        config.acceptors.clone_from(&entered.acceptors);
        config.replicas.clone_from(&entered.replicas);
        config.leaders.clone_from(&entered.leaders);
        self.highest_epoch_seen = self.highest_epoch_seen.max(entered.epoch);
        self.peers = config.peers();
        let tells = self.peers.contains(&config.node);
        self.alive_at = if tells { now } else { Micros::MAX };
        let counts = config.soft_roles.quorum;
        if let Some(switch) = self.shared.switch.as_ref().filter(|_| counts) {
            let epoch = u64::from(config.epoch);
            let quorum = &switch.registers().quorum;
            quorum.configure(epoch, &config.acceptors);
        }
        for partition in 0..self.partitions.len() {
            self.ask(now, partition, out, |p, shared, own| {
                p.enter_epoch(now, shared, own);
            });
        }
        self.find_due();
    }

    /// Changes the order of the nodes that may lead, within the epoch. For each log, a new first node takes over.
    pub fn reorder_leaders(&mut self, now: Micros, leaders: &[Vec<u8>], out: &mut Outbox) {
        assert_eq!(leaders.len(), self.partitions.len(), "of each log");
        for (partition, order) in leaders.iter().enumerate() {
            if self.shared.config.leaders[partition] != *order {
                self.shared.config.leaders[partition].clone_from(order);
                self.ask(now, partition, out, |p, shared, own| {
                    p.reorder_leaders(now, shared, own);
                });
            }
        }
        self.find_due();
    }

    /// Returns the highest epoch of any packet for this host's state machines. If it is above this host's own, there is
    /// a configuration that the host does not know yet.
    pub fn highest_epoch_seen(&self) -> u32 {
        self.highest_epoch_seen
    }

    /// Returns the number of malformed packets for this host's state machines.
    pub fn bad_packets(&self) -> u64 {
        self.shared.bad_packets
    }

    /// Packets for an acceptor in the kernel that reached user space: fragments, or packets through an interface
    /// without the program. They are dropped.
    pub fn missed_by_kernel(&self) -> u64 {
        self.missed_by_kernel
    }

    /// Leader changes since the last call: time, partition and event.
    pub fn take_leader_events(&mut self) -> std::vec::Drain<'_, (Micros, usize, LeaderEvent)> {
        self.shared.events.drain(..)
    }

    /// Returns whether the view of this partition's leader registers in the kernel must be set before `on_tick`.
    pub fn wants_leader_view(&self, now: Micros, partition: usize) -> bool {
        self.shared.config.kernel_roles.leader && self.dues[partition] <= now
    }

    /// Sets the current contents of a partition's leader registers in the kernel; to be called before `on_tick`.
    pub fn set_kernel_leader(&mut self, partition: usize, view: LeaderView) {
        self.partitions[partition].set_kernel_leader(view);
    }

    /// Changes of leader registers in the kernel that the driver must carry out, in this order, before it sends
    /// anything.
    pub fn take_kernel_commands(&mut self) -> std::vec::Drain<'_, (usize, LeaderEvent)> {
        self.shared.kernel_commands.drain(..)
    }

    /// This host's leader registers, wherever they are.
    pub fn leader_view(&self, partition: usize) -> LeaderView {
        self.partitions[partition].leader_view(&self.shared)
    }

    /// Submits a value; see [`crate::log::ReplicatedLog::submit`].
    pub fn submit(
        &mut self,
        now: Micros,
        partition: usize,
        value: &[u8],
        out: &mut Outbox,
    ) -> Result<Ticket, SubmitError> {
        self.ask(now, partition, out, |p, shared, own| {
            p.submit(now, value, shared, own)
        })
    }

    /// Finds out what was decided in `instance`, or decides `noop` there (CAANS, Figure 4). The value of an instance
    /// delivered before is passed to `known`; that of a later one is delivered in order.
    pub fn recover(
        &mut self,
        now: Micros,
        partition: usize,
        instance: u64,
        noop: &[u8],
        out: &mut Outbox,
        known: &mut dyn FnMut(Origin, &[u8]),
    ) -> Result<(), RecoverError> {
        self.ask(now, partition, out, |p, shared, own| {
            p.recover(now, instance, noop, shared, own, known)
        })
    }

    /// See [`crate::log::ReplicatedLog::applied`].
    pub fn applied(&mut self, partition: usize, instance: u64) {
        self.partitions[partition].trim.applied(instance);
        // A floor that has moved by a step is announced at once: the leader's window waits for it.
        self.due_again(partition);
    }

    /// See [`crate::log::ReplicatedLog::pause`].
    pub fn pause(&mut self, now: Micros, partition: usize, is_paused: bool, out: &mut Outbox) {
        self.ask(now, partition, out, |p, _, own| {
            p.pause(now, is_paused, own);
        });
    }

    /// See [`crate::log::ReplicatedLog::reset`].
    pub fn reset(&mut self, partition: usize, applied: u64) {
        self.partitions[partition].reset(applied);
        self.touch(partition);
    }

    /// See [`crate::log::ReplicatedLog::session_refused`].
    pub fn session_refused(&mut self, now: Micros, ticket: Ticket, out: &mut Outbox) {
        self.ask(now, ticket.partition(), out, |p, _, own| {
            p.proposer.session_refused(now, own);
        });
    }

    /// See [`crate::log::ReplicatedLog::answered`].
    pub fn answered(&mut self, ticket: Ticket) {
        self.partitions[ticket.partition()]
            .proposer
            .answered(ticket);
    }

    /// See [`crate::log::ReplicatedLog::confirm_read`].
    pub fn confirm_read(&mut self, now: Micros, partition: usize) -> ReadTicket {
        let ticket = self.partitions[partition].confirm_read(now, &self.shared);
        self.touch(partition);
        ticket
    }

    /// No value of this host is undecided, and no read is unanswered.
    pub fn is_idle(&self) -> bool {
        let mut partitions = self.partitions.iter();
        partitions.all(|p| p.proposer.outstanding() == 0 && p.reader().outstanding() == 0)
    }

    /// Opens the proposer's sessions ahead of the first values.
    pub fn open_sessions(&mut self, now: Micros, out: &mut Outbox) {
        for partition in 0..self.partitions.len() {
            self.ask(now, partition, out, |p, _, own| {
                p.proposer.open_session(now, own);
            });
        }
    }

    /// Appends what was decided and what failed since the last call to the partitions' bursts.
    pub fn take_bursts(&mut self, bursts: &mut [Burst]) {
        assert_eq!(bursts.len(), self.partitions.len(), "a burst for each log");
        let (partitions, is_touched) = (&mut self.partitions, &mut self.is_touched);
        self.touched.retain(|&partition| {
            let again = partitions[partition].take_burst(&mut bursts[partition]);
            is_touched[partition] = again;
            again
        });
    }

    /// A packet for this host arrived that no role in the kernel handled.
    pub fn on_packet(&mut self, now: Micros, packet: &[u8], out: &mut Outbox) {
        self.handle(now, packet, false, out);
        self.drain_local(now, out);
    }

    /// The quorum counter in the kernel delivered a decided value.
    pub fn on_decided(&mut self, now: Micros, packet: &[u8], out: &mut Outbox) {
        self.decided(now, packet, out);
        self.drain_local(now, out);
    }

    /// Time has passed. Must be called at least when [`Host::due`] says.
    pub fn on_tick(&mut self, now: Micros, out: &mut Outbox) {
        for partition in 0..self.partitions.len() {
            if self.dues[partition] <= now {
                self.ask(now, partition, out, |p, shared, own| {
                    p.on_tick(now, shared, own);
                });
            }
        }
        if now >= self.alive_at {
            self.alive_at = next_beat(now, self.shared.config.timing.alive_us);
            self.tell_alive(out);
            self.drain_local(now, out);
        }
        self.find_due();
    }

    /// Returns when `on_tick` is next due: `now` or later. Unchanged until that time or the next event.
    pub fn due(&self, now: Micros) -> Micros {
        self.due.max(now)
    }

    fn find_due(&mut self) {
        let first = self.dues.iter().copied().min();
        self.due = first.unwrap_or(Micros::MAX).min(self.alive_at);
    }

    fn due_again(&mut self, partition: usize) {
        let due = self.partitions[partition].due();
        let before = std::mem::replace(&mut self.dues[partition], due);
        if due <= self.due {
            self.due = due;
        } else if before <= self.due {
            self.find_due();
        }
    }

    /// A partition has had an event.
    fn touch(&mut self, partition: usize) {
        self.due_again(partition);
        if !std::mem::replace(&mut self.is_touched[partition], true) {
            self.touched.push(partition);
        }
    }

    /// Runs an action on a partition and sends its packets. `from_self`: the action handles a packet of this same host.
    fn act<R>(
        &mut self,
        partition: usize,
        from_self: bool,
        out: &mut Outbox,
        act: impl FnOnce(&mut Partition, &mut Shared, &mut Outbox) -> R,
    ) -> R {
        let mut own = std::mem::take(&mut self.own);
        own.clear();
        let result = act(&mut self.partitions[partition], &mut self.shared, &mut own);
        self.touch(partition);
        for (dest, packet) in own.iter() {
            if dest == Dest::Sender && from_self {
                self.local.push(packet);
            } else {
                self.route_one(dest, packet, out);
            }
        }
        self.own = own;
        result
    }

    /// Returns the same at the driver's request, including all consequences.
    fn ask<R>(
        &mut self,
        now: Micros,
        partition: usize,
        out: &mut Outbox,
        act: impl FnOnce(&mut Partition, &mut Shared, &mut Outbox) -> R,
    ) -> R {
        let result = self.act(partition, false, out, act);
        self.drain_local(now, out);
        result
    }

    /// Handles one packet: the soft roles first, then the state machines.
    fn handle(&mut self, now: Micros, packet: &[u8], from_self: bool, out: &mut Outbox) {
        if packet.len() > PACKET_LEN_MAX_BYTES {
            self.shared.bad_packets += 1;
            return;
        }
        let Some(switch) = &self.shared.switch else {
            self.host_packet(now, packet, from_self, out);
            return;
        };
        let mut buffer = [0u8; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(packet);
        if let (Some(journal), Ok((header, _))) = (&mut self.journal, wire::parse(packet)) {
            if AcceptorJournal::is_for_acceptor(&header) {
                if journal.handle(switch, &header, &mut buffer, packet.len()) {
                    self.host_packet(now, packet, from_self, out);
                }
                return;
            }
        }
        let (verdict, _reason, len_bytes) = switch.handle(&mut buffer, packet.len());
        let packet = &buffer[..len_bytes];
        match verdict {
            Verdict::Drop => {}
            Verdict::Pass => self.host_packet(now, packet, from_self, out),
            Verdict::Back if from_self => self.local.push(packet),
            Verdict::Back => out.send_raw(Dest::Sender, packet),
            Verdict::ToAcceptors => self.route_one(Dest::Acceptors, packet, out),
            Verdict::ToLearners => self.route_one(Dest::Learners, packet, out),
            Verdict::Up => self.decided(now, packet, out),
        }
    }

    /// Returns whether a received packet may be handled. A PHASE2A for an acceptor in user space whose value does not
    /// match its digest must not: an attacker on the path has substituted a value with the same checksum, and a
    /// majority voting for it would stop the log. A packet program has no time for this check. Only drivers on a real
    /// network call this; the simulator's acceptors have just the kernel's guards.
    pub fn admits(&mut self, packet: &[u8]) -> bool {
        let is_forged = self.shared.config.soft_roles.acceptor
            && wire::parse(packet).is_ok_and(|(header, value)| {
                header.kind == Type::Phase2A && self.shared.config.digest.of(value) != header.digest
            });
        self.shared.bad_packets += u64::from(is_forged);
        !is_forged
    }

    fn decided(&mut self, now: Micros, packet: &[u8], out: &mut Outbox) {
        let Some((header, value)) = self.parse(packet) else {
            return;
        };
        let partition = usize::from(header.partition);
        self.act(partition, false, out, |p, shared, own| {
            p.on_decided(now, &header, value, shared, own);
        });
    }

    /// Parses a packet, and checks its partition, instance and round for plausibility.
    fn parse<'p>(&mut self, packet: &'p [u8]) -> Option<(Header, &'p [u8])> {
        let parsed = wire::parse(packet).ok();
        let good = parsed.filter(|(header, _)| {
            usize::from(header.partition) < self.partitions.len()
                && header.instance.max(header.floor) < INSTANCE_END
                && round::counter(header.round) < ROUND_COUNTER_END
        });
        self.shared.bad_packets += u64::from(good.is_none());
        good
    }

    /// A packet for the state machines.
    fn host_packet(&mut self, now: Micros, packet: &[u8], from_self: bool, out: &mut Outbox) {
        let Some((header, value)) = self.parse(packet) else {
            return;
        };
        if !self.is_member(header.node) {
            self.shared.bad_packets += 1;
            return;
        }
        let to_acceptor = matches!(header.kind, Type::Phase1A | Type::Phase2A);
        self.missed_by_kernel += u64::from(to_acceptor && self.shared.config.kernel_roles.acceptor);
        self.highest_epoch_seen = self.highest_epoch_seen.max(header.epoch);
        if header.kind == Type::Alive {
            self.on_alive(now, &header, value, out);
            return;
        }
        let partition = usize::from(header.partition);
        self.act(partition, from_self, out, |p, shared, own| {
            p.on_packet(now, &header, value, shared, own);
        });
    }

    /// Every sender of packets for state machines is a node of the configuration. A stranger's claim about far
    /// instances would make a learner wait for them forever.
    fn is_member(&self, node: u16) -> bool {
        let config = &self.shared.config;
        let groups = [&config.acceptors, &config.replicas, config.leader_nodes()];
        groups
            .iter()
            .any(|group| group.iter().any(|member| u16::from(*member) == node))
    }

    /// Tells peers what this host has applied and who leads: one packet for all logs, because otherwise many idle logs
    /// would cost more than a busy one.
    fn tell_alive(&mut self, out: &mut Outbox) {
        let (mut own, mut value) = (
            std::mem::take(&mut self.own),
            std::mem::take(&mut self.value),
        );
        own.clear();
        value.clear();
        let mut first = (0, 0);
        for partition in 0..self.partitions.len() {
            let (applied, round) = self.partitions[partition].alive();
            if partition == 0 {
                first = (applied, round);
            } else {
                value.extend_from_slice(&applied.to_be_bytes());
                value.extend_from_slice(&round.to_be_bytes());
            }
            self.due_again(partition);
        }
        let (applied, round) = first;
        self.shared.tell_alive(0, applied, round, &value, &mut own);
        for (dest, packet) in own.iter() {
            self.route_one(dest, packet, out);
        }
        (self.own, self.value) = (own, value);
    }

    /// An ALIVE: the header describes its partition, the value the partitions after it, if any.
    fn on_alive(&mut self, now: Micros, header: &Header, value: &[u8], out: &mut Outbox) {
        if self.shared.config.digest.of(value) != header.digest {
            self.shared.bad_packets += 1;
            return;
        }
        if header.epoch != self.shared.config.epoch || !self.is_news(header) {
            return;
        }
        let said = value.chunks_exact(ALIVE_LOG_LEN_BYTES).map(|said| {
            let word = |at: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&said[at..at + 8]);
                u64::from_be_bytes(word)
            };
            (word(0), word(8))
        });
        let first = usize::from(header.partition);
        let all = std::iter::once((header.instance, header.round)).chain(said);
        for (partition, (applied, round)) in (first..self.partitions.len()).zip(all) {
            if applied >= INSTANCE_END || round::counter(round) >= ROUND_COUNTER_END {
                self.shared.bad_packets += 1;
                continue;
            }
            self.act(partition, false, out, |p, shared, own| {
                p.on_alive(now, header.node, applied, round, shared, own);
            });
        }
    }

    /// Returns whether an ALIVE is later than all known ones of its sender.
    fn is_news(&mut self, header: &Header) -> bool {
        let heard = &mut self.alives_heard[usize::from(header.node) % NODES];
        let number = (header.client_id, header.client_seq);
        let is_news = *heard < number;
        *heard = number.max(*heard);
        is_news
    }

    fn drain_local(&mut self, now: Micros, out: &mut Outbox) {
        for _ in 0..LOCAL_PACKETS_MAX {
            if self.local.waiting.is_empty() {
                self.release_answers(out);
            }
            let Some(packet) = self.local.waiting.pop_front() else {
                return;
            };
            self.handle(now, &packet, true, out);
            self.local.spare.push(packet);
        }
        panic!("roles of one host keep answering each other");
    }

    fn release_answers(&mut self, out: &mut Outbox) {
        let Some(mut journal) = self.journal.take() else {
            return;
        };
        journal.release(&mut |dest, packet| match dest {
            // The destination was read from a packet that may have been damaged.
            Dest::Node(node) if !self.is_member(u16::from(node)) => self.shared.bad_packets += 1,
            _ => self.route_one(dest, packet, out),
        });
        self.journal = Some(journal);
    }

    /// Sends a packet. One for this host itself is handled here, unless a role in the kernel must handle it: then the
    /// driver passes it on.
    fn route_one(&mut self, dest: Dest, packet: &[u8], out: &mut Outbox) {
        let nodes: &[u8] = match dest {
            Dest::Acceptors => &self.shared.config.acceptors,
            Dest::Learners => &self.shared.config.replicas,
            Dest::Leaders => self.shared.config.leader_nodes(),
            Dest::Peers => &self.peers,
            Dest::Node(node) => &[node],
            Dest::Sender => {
                out.send_raw(dest, packet);
                return;
            }
        };
        for node in nodes {
            if *node != self.shared.config.node || self.is_for_kernel(packet) {
                out.send_raw(Dest::Node(*node), packet);
            } else {
                self.local.push(packet);
            }
        }
    }

    fn is_for_kernel(&self, packet: &[u8]) -> bool {
        let roles = self.shared.config.kernel_roles;
        let Ok((header, _)) = wire::parse(packet) else {
            return false;
        };
        match header.kind {
            Type::Request => roles.leader,
            Type::Phase1A | Type::Phase2A => roles.acceptor,
            Type::Learn => roles.acceptor && !header.has(flag::PEER),
            Type::Trim | Type::Position if header.has(flag::ANSWER) => false,
            Type::Trim | Type::Position if header.has(flag::LEADER) => roles.leader,
            Type::Trim | Type::Position => roles.acceptor,
            Type::Phase2B => roles.quorum && !header.has(flag::REPEAT),
            Type::Phase1B | Type::Nack | Type::Busy | Type::Reply | Type::Alive => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::process_id;
    use inband_ground::auth::Secret;

    const DIGEST_KEY: Secret = Secret([9; 16]);

    /// Acceptor and replica; its peers are 1 and 3.
    fn host() -> Host {
        let all = vec![1, 2, 3];
        let config = HostConfig {
            node: 2,
            epoch: 1,
            logs: vec![LogStart {
                first_instance: 1,
                applied: 0,
            }],
            acceptors: all.clone(),
            replicas: all.clone(),
            leaders: vec![all],
            soft_roles: Roles {
                leader: false,
                acceptor: true,
                quorum: true,
            },
            kernel_roles: Roles::default(),
            geometry: Geometry {
                partitions: 1,
                ring_slots: 64,
            },
            timing: Timing::default(),
            log_values_max: 1,
            packet_len_max_bytes: PACKET_LEN_MAX_BYTES,
            incarnation: 1,
            digest: Digest::keyed(DIGEST_KEY),
            voting: true,
        };
        Host::new(0, config)
    }

    fn receive(host: &mut Host, header: &Header, value: &[u8]) {
        let mut packet = Vec::new();
        wire::emit(header, value, &mut packet);
        if host.admits(&packet) {
            host.on_packet(1, &packet, &mut Outbox::new());
        }
    }

    #[test]
    fn an_acceptor_in_user_space_votes_for_no_value_that_nobody_could_read() {
        let mut host = host();
        let mut header = Header::new(Type::Phase2A, 1, 1);
        (header.instance, header.round) = (1, 257);
        // Changed on the way, or sent without the digest key.
        for digest in [
            Digest::keyed(DIGEST_KEY).of(b"other"),
            wire::digest(b"value"),
        ] {
            header.digest = digest;
            receive(&mut host, &header, b"value");
        }
        let voted = |host: &Host| {
            host.switch()
                .unwrap()
                .registers()
                .ring
                .slot(1)
                .unwrap()
                .vround
        };
        assert_eq!((voted(&host), host.bad_packets()), (0, 2));
        header.digest = Digest::keyed(DIGEST_KEY).of(b"value");
        receive(&mut host, &header, b"value");
        assert_eq!((voted(&host), host.bad_packets()), (257, 2));
    }

    /// In the kernel's ring since before this host entered its epoch: the epoch may decide that instance differently.
    #[test]
    fn what_was_decided_in_another_epoch_is_not_delivered() {
        let mut host = host();
        let mut delivered = |epoch| {
            let mut header = Header::new(Type::Phase2B, 1, epoch);
            (header.instance, header.round) = (1, 257);
            header.digest = Digest::keyed(DIGEST_KEY).of(b"value");
            let (mut packet, mut bursts) = (Vec::new(), [Burst::default()]);
            wire::emit(&header, b"value", &mut packet);
            host.on_decided(1, &packet, &mut Outbox::new());
            host.take_bursts(&mut bursts);
            let count = bursts[0].decided().len();
            count
        };
        assert_eq!((delivered(2), delivered(1)), (0, 1));
    }

    #[test]
    fn before_the_cluster_is_founded_a_read_is_told_so() {
        let mut config = host().config().clone();
        (config.epoch, config.acceptors, config.replicas) = (0, vec![], vec![]);
        let mut host = Host::new(0, config);
        let ticket = host.confirm_read(1, 0);
        let mut bursts = [Burst::default()];
        host.take_bursts(&mut bursts);
        let [(failed, why)] = bursts[0].reads_failed[..] else {
            panic!("{:?}", bursts[0].reads_failed);
        };
        assert_eq!(failed, ticket);
        assert!(
            why.to_string()
                .contains("founded once all its controllers are up"),
            "{why}"
        );
    }

    #[test]
    fn a_log_that_is_paused_delivers_afterwards_what_came_meanwhile() {
        let mut host = host();
        let mut out = Outbox::new();
        let mut delivered = |host: &mut Host, instance| {
            let mut header = Header::new(Type::Phase2B, 1, 1);
            (header.instance, header.round) = (instance, 257);
            header.digest = Digest::keyed(DIGEST_KEY).of(b"value");
            let (mut packet, mut bursts) = (Vec::new(), [Burst::default()]);
            wire::emit(&header, b"value", &mut packet);
            host.on_decided(1, &packet, &mut out);
            host.take_bursts(&mut bursts);
            let count = bursts[0].decided().len();
            count
        };
        assert_eq!(delivered(&mut host, 1), 1);
        host.pause(1, 0, true, &mut Outbox::new());
        assert_eq!(delivered(&mut host, 2), 0);
        assert_eq!(delivered(&mut host, 3), 0);
        // It has no hole: the next instance is there.
        let learner = host.partition(0).learner().expect("a replica");
        assert_eq!((learner.due(), learner.next()), (Micros::MAX, 2));
        assert_eq!(learner.decided(), 3, "its leader need not take over");
        assert!(learner.is_paused());
        host.pause(1, 0, false, &mut Outbox::new());
        assert_eq!(delivered(&mut host, 4), 3);
    }

    /// What the operator is told about a stuck log.
    #[test]
    fn acceptors_with_a_value_that_nobody_can_read_are_named() {
        let mut host = host();
        for node in [1, 3, 1] {
            let mut header = Header::new(Type::Phase2B, node, 1);
            header.flags = flag::REPEAT;
            (header.instance, header.round) = (1, 257);
            header.digest = Digest::keyed(DIGEST_KEY).of(b"value");
            receive(&mut host, &header, b"other");
        }
        let unreadable_at = |host: &Host| {
            let learner = host.partition(0).learner().expect("a replica");
            learner.unreadable_at().to_vec()
        };
        assert_eq!(unreadable_at(&host), [1, 3]);
        let mut reply = Header::new(Type::Reply, 1, 1);
        (reply.instance, reply.round) = (1, 257);
        reply.digest = Digest::keyed(DIGEST_KEY).of(b"value");
        receive(&mut host, &reply, b"value");
        assert!(unreadable_at(&host).is_empty(), "another replica had it");
    }

    #[test]
    fn a_question_to_a_replicas_log_is_answered_once_and_to_whom_it_names() {
        let mut host = host();
        let mut reply = Header::new(Type::Reply, 1, 1);
        (reply.instance, reply.round) = (1, 257);
        reply.digest = Digest::keyed(DIGEST_KEY).of(b"value");
        receive(&mut host, &reply, b"value");
        let ask = |host: &mut Host, incarnation, number| {
            let mut header = Header::new(Type::Learn, 3, 1);
            header.flags = flag::PEER;
            (header.instance, header.client_seq) = (1, 128);
            header.client_id = process_id(3, incarnation);
            header.client_low = number;
            let (mut packet, mut out) = (Vec::new(), Outbox::new());
            wire::emit(&header, &[], &mut packet);
            host.on_packet(1, &packet, &mut out);
            out.iter().map(|(dest, _)| dest).collect::<Vec<Dest>>()
        };
        let to_the_asker = vec![Dest::Node(3)];
        assert_eq!(ask(&mut host, 4, 1), to_the_asker, "wherever it came from");
        assert_eq!(ask(&mut host, 4, 1), [], "sent again");
        assert_eq!(ask(&mut host, 4, 3), to_the_asker);
        assert_eq!(ask(&mut host, 4, 2), [], "overtaken");
        assert_eq!(ask(&mut host, 3, 9), [], "of the process before");
        assert_eq!(ask(&mut host, 5, 1), to_the_asker, "of the next process");
    }

    #[test]
    fn an_alive_that_was_changed_repeated_or_overtaken_says_nothing() {
        let mut host = host();
        let held = |host: &Host| host.partition(0).trim().peers().get(&1).copied();
        let alive = |incarnation, number, applied| {
            let mut header = Header::new(Type::Alive, 1, 1);
            header.client_id = process_id(1, incarnation);
            header.client_seq = number;
            header.instance = applied;
            header
        };
        receive(&mut host, &alive(4, 1, 7), b"");
        assert_eq!((held(&host), host.bad_packets()), (None, 1), "no digest");
        let right = |mut header: Header| {
            header.digest = Digest::keyed(DIGEST_KEY).of(b"");
            header
        };
        let said = |host: &mut Host, incarnation, number, applied| {
            receive(host, &right(alive(incarnation, number, applied)), b"");
            held(host)
        };
        assert_eq!(said(&mut host, 4, 2, 7), Some(7));
        // No host sends any of these twice, so the result shows whether each is accepted.
        assert_eq!(said(&mut host, 4, 2, 8), Some(7), "repeated");
        assert_eq!(said(&mut host, 4, 1, 8), Some(7), "overtaken");
        assert_eq!(said(&mut host, 3, 9, 8), Some(7), "of the process before");
        assert_eq!(said(&mut host, 4, 3, 9), Some(9));
        assert_eq!(said(&mut host, 5, 1, 10), Some(10), "of the next process");
    }
}
