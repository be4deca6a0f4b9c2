//! The learner: delivers decided values in instance order, each once, and closes holes.
//!
//! A hole is first queried (LEARN, to the acceptors), then recovered by phases 1 and 2 with a no-op. What acceptors
//! have trimmed comes from a peer's log of decided values, and what peers have dropped requires a checkpoint, which is
//! up to the application.

use std::collections::BTreeMap;

use crate::dataplane::wire::{flag, Header, Type};
use inband_ground::auth::Digest;

use crate::decided_log::{DecidedLog, LogLimit};
use crate::log::{Origin, ValueKind};
use crate::outbox::{Dest, Outbox};
use crate::partition::process_id;
use crate::quorum::{RoundVotes, Vote};
use crate::recovery::{Context, Recovery};
use crate::rounds::RoundSource;
use crate::timing::{Micros, Timing, LEARN_BATCH, LOG_HELD_US, PEER_BATCH, RECOVERIES_MAX};

/// How often the interval between queries for one hole doubles at most.
const ASK_DOUBLINGS_MAX: u32 = 6;
/// A hole is recovered by phase 1 after this many unsuccessful queries.
const ASKS_BEFORE_RECOVERY: u32 = 2;

#[derive(Debug, Clone)]
pub struct LearnerConfig {
    /// This node.
    pub node: u8,
    pub partition: u16,
    /// Number of this process run: durable and never reused.
    pub incarnation: u64,
    pub epoch: u32,
    /// Acceptors' node ids.
    pub acceptors: Vec<u8>,
    /// Instances that a learner buffers ahead of a hole: the ring's size.
    pub ahead_max: u64,
    /// Decided values kept for peers.
    pub log_limit: LogLimit,
    /// How values are digested.
    pub digest: Digest,
    pub timing: Timing,
}

#[derive(Debug)]
pub struct Learner {
    config: LearnerConfig,
    /// Next instance to deliver.
    next: u64,
    /// Decided values above `next`.
    ahead: BTreeMap<u64, (Header, Vec<u8>)>,
    log: DecidedLog,
    /// Until when the log is held for a peer that installs a checkpoint; 0: it is not.
    held_until: Micros,
    /// Highest instance known to be decided, or voted by any acceptor.
    known_highest: u64,
    /// Highest floor reported by any acceptor.
    known_floor: u64,
    /// Since when `next` has been missing although later instances exist; 0: it is not missing.
    hole_since: Micros,
    asked_at: Micros,
    /// Number of queries for this hole so far: after the first two, each doubles the wait for the next.
    asks: u32,
    learn_votes: BTreeMap<u64, RoundVotes>,
    recoveries: BTreeMap<u64, Recovery>,
    /// Number of queries sent to peers by this process.
    questions: u64,
    /// By peer, the last of its queries that was answered: its process and number.
    answered: BTreeMap<u8, (u64, u64)>,
    /// End of the range last requested from peers.
    peer_asked_to: u64,
    /// When a peer last reported that it no longer holds `next`.
    peer_trimmed_at: Option<Micros>,
    checkpoint_needed: bool,
    /// Delivery is paused.
    is_paused: bool,
    /// Acceptors whose vote for `next` has a value that does not match its digest.
    unreadable_at: Vec<u8>,
    stats: LearnerStats,
}

/// Counters of a learner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LearnerStats {
    /// Values dropped because their digest did not match.
    pub digest_mismatch: u64,
    /// Instances queried with LEARN.
    pub learn_asked: u64,
    /// Recoveries started.
    pub recoveries: u64,
    /// Instances received from peers' logs.
    pub from_peers: u64,
    /// No-ops delivered.
    pub noops: u64,
}

/// Callback for delivered values.
pub type Deliver<'a> = dyn FnMut(u64, Origin, &[u8]) + 'a;

/// Returns the origin of a value, from the header that carried it.
pub fn origin_of(header: &Header) -> Origin {
    let kind = if header.has(flag::NOOP) {
        ValueKind::Noop
    } else if header.has(flag::OPEN) {
        ValueKind::OpenSession
    } else {
        ValueKind::Command
    };
    Origin {
        client_id: header.client_id,
        client_seq: header.client_seq,
        client_low: header.client_low,
        kind,
    }
}

fn vote_of(header: &Header, value: &[u8]) -> Vote {
    Vote {
        vround: header.vround,
        value_flags: header.flags & flag::VALUE_MASK,
        client_id: header.client_id,
        client_seq: header.client_seq,
        client_low: header.client_low,
        digest: header.digest,
        value: value.to_vec(),
    }
}

impl Learner {
    /// Creates a learner that delivers from `applied + 1` on.
    pub fn new(config: LearnerConfig, applied: u64) -> Learner {
        let log = DecidedLog::starting_at(applied + 1, config.log_limit);
        Learner {
            config,
            next: applied + 1,
            ahead: BTreeMap::new(),
            log,
            held_until: 0,
            known_highest: applied,
            known_floor: 0,
            hole_since: 0,
            asked_at: 0,
            asks: 0,
            learn_votes: BTreeMap::new(),
            recoveries: BTreeMap::new(),
            questions: 0,
            answered: BTreeMap::new(),
            peer_asked_to: 0,
            peer_trimmed_at: None,
            checkpoint_needed: false,
            is_paused: false,
            unreadable_at: Vec::new(),
            stats: LearnerStats::default(),
        }
    }

    /// A checkpoint was installed: deliver from `applied + 1` on.
    pub fn reset(&mut self, applied: u64) {
        let next = applied + 1;
        assert!(
            next >= self.next,
            "delivery never goes back: {next} after {}",
            self.next
        );
        // Values right after the checkpoint would count as present and never be delivered: query them again.
        self.ahead.clear();
        self.learn_votes = self.learn_votes.split_off(&next);
        self.recoveries = self.recoveries.split_off(&next);
        if next != self.next {
            self.log = DecidedLog::starting_at(next, self.config.log_limit);
            self.log.set_held(self.held_until > 0);
        }
        self.next = next;
        self.unreadable_at.clear();
        self.known_highest = self.known_highest.max(applied);
        self.peer_trimmed_at = None;
        self.checkpoint_needed = false;
        self.hole_since = 0;
    }

    /// Enters a later epoch: decided values stay decided; votes and answers of the earlier epoch's acceptors no longer
    /// count.
    pub fn enter_epoch(
        &mut self,
        now: Micros,
        epoch: u32,
        acceptors: &[u8],
        rounds: &mut RoundSource,
        out: &mut Outbox,
    ) {
        self.config.epoch = epoch;
        self.config.acceptors = acceptors.to_vec();
        self.learn_votes.clear();
        // Values decided in the earlier epoch can be learned again if they are still decided; after a restart from what
        // the replicas had applied they are not, and the instances get other values.
        self.ahead.clear();
        self.unreadable_at.clear();
        self.hole_since = 0;
        let context = Self::context(&self.config);
        for recovery in self.recoveries.values_mut() {
            recovery.enter_epoch(now, context, rounds, out);
        }
    }

    /// Returns the next instance to deliver.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Highest instance known to exist.
    pub fn known_highest(&self) -> u64 {
        self.known_highest
    }

    /// Peers cannot help any more: a checkpoint is needed.
    pub fn checkpoint_needed(&self) -> bool {
        self.checkpoint_needed
    }

    /// Acceptors whose vote for the next instance to deliver has a value that does not match its digest.
    pub fn unreadable_at(&self) -> &[u8] {
        &self.unreadable_at
    }

    fn note_unreadable(&mut self, header: &Header) {
        self.stats.digest_mismatch += 1;
        let Ok(node) = u8::try_from(header.node) else {
            return;
        };
        let is_acceptor = self.config.acceptors.contains(&node);
        if header.instance == self.next && is_acceptor && !self.unreadable_at.contains(&node) {
            self.unreadable_at.push(node);
        }
    }

    pub fn stats(&self) -> LearnerStats {
        self.stats
    }

    /// Decided values kept for peers.
    pub fn log(&self) -> &DecidedLog {
        &self.log
    }

    fn context(config: &LearnerConfig) -> Context<'_> {
        Context {
            node: config.node,
            partition: config.partition,
            epoch: config.epoch,
            acceptors: &config.acceptors,
            digest: config.digest,
        }
    }

    /// An instance is decided (delivered by the quorum counter, or counted here).
    pub fn on_decided(&mut self, header: &Header, value: &[u8], deliver: &mut Deliver<'_>) {
        let instance = header.instance;
        self.known_highest = self.known_highest.max(instance);
        if instance < self.next || instance >= self.next + self.config.ahead_max {
            return;
        }
        if self.config.digest.of(value) != header.digest {
            self.stats.digest_mismatch += 1;
            return; // the hole will be queried again
        }
        if instance == self.next && !self.is_paused {
            self.deliver(*header, value, deliver);
            self.deliver_ahead(deliver);
        } else {
            self.ahead
                .entry(instance)
                .or_insert_with(|| (*header, value.to_vec()));
        }
    }

    fn deliver_ahead(&mut self, deliver: &mut Deliver<'_>) {
        while let Some((header, value)) = self.ahead.remove(&self.next) {
            self.deliver(header, &value, deliver);
        }
    }

    /// Pauses or resumes delivery. What is decided meanwhile is kept as far as the acceptors' rings reach; the rest is
    /// learned afterwards.
    pub fn set_paused(&mut self, is_paused: bool, deliver: &mut Deliver<'_>) {
        self.is_paused = is_paused;
        if !is_paused {
            self.deliver_ahead(deliver);
        }
    }

    /// A peer is being sent a checkpoint. Until it has installed it and has caught up, keep what is decided: at a loaded
    /// cluster more is decided meanwhile than the log usually holds, and the checkpoint would be too old each time.
    pub fn hold_log(&mut self, now: Micros) {
        self.held_until = now + LOG_HELD_US;
        self.log.set_held(true);
    }

    /// Returns whether delivery is paused.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Returns how far instances are decided: everything up to here has been delivered, or is kept while this log is
    /// paused.
    pub fn decided(&self) -> u64 {
        let kept = self.ahead.last_key_value().filter(|_| !self.has_hole());
        kept.map_or(self.next - 1, |(instance, _)| *instance)
    }

    /// Returns whether the next instance is missing although it or a later one exists.
    fn has_hole(&self) -> bool {
        self.known_highest >= self.next && !self.ahead.contains_key(&self.next)
    }

    fn deliver(&mut self, header: Header, value: &[u8], deliver: &mut Deliver<'_>) {
        assert_eq!(header.instance, self.next);
        let origin = origin_of(&header);
        self.stats.noops += u64::from(origin.kind == ValueKind::Noop);
        deliver(header.instance, origin, value);
        self.log.push(header, value);
        self.learn_votes.remove(&self.next);
        self.recoveries.remove(&self.next);
        self.next += 1;
        self.unreadable_at.clear();
        self.hole_since = 0;
        self.peer_trimmed_at = None;
        self.checkpoint_needed = false;
    }

    /// This instance was voted or applied somewhere.
    pub fn heard_of(&mut self, instance: u64) {
        self.known_highest = self.known_highest.max(instance);
    }

    /// PHASE2B flagged as an answer to LEARN or to a recovery.
    pub fn on_vote(&mut self, header: &Header, value: &[u8], deliver: &mut Deliver<'_>) {
        let instance = header.instance;
        if instance < self.next || header.epoch != self.config.epoch {
            return;
        }
        if header.has(flag::RECOVERY) {
            let context = Self::context(&self.config);
            let Some(recovery) = self.recoveries.get_mut(&instance) else {
                return;
            };
            if let Some(vote) = recovery.on_vote(header, context) {
                self.recoveries.remove(&instance);
                let decided = decided_header(header, &vote);
                self.on_decided(&decided, &vote.value, deliver);
            }
            return;
        }
        if self.config.digest.of(value) != header.digest {
            self.note_unreadable(header);
            return;
        }
        if instance >= self.next + self.config.ahead_max {
            return;
        }
        let votes = self.learn_votes.entry(instance).or_default();
        if votes.add(&self.config.acceptors, header.round, header.node) {
            self.learn_votes.remove(&instance);
            self.on_decided(header, value, deliver);
        }
    }

    /// PHASE1B for a slot under recovery.
    pub fn on_promise(&mut self, now: Micros, header: &Header, value: &[u8], out: &mut Outbox) {
        let Some(recovery) = self.recoveries.get_mut(&header.instance) else {
            return;
        };
        let vote = header.has(flag::VOTE).then(|| vote_of(header, value));
        if vote
            .as_ref()
            .is_some_and(|v| self.config.digest.of(&v.value) != v.digest)
        {
            self.note_unreadable(header);
            return; // a damaged answer is no answer, least of all "no vote"
        }
        recovery.on_promise(now, header, vote, Self::context(&self.config), out);
    }

    /// NACK from an acceptor, or from a peer that no longer holds what was requested.
    pub fn on_nack(&mut self, now: Micros, header: &Header) {
        if header.has(flag::BELOW_FLOOR) {
            let from_acceptor = self
                .config
                .acceptors
                .iter()
                .any(|a| u16::from(*a) == header.node);
            if header.has(flag::ANSWER) {
                if header.floor > self.next && self.peer_trimmed_at.is_none() {
                    self.peer_trimmed_at = Some(now);
                }
            } else if from_acceptor {
                self.known_floor = self.known_floor.max(header.floor);
                self.known_highest = self.known_highest.max(header.floor.saturating_sub(1));
            }
            self.recoveries
                .retain(|instance, _| *instance >= self.known_floor);
        } else if let Some(recovery) = self.recoveries.get_mut(&header.instance) {
            recovery.on_nack(now, header, Self::context(&self.config));
        }
    }

    /// LEARN from a peer: `instance` and the following `client_seq` - 1 ones. The answers are many times as long as the
    /// query: they go to the member that it names, not to its source address, and a query that was answered or
    /// overtaken is not answered again.
    pub fn on_learn(&mut self, now: Micros, header: &Header, out: &mut Outbox) {
        let Ok(peer) = u8::try_from(header.node) else {
            return;
        };
        let number = (header.client_id, header.client_low);
        let answered = self.answered.entry(peer).or_default();
        if number <= *answered {
            return;
        }
        *answered = number;
        let to = Dest::Node(peer);
        let count = header.client_seq.clamp(1, PEER_BATCH);
        if header.instance < self.log.first() {
            let mut nack = Header::new(Type::Nack, u16::from(self.config.node), self.config.epoch);
            nack.partition = self.config.partition;
            nack.flags = flag::BELOW_FLOOR | flag::SLOT | flag::ANSWER;
            nack.instance = header.instance;
            nack.floor = self.log.first();
            out.send(to, &nack, &[]);
            return;
        }
        if self.log.is_only_held(header.instance) {
            self.held_until = now + LOG_HELD_US;
        }
        for instance in header.instance..header.instance + count {
            let Some((decided, value)) = self.log.get(instance) else {
                break;
            };
            let mut reply = *decided;
            reply.kind = Type::Reply;
            reply.node = u16::from(self.config.node);
            reply.flags &= flag::VALUE_MASK;
            out.send(to, &reply, value);
        }
    }

    /// REPLY from a peer's log: decided, in whatever epoch.
    pub fn on_reply(&mut self, header: &Header, value: &[u8], deliver: &mut Deliver<'_>) {
        if header.instance >= self.next {
            self.stats.from_peers += 1;
        }
        self.on_decided(header, value, deliver);
    }

    /// After a REPLY: if it completed what was requested and there is more, request that at once. One batch per gap
    /// timeout would be slower than a loaded cluster decides, and never catch up.
    pub fn ask_on(&mut self, now: Micros, out: &mut Outbox) {
        if self.next >= self.peer_asked_to && self.next < self.known_floor {
            self.ask_peers(now, out);
        }
    }

    /// Starts to recover `instance` with the application's no-op, whether or not it is missing here.
    pub fn recover(
        &mut self,
        now: Micros,
        instance: u64,
        noop: Vec<u8>,
        rounds: &mut RoundSource,
        out: &mut Outbox,
    ) {
        if instance < self.next || self.recoveries.contains_key(&instance) {
            return;
        }
        self.known_highest = self.known_highest.max(instance);
        self.stats.recoveries += 1;
        let context = Self::context(&self.config);
        self.recoveries.insert(
            instance,
            Recovery::start(now, instance, noop, context, rounds, out),
        );
    }

    fn missing(&self) -> impl Iterator<Item = u64> + '_ {
        let end = self
            .known_highest
            .min(self.next + self.config.ahead_max - 1);
        (self.next..=end).filter(|i| !self.ahead.contains_key(i))
    }

    /// Queries and recover what is missing.
    pub fn on_tick(&mut self, now: Micros, rounds: &mut RoundSource, out: &mut Outbox) {
        if self.held_until > 0 && now >= self.held_until {
            self.held_until = 0;
            self.log.set_held(false);
        }
        self.log.release();
        let timing = self.config.timing;
        let context = Self::context(&self.config);
        for recovery in self.recoveries.values_mut() {
            recovery.on_tick(now, context, rounds, out);
        }
        if !self.has_hole() {
            self.hole_since = 0;
            return;
        }
        if self.hole_since == 0 {
            self.hole_since = now.max(1);
            self.asked_at = 0;
            self.asks = 0;
            return;
        }
        let age = now - self.hole_since;
        if age < timing.gap_us || now < self.asked_at + self.ask_after_us() {
            return;
        }
        self.asked_at = now;
        self.asks += 1;
        if self.next < self.known_floor {
            self.ask_peers(now, out);
            return;
        }
        let missing: Vec<u64> = self.missing().take(LEARN_BATCH).collect();
        // Counted as well as timed: a host that was suspended has not received the answers yet.
        if age >= timing.recover_us && self.asks > ASKS_BEFORE_RECOVERY {
            for instance in missing.iter().take(RECOVERIES_MAX) {
                self.recover(now, *instance, Vec::new(), rounds, out);
            }
            // An instance that acceptors no longer hold may be in a peer's log.
            self.ask_peers(now, out);
        }
        for instance in missing {
            let mut header =
                Header::new(Type::Learn, u16::from(self.config.node), self.config.epoch);
            header.partition = self.config.partition;
            header.instance = instance;
            self.stats.learn_asked += 1;
            out.send(Dest::Acceptors, &header, &[]);
        }
    }

    fn ask_peers(&mut self, now: Micros, out: &mut Outbox) {
        let mut header = Header::new(Type::Learn, u16::from(self.config.node), self.config.epoch);
        header.partition = self.config.partition;
        header.flags = flag::PEER;
        header.instance = self.next;
        header.client_seq = PEER_BATCH;
        self.questions += 1;
        header.client_id = process_id(self.config.node, self.config.incarnation);
        header.client_low = self.questions;
        self.asked_at = now;
        self.peer_asked_to = self.next + PEER_BATCH;
        out.send(Dest::Learners, &header, &[]);
        let grace = 4 * self.config.timing.recover_us;
        if self.peer_trimmed_at.is_some_and(|at| now >= at + grace) && self.next < self.known_floor
        {
            self.checkpoint_needed = true;
        }
    }

    /// Returns how long answers may take until the query is retransmitted. Between slow hosts they take longer than the
    /// first wait, and retransmissions at that rate would be most of the hosts' work.
    fn ask_after_us(&self) -> Micros {
        let doublings = self.asks.saturating_sub(ASKS_BEFORE_RECOVERY);
        self.config.timing.gap_us << doublings.min(ASK_DOUBLINGS_MAX)
    }

    /// Returns when `on_tick` is next due.
    pub fn due(&self) -> Micros {
        let recoveries = self.recoveries.values().map(Recovery::due).min();
        let hole = if !self.has_hole() {
            Micros::MAX
        } else if self.hole_since == 0 {
            0 // its age counts from the next tick on
        } else {
            self.hole_since.max(self.asked_at) + self.ask_after_us()
        };
        let held = match self.held_until {
            0 => Micros::MAX,
            until => until,
        };
        let held = if self.log.is_over() { 0 } else { held };
        hole.min(recoveries.unwrap_or(Micros::MAX)).min(held)
    }
}

/// Returns the header of a value decided by recovery: the acceptors' PHASE2B with the value's own fields.
fn decided_header(voted: &Header, vote: &Vote) -> Header {
    Header {
        flags: vote.value_flags,
        client_id: vote.client_id,
        client_seq: vote.client_seq,
        client_low: vote.client_low,
        digest: vote.digest,
        ..*voted
    }
}
