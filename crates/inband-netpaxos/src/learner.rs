//! A learner, sans-I/O: a queue of numbered requests per minion, votes counted as storages confirm them, recovery where
//! they disagree, and the log (docs/netpaxos.md).

mod application;
mod by_order;
mod delivery;
mod enrolment;
mod queue;
mod reads;
mod recovery;
mod votes;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use inband_host::session::SessionTable;
use serde::{Deserialize, Serialize};

use crate::control::{Control, To};
use crate::quorum::{Generations, Sizes};
use crate::request::{Identity, Request, Value};
use crate::wire::node;

use application::Application;
pub use application::KEPT_MAX;
use by_order::ByOrder;
use enrolment::Enrolment;
use queue::{Queue, Said};
use reads::Reads;
use recovery::Recovery;

const MS: u64 = 1_000_000;
/// How long an instance may stay undecided before other processes are asked about it, in nanoseconds; after the same
/// time again it is recovered.
pub const RECOVER_AFTER_NS: u64 = 3 * MS;
/// How often storages are asked for their position.
pub const ASK_EVERY_NS: u64 = 50 * MS;
/// How often a learner reports its position.
pub const REPORT_EVERY_NS: u64 = 20 * MS;
/// Votes are counted in this many instances above the delivered ones.
pub const WINDOW: u64 = 1 << 16;
/// Maximum number of instances that are asked about or recovered at a time.
const AT_ONCE: usize = 64;
/// An instance that is further below the highest one is asked about at once: the learner is catching up.
const BEHIND: u64 = 4096;
/// Number of requests remembered with the instance that decided them.
const RECENT_MAX: usize = 4096;
/// After this many votes in a row with the same offset from the right instance, the minion's numbers are off rather
/// than its order.
const ALIGN_FROM: u32 = 3;
/// Minimum time between two corrections of one minion's numbers.
const ALIGN_EVERY_NS: u64 = MS;

/// Configuration of a learner.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Its number, from 1.
    pub number: u8,
    /// Sizes of the cluster.
    pub sizes: Sizes,
    /// Identifies this start; drawn afresh.
    pub nonce: u64,
    /// The lowest incarnation that it asks storage servers for: of no use but in a cluster that has run with a version
    /// that took it from the learner's directory.
    pub incarnation: u32,
}

/// A delivered instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    pub instance: u64,
    /// The value it decided.
    pub value: Value,
    /// Whether the value is to be applied. If not, it fills a hole, opens a session or repeats what was applied before.
    /// If the learner serves an application, whether it is not a hole.
    pub applies: bool,
}

/// Output of a learner.
#[derive(Debug, Default)]
pub struct Out {
    /// Instances in order, each once. If the log is durable, they must be stored before the packets leave.
    pub delivered: Vec<Delivered>,
    /// Packets to sign and send.
    pub packets: Vec<(To, Vec<u8>)>,
    /// Reads that may be answered once everything delivered is applied: the caller's id, and the instance that they
    /// see.
    pub confirmed: Vec<(u64, u64)>,
    /// Instances decided in fast mode, and their requests. For tests.
    pub fast: Vec<(u64, Arc<Request>)>,
}

/// A learner's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Instances decided by a fast quorum.
    pub fast: u64,
    /// Instances recovered by this learner.
    pub recovered: u64,
    /// Instances learned from other processes.
    pub told: u64,
    /// Instances whose votes differ so much that no fast quorum is possible.
    pub conflicts: u64,
    /// Rounds of recovery begun.
    pub rounds: u64,
    /// Holes filled.
    pub noops: u64,
    /// Requests that had been decided before.
    pub duplicates: u64,
    /// Corrections sent to storages.
    pub aligned: u64,
    /// Questions for the storages' positions, for reads and at intervals.
    pub asked: u64,
}

/// The lengths of a learner's queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lengths {
    /// Requests of all minions whose storage has not confirmed them yet.
    pub unconfirmed: usize,
    /// Numbers of all minions that are confirmed, and whose request has not arrived.
    pub unknown: usize,
    /// Instances with votes and without a decision.
    pub undecided: usize,
    /// Those of them that are being recovered.
    pub recovering: usize,
    /// Decided instances above one that is not.
    pub undelivered: usize,
    /// Delivered instances kept for others.
    pub kept: usize,
    /// Reads that wait.
    pub reads: usize,
}

#[derive(Debug, Default)]
struct Instance {
    /// By minion: the storage's generation, and the request it voted for.
    fast: BTreeMap<u8, (u16, Arc<Request>)>,
    decided: Option<Value>,
    since: u64,
    asked: bool,
    in_conflict: bool,
    recovery: Option<Recovery>,
    /// That of the highest round in this instance that it knows of.
    counter: u64,
}

/// A learner of the log. See the [module](self).
pub struct Learner {
    config: Config,
    known: Generations,
    queues: BTreeMap<u8, Queue>,
    instances: BTreeMap<u64, Instance>,
    /// Instances up to this one are forgotten.
    base: u64,
    /// Values of the instances from `base` + 1 on.
    log: VecDeque<Value>,
    /// Other learners have forgotten instances up to this one.
    forgotten: u64,
    application: Option<Application>,
    by_order: Option<ByOrder>,
    reads: Reads,
    enrolment: Enrolment,
    sessions: SessionTable,
    /// The highest instance that may be in use.
    highest: u64,
    recent: BTreeMap<Identity, u64>,
    recent_order: VecDeque<Identity>,
    /// Votes for requests that have not been decided where the storage voted: minion and instance.
    elsewhere: BTreeMap<Identity, Vec<(u8, u64)>>,
    /// Those requests in the order in which they came, and some that are there no more.
    elsewhere_order: VecDeque<Identity>,
    /// By minion: the offset of its last votes from the right instances, and how many in a row had it.
    misplaced: BTreeMap<u8, (u64, u32)>,
    aligned_at: BTreeMap<u8, u64>,
    ask_at: u64,
    report_at: u64,
    reported: u64,
    counts: Counts,
}

impl Learner {
    /// Creates a learner that has delivered nothing.
    pub fn new(config: Config) -> Learner {
        let minions = 1..=config.sizes.minions();
        Learner {
            config,
            known: Generations::default(),
            queues: minions.map(|minion| (minion, Queue::default())).collect(),
            instances: BTreeMap::new(),
            base: 0,
            log: VecDeque::new(),
            forgotten: 0,
            application: None,
            by_order: None,
            reads: Reads::default(),
            enrolment: Enrolment::new(config.nonce, config.incarnation.max(1)),
            sessions: SessionTable::new(),
            highest: 0,
            recent: BTreeMap::new(),
            recent_order: VecDeque::new(),
            elsewhere: BTreeMap::new(),
            elsewhere_order: VecDeque::new(),
            misplaced: BTreeMap::new(),
            aligned_at: BTreeMap::new(),
            ask_at: 0,
            report_at: 0,
            reported: u64::MAX,
            counts: Counts::default(),
        }
    }

    /// Creates a learner that has delivered these values, from instance 1.
    pub fn restored(config: Config, log: Vec<Value>) -> Learner {
        let mut learner = Learner::new(config);
        // Proposers have been answered, or will ask again.
        let mut nobody = Out::default();
        for value in log {
            let instance = learner.position() + 1;
            learner.log.push_back(value.clone());
            learner.admit(instance, &value, &mut nobody);
            if let Some(request) = value {
                learner.remember(instance, request.identity());
            }
            nobody.packets.clear();
        }
        learner.highest = learner.position();
        learner
    }

    /// Returns the number of instances delivered.
    pub fn position(&self) -> u64 {
        self.base + self.log.len() as u64
    }

    /// Returns the highest instance that may be in use.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// Returns what an instance decided, if it is delivered and not forgotten.
    pub fn decided(&self, instance: u64) -> Option<&Value> {
        self.log
            .get(usize::try_from(instance.checked_sub(self.base + 1)?).ok()?)
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the lengths of its queues.
    pub fn lengths(&self) -> Lengths {
        let open = self.instances.values().filter(|at| at.decided.is_none());
        let lengths = self.queues.values().map(Queue::lengths);
        let by_order = self.by_order.as_ref().map_or(0, ByOrder::len);
        let (unconfirmed, unknown) =
            lengths.fold((by_order, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        Lengths {
            unconfirmed,
            unknown,
            undecided: open.clone().count(),
            recovering: open.filter(|at| at.recovery.is_some()).count(),
            undelivered: self
                .instances
                .values()
                .filter(|at| at.decided.is_some())
                .count(),
            kept: self.log.len(),
            reads: self.reads.len(),
        }
    }

    /// Returns the number of open sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    fn send(&self, to: To, control: &Control, out: &mut Out) {
        let own = node::learner(self.config.number);
        out.packets.push((to, control.packet(own)));
    }

    /// Returns whether votes are counted in this instance.
    fn counts_in(&self, instance: u64) -> bool {
        instance > self.position() && instance <= self.position() + WINDOW
    }

    fn at(&mut self, now: u64, instance: u64) -> &mut Instance {
        self.see(instance);
        self.instances.entry(instance).or_insert_with(|| Instance {
            since: now,
            ..Instance::default()
        })
    }

    fn see(&mut self, instance: u64) {
        self.highest = self.highest.max(instance);
    }

    /// Decides an instance. Any later result for it must be the same, or quorums do not intersect.
    fn decide(&mut self, now: u64, instance: u64, value: Value, out: &mut Out) {
        if !self.counts_in(instance) {
            return;
        }
        let at = self.at(now, instance);
        if at.decided.is_some() {
            return;
        }
        at.decided = Some(value.clone());
        at.recovery = None;
        let votes = std::mem::take(&mut at.fast);
        if let Some(request) = value {
            if let Some(by_order) = &mut self.by_order {
                by_order.remove(&request);
            }
            self.remember(instance, request.identity());
            let votes = self.elsewhere.remove(&request.identity());
            for vote in votes.unwrap_or_default() {
                self.misplace(now, vote, instance, request.identity(), out);
            }
        }
        for (minion, (_, request)) in votes {
            self.compare(now, minion, instance, &request, out);
        }
        self.deliver(out);
    }

    fn remember(&mut self, instance: u64, identity: Identity) {
        self.recent.insert(identity, instance);
        self.recent_order.push_back(identity);
        if self.recent_order.len() > RECENT_MAX {
            let oldest = self.recent_order.pop_front().expect("there are many");
            self.recent.remove(&oldest);
        }
    }

    /// Handles a message of another process.
    pub fn on_control(&mut self, now: u64, from: u8, control: Control, out: &mut Out) {
        let minions = self.config.sizes.minions();
        let minion = node::as_storage(from, minions);
        match (control, minion) {
            (
                Control::Stored {
                    incarnation,
                    base,
                    first,
                    mask,
                    generations,
                },
                Some(minion),
            ) => {
                let said = Said {
                    base,
                    generation: generations.of(minion),
                    first,
                    mask,
                };
                self.on_stored(now, minion, (incarnation, generations), said, out);
            }
            (
                Control::Number {
                    incarnation,
                    number,
                    request,
                },
                Some(minion),
            ) => self.on_number(now, minion, (incarnation, number), request, out),
            (
                Control::Promise {
                    instance,
                    round,
                    vote,
                    generations,
                },
                Some(minion),
            ) => {
                self.learn_generations(&generations);
                self.on_promise(
                    now,
                    minion,
                    generations.of(minion),
                    instance,
                    round,
                    vote,
                    out,
                );
            }
            (
                Control::Accepted {
                    instance,
                    round,
                    generations,
                },
                Some(minion),
            ) => {
                self.learn_generations(&generations);
                self.on_accepted(now, minion, generations.of(minion), instance, round, out);
            }
            (
                Control::Refused {
                    instance,
                    round,
                    promised,
                },
                Some(_),
            ) => self.on_refused(now, instance, round, promised),
            (
                Control::Position {
                    highest,
                    generations,
                    question,
                },
                Some(minion),
            ) => {
                self.learn_generations(&generations);
                self.see(highest);
                if let Some(question) = question {
                    self.on_read_position(minion, question, highest);
                }
            }
            (
                Control::Enrolled {
                    incarnation,
                    nonce,
                    generations,
                },
                Some(minion),
            ) => {
                self.learn_generations(&generations);
                let generation = generations.of(minion);
                self.on_enrolled(now, minion, generation, (incarnation, nonce), out);
            }
            (Control::Forgotten { floor }, None) => self.forgotten = self.forgotten.max(floor),
            (Control::Decided { instance, value }, _) => {
                self.see(instance);
                let before = self.position();
                let at = self.instances.get(&instance);
                let is_open = at.is_none_or(|at| at.decided.is_none());
                self.counts.told += u64::from(instance > before && is_open);
                self.decide(now, instance, value, out);
            }
            (Control::Learn { instance }, _) => {
                let pending = self.instances.get(&instance);
                let decided = pending.and_then(|at| at.decided.as_ref());
                if let Some(value) = decided.or_else(|| self.decided(instance)).cloned() {
                    let decided = Control::Decided { instance, value };
                    self.send(To::Node(from), &decided, out);
                } else if instance <= self.base {
                    let forgotten = Control::Forgotten { floor: self.base };
                    self.send(To::Node(from), &forgotten, out);
                } else if minion.is_some() {
                    // The storage has lost its memory, so the instance must be decided.
                    self.see(instance);
                }
            }
            _ => {}
        }
    }

    /// Returns when [`Learner::tick`] is due.
    pub fn due(&self) -> u64 {
        if self.incarnation().is_none() {
            return self.ask_at.min(self.enrolment.due());
        }
        let mut due = self.ask_at.min(self.reads_due());
        if self.reported != self.kept() {
            due = due.min(self.report_at);
        }
        for at in self.undecided().take(AT_ONCE) {
            let at = at.map_or(0, |at| match &at.recovery {
                Some(recovery) => recovery.again_at(),
                None if at.asked || at.in_conflict => self.recover_at(at),
                None => at.since + RECOVER_AFTER_NS,
            });
            due = due.min(at);
        }
        due
    }

    /// Returns the undecided instances up to the highest, lowest first; `None` for one of which nothing is known.
    fn undecided(&self) -> impl Iterator<Item = Option<&Instance>> {
        let last = self.highest.min(self.position() + WINDOW);
        let all = self.position() + 1..=last;
        all.map(|instance| self.instances.get(&instance))
            .filter(|at| at.is_none_or(|at| at.decided.is_none()))
    }

    /// Advances time.
    pub fn tick(&mut self, now: u64, out: &mut Out) {
        self.deliver(out);
        if self.by_order.is_some() {
            // A recovery may have decided what the heads waited for.
            self.decide_by_order(now, out);
        }
        if now >= self.ask_at {
            self.ask_at = now + ASK_EVERY_NS;
            self.counts.asked += 1;
            self.send(To::Storages, &Control::Ask { question: None }, out);
            self.reported = u64::MAX;
        }
        self.enrol(now, out);
        let Some(incarnation) = self.incarnation() else {
            return;
        };
        self.tick_reads(now, incarnation, out);
        if self.reported != self.kept() && now >= self.report_at {
            self.report_at = now + REPORT_EVERY_NS;
            self.reported = self.kept();
            let delivered = Control::Delivered {
                incarnation: incarnation.into(),
                position: self.reported,
            };
            self.send(To::Storages, &delivered, out);
        }
        let last = self.highest.min(self.position() + WINDOW);
        let open: Vec<u64> = (self.position() + 1..=last)
            .filter(|i| self.instances.get(i).is_none_or(|at| at.decided.is_none()))
            .take(AT_ONCE)
            .collect();
        for instance in open {
            self.press(now, instance, out);
        }
    }

    /// Returns when to recover an instance. Learners start one after the other, so that their rounds do not collide.
    fn recover_at(&self, at: &Instance) -> u64 {
        let others = u64::from(self.config.number - 1);
        let first = if at.in_conflict { 0 } else { 2 };
        at.since + RECOVER_AFTER_NS * (first + others)
    }

    /// Asks other processes about an instance that stays undecided, then recovers it.
    fn press(&mut self, now: u64, instance: u64, out: &mut Out) {
        let is_behind = self.highest - instance > BEHIND;
        let at = self.at(now, instance);
        let is_late = is_behind || now >= at.since + RECOVER_AFTER_NS;
        if at.recovery.is_some() {
            return self.repeat(now, instance, out);
        }
        if now >= self.recover_at(&self.instances[&instance]) {
            return self.recover(now, instance, out);
        }
        if is_late && !self.at(now, instance).asked {
            self.at(now, instance).asked = true;
            self.send(To::Learners, &Control::Learn { instance }, out);
            for (minion, incarnation, number) in self.unknown_numbers(instance) {
                let fetch = Control::Fetch {
                    incarnation,
                    number,
                };
                self.send(To::Node(node::storage(minion)), &fetch, out);
            }
        }
    }

    /// Returns the numbers that are confirmed for an instance, but whose request has not arrived.
    fn unknown_numbers(&self, instance: u64) -> Vec<(u8, u64, u64)> {
        let unknown = self.queues.iter().filter_map(|(minion, queue)| {
            let number = queue.unknown_of(instance)?;
            Some((*minion, queue.incarnation(), number))
        });
        unknown.collect()
    }
}
