//! All protocol state of one host, sans-I/O: the roles that run in user space, and the state machines beside them, one
//! set for each log.
//!
//! A driver passes it packets, time and decided values, and sends what it puts into an [`Outbox`]. The simulator is
//! such a driver, so it tests the code that runs in production.

mod alive;
mod config;
mod packets;

pub use config::{spread_leaders, EpochConfig, HostConfig, LogStart};
use packets::LocalPackets;

use crate::dataplane::registers::LeaderView;
use crate::dataplane::soft::{Registers, SoftSwitch};

use crate::journal::{AcceptorJournal, Restored};
use crate::leadership::LeaderEvent;
use crate::log::{Burst, Origin, ReadTicket, SubmitError, Ticket};
use crate::outbox::{Dest, Outbox};
use crate::partition::{Partition, Shared};
use crate::rounds::RoundSource;
use crate::timing::{next_beat, Micros};

/// Node ids are one byte.
const NODES: usize = 256;

/// Why an instance cannot be recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// Only learners recover.
    #[error("this node is not a replica and learns nothing; recover at a replica")]
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

    /// See [`crate::log::ReplicatedLog::sends_checkpoint`].
    pub fn hold_logs(&mut self, now: Micros) {
        for partition in 0..self.partitions.len() {
            self.partitions[partition].hold_log(now);
            self.due_again(partition);
        }
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
}

#[cfg(test)]
mod tests;
