//! All protocol state of one host, sans-I/O: the roles that run in user space, and the state
//! machines beside them.
//!
//! A driver gives it packets, time and decided values, and sends what it puts into an [`Outbox`].
//! The simulator is such a driver, so what it torments is what runs.

use std::collections::VecDeque;

use inband_dataplane::registers::LeaderView;
use inband_dataplane::round;
use inband_dataplane::soft::{Geometry, Roles, SoftSwitch, Verdict};
use inband_dataplane::wire::{self, flag, Header, Type, PACKET_LEN_MAX_BYTES};

use crate::leadership::{LeaderEvent, Leadership, LeadershipConfig};
use crate::learner::{origin_of, Learner, LearnerConfig};
use crate::log::{Burst, Origin, SubmitError, Ticket};
use crate::outbox::{Dest, Outbox};
use crate::proposer::Proposer;
use crate::rounds::RoundSource;
use crate::timing::{Micros, Timing};
use crate::trim::Trim;

/// Packets of a host to itself handled in one go; more than any exchange of roles can cause.
const LOCAL_PACKETS_MAX: usize = 100_000;

/// What a host is.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// This node's id, 1..=254.
    pub node: u8,
    /// Configuration epoch.
    pub epoch: u32,
    /// First instance of this epoch; everything below is in the replicas' state.
    pub first_instance: u64,
    /// Acceptors' node ids.
    pub acceptors: Vec<u8>,
    /// Replicas' node ids: hosts with a quorum counter and a learner.
    pub replicas: Vec<u8>,
    /// Ids of nodes with a leader role, in take-over order.
    pub leaders: Vec<u8>,
    /// Roles this host runs in user space.
    pub soft_roles: Roles,
    /// Roles this host runs in the kernel.
    pub kernel_roles: Roles,
    /// Sizes.
    pub geometry: Geometry,
    /// Times.
    pub timing: Timing,
    /// Decided values kept for peers that fell behind.
    pub log_values_max: usize,
    /// Durable, never used again by this node.
    pub incarnation: u64,
    /// May a soft acceptor vote? `false` if it may have forgotten votes of this epoch.
    pub voting: bool,
    /// Last instance the application has applied.
    pub applied: u64,
}

/// Why an instance cannot be recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// Only learners recover.
    #[error("this node is no replica and learns nothing; recover at a replica")]
    NoLearner,
    /// Delivered long ago and dropped from the log.
    #[error(
        "instance {instance} was delivered before and is no longer held; the log starts at {first}"
    )]
    Trimmed {
        /// Asked for.
        instance: u64,
        /// Lowest instance still held.
        first: u64,
    },
    /// Further ahead than the acceptors' rings reach.
    #[error("instance {instance} is too far ahead; instances below {limit} can be recovered now")]
    TooFarAhead {
        /// Asked for.
        instance: u64,
        /// First instance that cannot be.
        limit: u64,
    },
}

/// See the module. One partition for now; state machines carry their partition already.
pub struct Host {
    config: HostConfig,
    switch: Option<SoftSwitch>,
    rounds: RoundSource,
    proposer: Proposer,
    learner: Option<Learner>,
    leadership: Option<Leadership>,
    trim: Trim,
    burst: Burst,
    local: VecDeque<Vec<u8>>,
    kernel_leader: LeaderView,
    kernel_command: Option<LeaderEvent>,
    events: Vec<(Micros, LeaderEvent)>,
    bad_packets: u64,
}

const PARTITION: usize = 0;

impl Host {
    /// A host that starts at `now`.
    pub fn new(now: Micros, config: HostConfig) -> Host {
        let soft = config.soft_roles;
        let switch = (soft.leader || soft.acceptor || soft.quorum).then(|| {
            let switch = SoftSwitch::new(config.node, soft, config.geometry);
            let registers = switch.registers();
            if soft.acceptor {
                let epoch = u64::from(config.epoch);
                registers
                    .acceptor
                    .start(PARTITION, epoch, config.first_instance, config.voting);
            }
            if soft.quorum {
                registers
                    .quorum
                    .configure(u64::from(config.epoch), &config.acceptors);
            }
            switch
        });
        let has_learner = config.replicas.contains(&config.node);
        let learner = has_learner.then(|| {
            let learner = LearnerConfig {
                node: config.node,
                partition: PARTITION as u16,
                epoch: config.epoch,
                acceptors: config.acceptors.clone(),
                ahead_max: config.geometry.ring_slots as u64,
                log_values_max: config.log_values_max,
                timing: config.timing,
            };
            Learner::new(learner, config.applied)
        });
        let leads = soft.leader || config.kernel_roles.leader;
        let leadership = leads.then(|| {
            let leadership = LeadershipConfig {
                node: config.node,
                partition: PARTITION as u16,
                epoch: config.epoch,
                acceptors: config.acceptors.clone(),
                leaders: config.leaders.clone(),
                first_instance: config.first_instance,
                timing: config.timing,
            };
            Leadership::new(now, leadership)
        });
        let partition = PARTITION as u16;
        let mut trim = Trim::new(
            config.node,
            partition,
            config.epoch,
            config.replicas.clone(),
            config.geometry.ring_slots as u64,
            config.timing,
        );
        trim.applied(config.applied);
        Host {
            rounds: RoundSource::new(config.node, config.incarnation),
            proposer: Proposer::new(
                config.node,
                partition,
                config.epoch,
                config.incarnation,
                config.timing,
            ),
            switch,
            learner,
            leadership,
            trim,
            burst: Burst::new(),
            local: VecDeque::new(),
            kernel_leader: LeaderView::default(),
            kernel_command: None,
            events: Vec::new(),
            bad_packets: 0,
            config,
        }
    }

    /// What this host is.
    pub fn config(&self) -> &HostConfig {
        &self.config
    }

    /// The soft switch, if any role runs in user space.
    pub fn switch(&self) -> Option<&SoftSwitch> {
        self.switch.as_ref()
    }

    /// The soft switch, for faults that tests inject.
    pub fn switch_mut(&mut self) -> Option<&mut SoftSwitch> {
        self.switch.as_mut()
    }

    /// The learner, if this host is a replica.
    pub fn learner(&self) -> Option<&Learner> {
        self.learner.as_ref()
    }

    /// The leadership, if this host has a leader role.
    pub fn leadership(&self) -> Option<&Leadership> {
        self.leadership.as_ref()
    }

    /// The proposer.
    pub fn proposer(&self) -> &Proposer {
        &self.proposer
    }

    /// What replicas have applied, as known here.
    pub fn trim(&self) -> &Trim {
        &self.trim
    }

    /// Packets for this host's state machines that were malformed.
    pub fn bad_packets(&self) -> u64 {
        self.bad_packets
    }

    /// Leader changes since the last call, with their times.
    pub fn take_leader_events(&mut self) -> Vec<(Micros, LeaderEvent)> {
        std::mem::take(&mut self.events)
    }

    /// What the leader's registers in the kernel hold now; to be set before `on_tick`.
    pub fn set_kernel_leader(&mut self, view: LeaderView) {
        self.kernel_leader = view;
    }

    /// A change of the leader's registers in the kernel that the driver is to carry out, before it
    /// sends anything.
    pub fn take_kernel_command(&mut self) -> Option<LeaderEvent> {
        self.kernel_command.take()
    }

    /// Submit a value; see [`crate::log::ReplicatedLog::submit`].
    pub fn submit(
        &mut self,
        now: Micros,
        value: &[u8],
        out: &mut Outbox,
    ) -> Result<Ticket, SubmitError> {
        if self.learner.is_none() {
            return Err(SubmitError::Closed(
                "it is no replica and would not learn the outcome",
            ));
        }
        let mut own = Outbox::new();
        let ticket = self.proposer.submit(now, value, &mut own)?;
        self.route(now, &own, out);
        Ok(ticket)
    }

    /// Find out what was decided in `instance`, or decide `noop` there (CAANS, Figure 4). The value
    /// of an instance delivered before is handed to `known`; of a later one it is delivered in order.
    pub fn recover(
        &mut self,
        now: Micros,
        instance: u64,
        noop: &[u8],
        out: &mut Outbox,
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
        let limit = learner.next() + self.config.geometry.ring_slots as u64;
        if instance >= limit {
            return Err(RecoverError::TooFarAhead { instance, limit });
        }
        let mut own = Outbox::new();
        learner.recover(now, instance, noop.to_vec(), &mut self.rounds, &mut own);
        self.route(now, &own, out);
        Ok(())
    }

    /// See [`crate::log::ReplicatedLog::applied`].
    pub fn applied(&mut self, instance: u64) {
        self.trim.applied(instance);
    }

    /// See [`crate::log::ReplicatedLog::reset`].
    pub fn reset(&mut self, applied: u64) {
        if let Some(learner) = &mut self.learner {
            learner.reset(applied);
        }
        // What was decided and not yet taken is part of the state that was installed.
        self.burst.clear();
        self.proposer.reset();
        self.trim.applied(applied);
    }

    /// See [`crate::log::ReplicatedLog::session_refused`].
    pub fn session_refused(&mut self, now: Micros, out: &mut Outbox) {
        let mut own = Outbox::new();
        self.proposer.session_refused(now, &mut own);
        self.route(now, &own, out);
    }

    /// See [`crate::log::ReplicatedLog::answered`].
    pub fn answered(&mut self, ticket: Ticket) {
        self.proposer.answered(ticket);
    }

    /// Open the proposer's session ahead of the first value.
    pub fn open_session(&mut self, now: Micros, out: &mut Outbox) {
        let mut own = Outbox::new();
        self.proposer.open_session(now, &mut own);
        self.route(now, &own, out);
    }

    /// Move what was decided and what failed since the last call to the end of `burst`.
    pub fn take_burst(&mut self, burst: &mut Burst) {
        burst.append(&mut self.burst);
        burst.failed.extend(self.proposer.take_failed());
        burst.checkpoint_needed |= self
            .learner
            .as_ref()
            .is_some_and(Learner::checkpoint_needed);
    }

    /// A packet for this host arrived: no role in the kernel took it.
    pub fn on_packet(&mut self, now: Micros, packet: &[u8], out: &mut Outbox) {
        self.handle(now, packet, false, out);
        self.drain_local(now, out);
    }

    /// The quorum counter in the kernel handed a decided value over.
    pub fn on_decided(&mut self, now: Micros, packet: &[u8], out: &mut Outbox) {
        match wire::parse(packet) {
            Ok((header, value)) => self.decided(now, &header, value, out),
            Err(_) => self.bad_packets += 1,
        }
        self.drain_local(now, out);
    }

    /// Time passed. To be called at least when [`Host::due`] says.
    pub fn on_tick(&mut self, now: Micros, out: &mut Outbox) {
        let mut own = Outbox::new();
        self.proposer.on_tick(now, &mut own);
        if let Some(learner) = &mut self.learner {
            learner.on_tick(now, &mut self.rounds, &mut own);
        }
        let view = self.leader_view();
        let applied = self.trim.highest_applied();
        let mut round = 0;
        if let Some(leadership) = &mut self.leadership {
            leadership.on_applied(now, applied);
            let event = leadership.on_tick(now, view, &mut self.rounds, &mut own);
            round = leadership.known_round();
            self.lead(now, event);
        }
        self.trim.on_tick(now, round, &mut own);
        self.route(now, &own, out);
    }

    /// When `on_tick` has something to do: `now` or later. Stays where it is until that time comes or
    /// something happens.
    pub fn due(&self, now: Micros) -> Micros {
        let learner = self.learner.as_ref().map_or(Micros::MAX, Learner::due);
        let leadership = self
            .leadership
            .as_ref()
            .map_or(Micros::MAX, Leadership::due);
        self.proposer
            .due()
            .min(learner)
            .min(leadership)
            .min(self.trim.due())
            .max(now)
    }

    /// The leader's registers of this host, wherever they are.
    pub fn leader_view(&self) -> LeaderView {
        match &self.switch {
            Some(switch) if self.config.soft_roles.leader => {
                switch.registers().leader.leader(PARTITION)
            }
            _ => self.kernel_leader,
        }
    }

    fn lead(&mut self, now: Micros, event: Option<LeaderEvent>) {
        let Some(event) = event else { return };
        self.events.push((now, event));
        if self.config.kernel_roles.leader {
            self.kernel_command = Some(event);
            return;
        }
        let Some(switch) = &self.switch else { return };
        let registers = &switch.registers().leader;
        match event {
            LeaderEvent::Activate(view) => registers.activate(PARTITION, view),
            // A leader that takes over from itself stops stamping in its old round first.
            LeaderEvent::Deactivate | LeaderEvent::Suspected => registers.deactivate(PARTITION),
        }
    }

    /// Handle one packet: the soft roles first, then the state machines.
    fn handle(&mut self, now: Micros, packet: &[u8], from_self: bool, out: &mut Outbox) {
        if packet.len() > PACKET_LEN_MAX_BYTES {
            self.bad_packets += 1;
            return;
        }
        let Some(switch) = &self.switch else {
            self.host_packet(now, packet, from_self, out);
            return;
        };
        let mut buffer = [0u8; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(packet);
        let (verdict, _reason, len_bytes) = switch.handle(&mut buffer, packet.len());
        let packet = &buffer[..len_bytes];
        match verdict {
            Verdict::Drop => {}
            Verdict::Pass => self.host_packet(now, packet, from_self, out),
            Verdict::Back if from_self => self.local.push_back(packet.to_vec()),
            Verdict::Back => out.send_raw(Dest::Sender, packet),
            Verdict::ToAcceptors => self.route_one(Dest::Acceptors, packet, out),
            Verdict::ToLearners => self.route_one(Dest::Learners, packet, out),
            Verdict::Up => match wire::parse(packet) {
                Ok((header, value)) => self.decided(now, &header, value, out),
                Err(_) => self.bad_packets += 1,
            },
        }
    }

    fn decided(&mut self, now: Micros, header: &Header, value: &[u8], out: &mut Outbox) {
        let mut own = Outbox::new();
        let leader = round::owner(header.round);
        if self.config.leaders.contains(&leader) && !header.has(flag::RECOVERY) {
            self.proposer.leader_is(now, header.round, &mut own);
        }
        self.rounds.saw(header.round);
        self.learn(now, &mut own, |learner, deliver| {
            learner.on_decided(header, value, deliver)
        });
        self.route(now, &own, out);
    }

    /// Run the learner; what it delivers goes to the burst, with our ticket if it is ours.
    fn learn(
        &mut self,
        now: Micros,
        own: &mut Outbox,
        event: impl FnOnce(&mut Learner, &mut crate::learner::Deliver<'_>),
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

    /// A packet for the state machines.
    fn host_packet(&mut self, now: Micros, packet: &[u8], from_self: bool, out: &mut Outbox) {
        let Ok((header, value)) = wire::parse(packet) else {
            self.bad_packets += 1;
            return;
        };
        let stranger = !self.is_member(header.node);
        if stranger || usize::from(header.partition) >= self.config.geometry.partitions {
            self.bad_packets += 1;
            return;
        }
        let mut own = Outbox::new();
        match header.kind {
            Type::Phase1B => self.on_promise(now, &header, value, &mut own),
            Type::Phase2B => {
                if header.has(flag::REPEAT) || header.has(flag::RECOVERY) {
                    self.learn(now, &mut own, |l, deliver| {
                        l.on_vote(&header, value, deliver)
                    });
                }
            }
            Type::Nack => self.on_nack(now, &header, &mut own),
            Type::Busy => self.proposer.on_refusal(now, &header),
            Type::Learn => {
                if let Some(learner) = &self.learner {
                    learner.on_learn(&header, &mut own);
                }
            }
            Type::Reply => {
                self.learn(now, &mut own, |l, deliver| {
                    l.on_reply(&header, value, deliver)
                });
                if let Some(learner) = &mut self.learner {
                    learner.ask_on(now, &mut own);
                }
            }
            Type::Position if header.has(flag::ANSWER) => self.on_position(now, &header, &mut own),
            Type::Alive => self.on_alive(now, &header, &mut own),
            // For roles that do not run here: somebody's configuration is out of date.
            Type::Request | Type::Phase1A | Type::Phase2A | Type::Trim | Type::Position => {}
        }
        for (dest, packet) in own.iter() {
            if dest == Dest::Sender && from_self {
                self.local.push_back(packet.to_vec());
            } else {
                self.route_one(dest, packet, out);
            }
        }
    }

    /// Every sender of packets for state machines is a node of the configuration. A stranger's word
    /// about far instances would send a learner after them for ever.
    fn is_member(&self, node: u16) -> bool {
        let groups = [
            &self.config.acceptors,
            &self.config.replicas,
            &self.config.leaders,
        ];
        groups
            .iter()
            .any(|group| group.iter().any(|member| u16::from(*member) == node))
    }

    fn on_promise(&mut self, now: Micros, header: &Header, value: &[u8], own: &mut Outbox) {
        if header.has(flag::VOTE) && wire::digest(value) != header.digest {
            self.bad_packets += 1;
            return; // a damaged vote is no answer, least of all "no vote"
        }
        let event = match &mut self.leadership {
            Some(leadership) => leadership.on_promise(now, header, value, own),
            None => None,
        };
        self.lead(now, event);
        if let Some(learner) = &mut self.learner {
            learner.on_promise(now, header, value, own);
        }
    }

    fn on_nack(&mut self, now: Micros, header: &Header, own: &mut Outbox) {
        if header.has(flag::LEADER) {
            self.proposer.on_refusal(now, header);
            return;
        }
        self.rounds.saw(header.round);
        let event = match &mut self.leadership {
            Some(leadership) => leadership.on_nack(now, header, &mut self.rounds, own),
            None => None,
        };
        self.lead(now, event);
        if let Some(learner) = &mut self.learner {
            learner.on_nack(now, header);
        }
    }

    fn on_position(&mut self, now: Micros, header: &Header, own: &mut Outbox) {
        let from_self = header.node == u16::from(self.config.node);
        let of_leader = header.has(flag::LEADER);
        if header.epoch != self.config.epoch || (of_leader && from_self) {
            return;
        }
        self.rounds.saw(header.round);
        let Some(leadership) = &mut self.leadership else {
            return;
        };
        let event = if of_leader {
            leadership.on_leader_heard(now, header.round)
        } else {
            leadership.on_acceptor_heard(now, header, &mut self.rounds, own)
        };
        self.lead(now, event);
    }

    fn on_alive(&mut self, now: Micros, header: &Header, own: &mut Outbox) {
        if header.epoch != self.config.epoch {
            return;
        }
        self.trim.on_alive(header);
        self.rounds.saw(header.round);
        if let Some(learner) = &mut self.learner {
            learner.heard_of(header.instance);
        }
        let leader = round::owner(header.round);
        if header.round != 0 && u16::from(leader) == header.node {
            self.proposer.leader_is(now, header.round, own);
            if leader != self.config.node {
                let leadership = self.leadership.as_mut();
                let event = leadership.and_then(|l| l.on_leader_heard(now, header.round));
                self.lead(now, event);
            }
        }
    }

    fn drain_local(&mut self, now: Micros, out: &mut Outbox) {
        for _ in 0..LOCAL_PACKETS_MAX {
            let Some(packet) = self.local.pop_front() else {
                return;
            };
            self.handle(now, &packet, true, out);
        }
        panic!("roles of one host keep answering each other");
    }

    fn route(&mut self, now: Micros, own: &Outbox, out: &mut Outbox) {
        for (dest, packet) in own.iter() {
            self.route_one(dest, packet, out);
        }
        self.drain_local(now, out);
    }

    /// Send a packet; what is for this host itself is handled here, unless a role in the kernel
    /// is to handle it: then the driver hands it there.
    fn route_one(&mut self, dest: Dest, packet: &[u8], out: &mut Outbox) {
        let nodes: &[u8] = match dest {
            Dest::Acceptors => &self.config.acceptors,
            Dest::Learners => &self.config.replicas,
            Dest::Leaders => &self.config.leaders,
            Dest::Node(node) => &[node],
            Dest::Sender => {
                out.send_raw(dest, packet);
                return;
            }
        };
        for node in nodes {
            if *node != self.config.node || self.is_for_kernel(packet) {
                out.send_raw(Dest::Node(*node), packet);
            } else {
                self.local.push_back(packet.to_vec());
            }
        }
    }

    fn is_for_kernel(&self, packet: &[u8]) -> bool {
        let roles = self.config.kernel_roles;
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
