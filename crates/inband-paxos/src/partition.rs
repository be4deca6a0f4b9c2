//! The protocol state of one log on one host: proposer, learner, reader, leadership and trim, and how events affect
//! each of them.

use crate::dataplane::registers::LeaderView;
use crate::dataplane::round;
use crate::dataplane::soft::SoftSwitch;
use crate::dataplane::wire::{flag, Header, Type};

use crate::host::{HostConfig, RecoverError};
use crate::leadership::{LeaderEvent, Leadership, LeadershipConfig};
use crate::learner::{origin_of, Deliver, Learner, LearnerConfig};
use crate::log::{Burst, Origin, ReadTicket, SubmitError, Ticket};
use crate::outbox::{Dest, Outbox};
use crate::proposer::Proposer;
use crate::reader::{Reader, ReaderConfig};
use crate::rounds::RoundSource;
use crate::timing::Micros;
use crate::trim::Trim;

/// Why a host outside of all epochs accepts no values.
const NOT_FOUNDED: &str =
    "it has no configuration yet; a cluster is founded once all its controllers are up, and its \
                           log says which are missing. Try again";

/// Returns the leadership of a host that has a leader role and is among the leaders of its epoch.
fn leadership(now: Micros, partition: usize, config: &HostConfig) -> Option<Leadership> {
    let has_role = config.soft_roles.leader || config.kernel_roles.leader;
    let leads = has_role && config.leader_nodes().contains(&config.node);
    leads.then(|| {
        let leadership = LeadershipConfig {
            node: config.node,
            partition: partition as u16,
            epoch: config.epoch,
            acceptors: config.acceptors.clone(),
            leaders: config.leaders[partition].clone(),
            first_instance: config.logs[partition].first_instance,
            incarnation: config.incarnation,
            digest: config.digest,
            timing: config.timing,
        };
        Leadership::new(now, leadership)
    })
}

/// State shared by the partitions of a host.
pub(crate) struct Shared {
    pub config: HostConfig,
    pub switch: Option<SoftSwitch>,
    pub rounds: RoundSource,
    /// Leader changes, for reports: time, partition and event.
    pub events: Vec<(Micros, usize, LeaderEvent)>,
    /// Changes of leader registers in the kernel that the driver must carry out.
    pub kernel_commands: Vec<(usize, LeaderEvent)>,
    pub bad_packets: u64,
    /// Number of ALIVEs sent by this process.
    pub alives: u64,
}

/// Identifies a process among those of all nodes, as long as incarnations are not reused. Queries carry it, so that
/// answers to others, which the network may deliver here, are not accepted.
pub(crate) fn process_id(node: u8, incarnation: u64) -> u64 {
    incarnation << 8 | u64::from(node)
}

impl Shared {
    /// Tells all learners and leaders what this host has applied of a log, and which leader's round it knows; `value`
    /// has the same for the logs after it. Numbered: one that is duplicated or overtaken is ignored.
    pub fn tell_alive(
        &mut self,
        partition: usize,
        applied: u64,
        round: u64,
        value: &[u8],
        own: &mut Outbox,
    ) {
        self.alives += 1;
        let config = &self.config;
        let mut header = Header::new(Type::Alive, u16::from(config.node), config.epoch);
        header.partition = partition as u16;
        header.instance = applied;
        header.round = round;
        header.client_id = process_id(config.node, config.incarnation);
        header.client_seq = self.alives;
        header.digest = config.digest.of(value);
        own.send(Dest::Peers, &header, value);
    }
}

pub struct Partition {
    id: usize,
    pub(crate) proposer: Proposer,
    learner: Option<Learner>,
    reader: Reader,
    leadership: Option<Leadership>,
    pub(crate) trim: Trim,
    burst: Burst,
    kernel_leader: LeaderView,
}

impl Partition {
    pub(crate) fn new(now: Micros, id: usize, config: &HostConfig) -> Partition {
        let partition = id as u16;
        let start = config.logs[id];
        let learns = config.soft_roles.quorum || config.kernel_roles.quorum;
        let learner = learns.then(|| {
            let learner = LearnerConfig {
                node: config.node,
                partition,
                incarnation: config.incarnation,
                epoch: config.epoch,
                acceptors: config.acceptors.clone(),
                ahead_max: config.geometry.ring_slots as u64,
                log_limit: config.peer_log_limit(),
                digest: config.digest,
                timing: config.timing,
            };
            Learner::new(learner, start.applied)
        });
        let leadership = leadership(now, id, config);
        let reader = ReaderConfig {
            node: config.node,
            partition,
            epoch: config.epoch,
            acceptors: config.acceptors.clone(),
            incarnation: config.incarnation,
            timing: config.timing,
        };
        let mut trim = Trim::new(
            config.node,
            partition,
            config.epoch,
            config.replicas.clone(),
            config.geometry.ring_slots as u64,
            config.timing,
        );
        trim.applied(start.applied);
        Partition {
            id,
            proposer: Proposer::new(
                config.node,
                partition,
                config.epoch,
                config.incarnation,
                config.digest,
                config.timing,
            ),
            learner,
            reader: Reader::new(reader),
            leadership,
            trim,
            burst: Burst::new(),
            kernel_leader: LeaderView::default(),
        }
    }

    /// Returns the learner, if this host is a replica.
    pub fn learner(&self) -> Option<&Learner> {
        self.learner.as_ref()
    }

    /// Returns the leadership, if this host has a leader role.
    pub fn leadership(&self) -> Option<&Leadership> {
        self.leadership.as_ref()
    }

    pub fn proposer(&self) -> &Proposer {
        &self.proposer
    }

    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Returns what replicas have applied, as far as known here.
    pub fn trim(&self) -> &Trim {
        &self.trim
    }

    /// Sets the current contents of the leader's registers in the kernel.
    pub(crate) fn set_kernel_leader(&mut self, view: LeaderView) {
        self.kernel_leader = view;
    }

    pub(crate) fn submit(
        &mut self,
        now: Micros,
        value: &[u8],
        shared: &Shared,
        own: &mut Outbox,
    ) -> Result<Ticket, SubmitError> {
        if shared.config.epoch == 0 {
            return Err(SubmitError::Closed(NOT_FOUNDED));
        }
        if !self.is_replica(shared) {
            return Err(SubmitError::Closed(
                "it is not a replica and would not learn the outcome",
            ));
        }
        self.proposer.submit(now, value, own)
    }

    fn is_replica(&self, shared: &Shared) -> bool {
        self.learner.is_some() && shared.config.replicas.contains(&shared.config.node)
    }

    pub(crate) fn recover(
        &mut self,
        now: Micros,
        instance: u64,
        noop: &[u8],
        shared: &mut Shared,
        own: &mut Outbox,
        known: &mut dyn FnMut(Origin, &[u8]),
    ) -> Result<(), RecoverError> {
        let Some(learner) = &mut self.learner else {
            return Err(RecoverError::NoLearner);
        };
        if instance < learner.next() {
            let held = learner.log().get(instance).ok_or(RecoverError::Trimmed {
                instance,
                first: learner.log().first(),
            })?;
            known(origin_of(held.0), held.1);
            return Ok(());
        }
        let limit = learner.next() + shared.config.geometry.ring_slots as u64;
        if instance >= limit {
            return Err(RecoverError::TooFarAhead { instance, limit });
        }
        learner.recover(now, instance, noop.to_vec(), &mut shared.rounds, own);
        Ok(())
    }

    pub(crate) fn confirm_read(&mut self, now: Micros, shared: &Shared) -> ReadTicket {
        if self.is_replica(shared) {
            self.reader.confirm(now)
        } else if shared.config.epoch == 0 {
            self.reader.refuse(NOT_FOUNDED)
        } else {
            self.reader
                .refuse("this node is not a replica and cannot read; read at a replica")
        }
    }

    /// Enters the epoch that the host has just entered.
    pub(crate) fn enter_epoch(&mut self, now: Micros, shared: &mut Shared, own: &mut Outbox) {
        let config = &shared.config;
        let (epoch, acceptors) = (config.epoch, &config.acceptors);
        self.proposer.enter_epoch(now, epoch);
        self.reader.enter_epoch(epoch, acceptors);
        self.trim.enter_epoch(epoch, &config.replicas);
        if let Some(learner) = &mut self.learner {
            learner.enter_epoch(now, epoch, acceptors, &mut shared.rounds, own);
        }
        let event = match &mut self.leadership {
            Some(leadership) if config.leader_nodes().contains(&config.node) => {
                let leaders = config.leaders[self.id].clone();
                leadership.enter_epoch(now, epoch, acceptors, leaders, own)
            }
            former => {
                let was_active = former.as_ref().is_some_and(Leadership::is_active);
                *former = leadership(now, self.id, config);
                was_active.then_some(LeaderEvent::Deactivate)
            }
        };
        self.lead(now, event, shared, own);
    }

    /// The take-over order of this log has changed.
    pub(crate) fn reorder_leaders(&mut self, now: Micros, shared: &Shared, own: &mut Outbox) {
        if let Some(leadership) = &mut self.leadership {
            let leaders = shared.config.leaders[self.id].clone();
            leadership.reorder(now, leaders, own);
        }
    }

    pub(crate) fn pause(&mut self, now: Micros, is_paused: bool, own: &mut Outbox) {
        self.learn(now, own, |learner, deliver| {
            learner.set_paused(is_paused, deliver)
        });
    }

    pub(crate) fn hold_log(&mut self, now: Micros) {
        if let Some(learner) = &mut self.learner {
            learner.hold_log(now);
        }
    }

    pub(crate) fn reset(&mut self, applied: u64) {
        if let Some(learner) = &mut self.learner {
            learner.reset(applied);
        }
        // What was decided and not taken yet is part of the installed state.
        self.burst.clear();
        self.proposer.reset();
        self.trim.applied(applied);
    }

    /// Appends what was decided and what failed since the last call to `burst`. True: call again even if nothing else
    /// happens.
    pub(crate) fn take_burst(&mut self, burst: &mut Burst) -> bool {
        burst.append(&mut self.burst);
        burst.failed.extend(self.proposer.take_failed());
        let learner = self.learner.as_ref();
        self.reader.take(learner.map_or(0, Learner::next), burst);
        let checkpoint_needed = learner.is_some_and(Learner::checkpoint_needed);
        burst.checkpoint_needed |= checkpoint_needed;
        checkpoint_needed
    }

    /// This host's quorum counter has seen a majority vote for this value.
    pub(crate) fn on_decided(
        &mut self,
        now: Micros,
        header: &Header,
        value: &[u8],
        shared: &mut Shared,
        own: &mut Outbox,
    ) {
        // Delivered before this host left that epoch. Whatever still counts will be learned again.
        if header.epoch != shared.config.epoch {
            return;
        }
        let leader = round::owner(header.round);
        if shared.config.leader_nodes().contains(&leader) && !header.has(flag::RECOVERY) {
            self.proposer.leader_is(now, header.round, own);
        }
        shared.rounds.saw(header.round);
        self.learn(now, own, |learner, deliver| {
            learner.on_decided(header, value, deliver)
        });
    }

    /// Runs the learner; what it delivers goes into the burst, with a ticket if it is this host's own.
    fn learn(
        &mut self,
        now: Micros,
        own: &mut Outbox,
        event: impl FnOnce(&mut Learner, &mut Deliver<'_>),
    ) {
        let Some(learner) = &mut self.learner else {
            return;
        };
        let (burst, proposer) = (&mut self.burst, &mut self.proposer);
        let mut deliver = |instance: u64, origin: Origin, value: &[u8]| {
            let ticket = proposer.delivered(now, instance, &origin, own);
            burst.push(instance, origin, ticket, value);
        };
        event(learner, &mut deliver);
    }

    /// A packet for the state machines, from a node of the configuration.
    pub(crate) fn on_packet(
        &mut self,
        now: Micros,
        header: &Header,
        value: &[u8],
        shared: &mut Shared,
        own: &mut Outbox,
    ) {
        match header.kind {
            Type::Phase1B => self.on_promise(now, header, value, shared, own),
            Type::Phase2B => {
                if header.has(flag::REPEAT) || header.has(flag::RECOVERY) {
                    self.learn(now, own, |l, deliver| l.on_vote(header, value, deliver));
                }
            }
            Type::Nack => self.on_nack(now, header, shared, own),
            Type::Busy => self.proposer.on_refusal(now, header),
            Type::Learn => {
                if let Some(learner) = &mut self.learner {
                    learner.on_learn(now, header, own);
                }
            }
            Type::Reply => {
                self.learn(now, own, |l, deliver| l.on_reply(header, value, deliver));
                if let Some(learner) = &mut self.learner {
                    learner.ask_on(now, own);
                }
            }
            Type::Position if header.has(flag::ANSWER) => {
                self.on_position(now, header, shared, own);
            }
            // ALIVE concerns all partitions of its sender: the host splits it up. The others are for roles that do not
            // run here: some node's configuration is out of date.
            Type::Alive
            | Type::Request
            | Type::Phase1A
            | Type::Phase2A
            | Type::Trim
            | Type::Position => {}
        }
    }

    fn on_promise(
        &mut self,
        now: Micros,
        header: &Header,
        value: &[u8],
        shared: &mut Shared,
        own: &mut Outbox,
    ) {
        if header.has(flag::VOTE) && shared.config.digest.of(value) != header.digest {
            shared.bad_packets += 1;
            return; // a damaged vote is no answer, least of all "no vote"
        }
        let event = match &mut self.leadership {
            Some(leadership) => leadership.on_promise(now, header, value, own),
            None => None,
        };
        self.lead(now, event, shared, own);
        if let Some(learner) = &mut self.learner {
            learner.on_promise(now, header, value, own);
        }
    }

    fn on_nack(&mut self, now: Micros, header: &Header, shared: &mut Shared, own: &mut Outbox) {
        if header.has(flag::LEADER) {
            self.proposer.on_refusal(now, header);
            return;
        }
        shared.rounds.saw(header.round);
        let event = match &mut self.leadership {
            Some(leadership) => leadership.on_nack(now, header, &mut shared.rounds, own),
            None => None,
        };
        self.lead(now, event, shared, own);
        if let Some(learner) = &mut self.learner {
            learner.on_nack(now, header);
        }
    }

    fn on_position(&mut self, now: Micros, header: &Header, shared: &mut Shared, own: &mut Outbox) {
        let from_self = header.node == u16::from(shared.config.node);
        let of_leader = header.has(flag::LEADER);
        if header.epoch != shared.config.epoch || (of_leader && from_self) {
            return;
        }
        shared.rounds.saw(header.round);
        if !of_leader {
            let index = self.reader.on_position(now, header, own);
            if let (Some(index), Some(learner)) = (index, &mut self.learner) {
                // If the hole is not filled otherwise, the learner recovers it.
                learner.heard_of(index);
            }
        }
        let Some(leadership) = &mut self.leadership else {
            return;
        };
        let event = if of_leader {
            leadership.on_leader_answered(now, header)
        } else {
            leadership.on_acceptor_answered(now, header, &mut shared.rounds, own)
        };
        self.lead(now, event, shared, own);
    }

    /// What `node` reports: it has applied `applied`, and knows a leader with this round.
    pub(crate) fn on_alive(
        &mut self,
        now: Micros,
        node: u16,
        applied: u64,
        leader_round: u64,
        shared: &mut Shared,
        own: &mut Outbox,
    ) {
        self.trim.on_alive(node, applied);
        shared.rounds.saw(leader_round);
        if let Some(learner) = &mut self.learner {
            learner.heard_of(applied);
        }
        let leader = round::owner(leader_round);
        if leader_round != 0 && u16::from(leader) == node {
            self.proposer.leader_is(now, leader_round, own);
            if leader != shared.config.node {
                let leadership = self.leadership.as_mut();
                let event = leadership.and_then(|l| l.on_leader_heard(now, leader_round));
                self.lead(now, event, shared, own);
            }
        }
    }

    /// Position and round for this host's ALIVE.
    pub(crate) fn alive(&mut self) -> (u64, u64) {
        let round = self.leadership.as_ref().map_or(0, Leadership::known_round);
        (self.trim.tell_applied(), round)
    }

    pub(crate) fn on_tick(&mut self, now: Micros, shared: &mut Shared, own: &mut Outbox) {
        self.proposer.on_tick(now, own);
        self.reader.on_tick(now, own);
        if let Some(learner) = &mut self.learner {
            learner.on_tick(now, &mut shared.rounds, own);
        }
        let view = self.leader_view(shared);
        let learned = self.learner.as_ref().map_or(0, Learner::decided);
        let decided = self.trim.highest_applied().max(learned);
        let mut round = 0;
        if let Some(leadership) = &mut self.leadership {
            leadership.on_decided(now, decided);
            let event = leadership.on_tick(now, view, &mut shared.rounds, own);
            round = leadership.known_round();
            self.lead(now, event, shared, own);
        }
        if let Some(applied) = self.trim.step_to_tell() {
            shared.tell_alive(self.id, applied, round, &[], own);
        }
        self.trim.on_tick(now, own);
    }

    /// Returns when `on_tick` is next due.
    pub(crate) fn due(&self) -> Micros {
        let learner = self.learner.as_ref().map_or(Micros::MAX, Learner::due);
        let leadership = self.leadership.as_ref();
        let leadership = leadership.map_or(Micros::MAX, Leadership::due);
        let others = self.proposer.due().min(self.trim.due());
        let others = others.min(self.reader.due());
        others.min(learner).min(leadership)
    }

    /// This host's leader registers, wherever they are.
    pub(crate) fn leader_view(&self, shared: &Shared) -> LeaderView {
        match &shared.switch {
            Some(switch) if shared.config.soft_roles.leader => {
                switch.registers().leader.leader(self.id)
            }
            _ => self.kernel_leader,
        }
    }

    fn lead(
        &mut self,
        now: Micros,
        event: Option<LeaderEvent>,
        shared: &mut Shared,
        own: &mut Outbox,
    ) {
        let Some(event) = event else { return };
        if let LeaderEvent::Activate(view) = event {
            // So that requests are sent here at once. What this host has applied is reported separately.
            shared.tell_alive(self.id, 0, view.round, &[], own);
        }
        shared.events.push((now, self.id, event));
        if shared.config.kernel_roles.leader {
            shared.kernel_commands.push((self.id, event));
            return;
        }
        let Some(switch) = &shared.switch else { return };
        let registers = &switch.registers().leader;
        match event {
            LeaderEvent::Activate(view) => registers.activate(self.id, view),
            // A leader that takes over from itself stops stamping in its old round first.
            LeaderEvent::Deactivate | LeaderEvent::Suspected => registers.deactivate(self.id),
        }
    }
}
