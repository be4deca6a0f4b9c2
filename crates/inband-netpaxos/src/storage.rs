//! A minion's storage server, sans-I/O: an acceptor of Fast Paxos whose votes in the fast round follow its minion's
//! numbers (docs/netpaxos.md). Its [`Out::records`] must be durable before its [`Out::packets`] leave.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::control::{Control, To};
use crate::quorum::{Generations, Sizes, Vote};
use crate::request::{Identity, Value};
use crate::wire::node;

mod fencing;
mod numbers;
mod records;

use fencing::Fencing;
pub use records::Record;

/// It votes in this many instances above the floor, unless a test says otherwise.
pub const WINDOW: u64 = 1 << 16;
/// Maximum number of missing numbers, below the highest one, that may still arrive.
pub const GAPS_MAX: usize = 1024;
/// Retransmission interval, in nanoseconds.
pub const RETRY_NS: u64 = 10_000_000;
/// How often learners are asked about instances that one of them has forgotten, in nanoseconds.
pub const FORGOTTEN_RETRY_NS: u64 = 1_000_000_000;
/// Maximum number of instances that a storage without memory asks about at a time.
const LEARNED_AT_ONCE: usize = 64;
/// Numbers covered by one [`Control::Stored`].
const MASK_BITS: u64 = 64;

/// Configuration of a storage server.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// The number of its minion, from 1.
    pub minion: u8,
    /// Sizes of the cluster.
    pub sizes: Sizes,
    /// Number of learners in the cluster.
    pub learners: u8,
    /// It votes in this many instances above the floor.
    pub window: u64,
}

/// Output of a storage server.
#[derive(Debug, Default)]
pub struct Out {
    /// Records to make durable before the packets leave.
    pub records: Vec<Record>,
    /// Packets to sign and send once the records are durable.
    pub packets: Vec<(To, Vec<u8>)>,
}

/// A storage server's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Votes in the fast round.
    pub fast: u64,
    /// Numbers that arrived too late, or for an instance that is closed.
    pub refused: u64,
    /// Numbers of an earlier start of the minion: of one whose clock was ahead of the present one's, if they do not stop.
    pub stale: u64,
    /// Numbers that were missing when a higher one arrived.
    pub gaps: u64,
    /// Votes in rounds of recovery.
    pub classic: u64,
    /// How often it moved its numbers to where the others vote.
    pub aligned: u64,
    /// Requests for which the window had no instance.
    pub window_full: u64,
    /// How often it renumbered after a full window.
    pub renumbered: u64,
}

/// The lengths of a storage server's queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lengths {
    /// Instances of which it has votes, promises or decisions.
    pub instances: usize,
    /// Missing numbers that may still arrive.
    pub gaps: usize,
    /// Stored numbers that have not been reported to learners yet.
    pub unsaid: usize,
    /// Instances above the floor in which it must stay silent, because it has lost its votes.
    pub silent: u64,
}

#[derive(Debug, Default)]
struct Slot {
    promised: u64,
    vote: Vote,
}

impl Slot {
    fn is_open(&self) -> bool {
        self.promised == 0 && self.vote == Vote::None
    }
}

/// A storage server. See the [module](self).
#[derive(Debug)]
pub struct Storage {
    config: Config,
    generations: Generations,
    slots: BTreeMap<u64, Slot>,
    /// Instances of the stored numbers of the current incarnation.
    numbers: BTreeMap<u64, u64>,
    /// Missing numbers, and their instances.
    gaps: BTreeMap<u64, u64>,
    by_request: BTreeMap<Identity, u64>,
    /// Stored numbers that have not been reported to learners yet.
    unsaid: BTreeSet<u64>,
    incarnation: u64,
    /// The highest number that has arrived.
    top: u64,
    base: u64,
    /// The highest instance with a fast vote: lower ones get no more fast votes, except for gaps.
    voted: u64,
    /// It may have voted or promised up to here.
    highest: u64,
    /// The highest instance that it knows to be in use.
    in_use: u64,
    floor: u64,
    silent: u64,
    /// A learner has forgotten instances up to this one, so they are not asked about as often as others.
    forgotten: u64,
    learn_at: u64,
    delivered: BTreeMap<u8, (u64, u64)>,
    /// By learner: the highest incarnation that was granted, and the start that has it.
    enrolled: BTreeMap<u8, (u32, u64)>,
    fencing: Option<Fencing>,
    counts: Counts,
}

impl Storage {
    /// Creates the storage server of a new cluster.
    pub fn new(config: Config) -> Storage {
        Storage {
            config,
            generations: Generations::default(),
            slots: BTreeMap::new(),
            numbers: BTreeMap::new(),
            gaps: BTreeMap::new(),
            by_request: BTreeMap::new(),
            unsaid: BTreeSet::new(),
            incarnation: 0,
            top: 0,
            base: 0,
            voted: 0,
            highest: 0,
            in_use: 0,
            floor: 0,
            silent: 0,
            forgotten: 0,
            learn_at: 0,
            delivered: BTreeMap::new(),
            enrolled: BTreeMap::new(),
            fencing: None,
            counts: Counts::default(),
        }
    }

    /// Creates a storage server that has lost its records, or that replaces one that is gone for good. `nonce` must be
    /// drawn afresh at each start.
    pub fn without_memory(config: Config, nonce: u64) -> Storage {
        let mut storage = Storage::new(config);
        storage.fencing = Some(Fencing::new(nonce));
        storage
    }

    /// Returns whether it votes. If not, it has lost its memory and has not fenced the others yet.
    pub fn is_serving(&self) -> bool {
        self.fencing.is_none()
    }

    /// Returns whether it has all of its memory, so that another storage may fail.
    pub fn is_complete(&self) -> bool {
        self.is_serving() && self.silent == 0
    }

    /// Returns how often it has started without memory.
    pub fn generation(&self) -> u16 {
        self.generations.of(self.config.minion)
    }

    /// Returns the floor: all instances up to it are decided, and forgotten here.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Returns the highest instance in which it may have voted or promised.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the lengths of its queues.
    pub fn lengths(&self) -> Lengths {
        Lengths {
            instances: self.slots.len(),
            gaps: self.gaps.len(),
            unsaid: self.unsaid.len(),
            silent: self.silent.saturating_sub(self.floor),
        }
    }

    /// Returns when [`Storage::tick`] is due.
    pub fn due(&self) -> u64 {
        if !self.unsaid.is_empty() {
            return 0;
        }
        match &self.fencing {
            Some(fencing) => fencing.again_at,
            None if self.silent > 0 => self.learn_at,
            None => u64::MAX,
        }
    }

    fn slot(&mut self, instance: u64) -> &mut Slot {
        self.highest = self.highest.max(instance);
        self.in_use = self.in_use.max(instance);
        self.slots.entry(instance).or_default()
    }

    fn is_open(&self, instance: u64) -> bool {
        instance > self.floor.max(self.silent)
            && self.slots.get(&instance).is_none_or(Slot::is_open)
    }

    /// Returns whether the instance is outside the range that it may answer for.
    fn is_beyond(&self, instance: u64) -> bool {
        instance <= self.floor || instance > self.floor + self.config.window
    }

    fn send(&self, to: To, control: &Control, out: &mut Out) {
        let own = node::storage(self.config.minion);
        out.packets.push((to, control.packet(own)));
    }

    /// Handles a message of another process.
    pub fn on_control(&mut self, now: u64, from: u8, control: Control, out: &mut Out) {
        if self.fencing.is_some() {
            if let Control::Fenced {
                nonce,
                generation,
                highest,
                floor,
                generations,
                incarnations,
            } = control
            {
                self.generations.merge(&generations);
                for (learner, incarnation) in incarnations {
                    let nonce = 0;
                    self.replay(Record::Enrolled {
                        learner,
                        incarnation,
                        nonce,
                    });
                }
                self.on_fenced(now, from, (nonce, generation), (highest, floor), out);
            }
            return;
        }
        match control {
            Control::Prepare { instance, round } => self.on_prepare(from, instance, round, out),
            Control::Accept {
                instance,
                round,
                value,
            } => self.on_accept(from, instance, round, value, out),
            Control::Decided { instance, value } => self.on_decided(instance, value, out),
            Control::Fetch {
                incarnation,
                number,
            } => self.on_fetch(from, incarnation, number, out),
            Control::Ask { question } => {
                let position = Control::Position {
                    highest: self.highest,
                    generations: self.generations,
                    question,
                };
                self.send(To::Node(from), &position, out);
                if let Some((last, _)) = self.numbers.last_key_value() {
                    self.say_stored(*last, To::Node(from), out);
                }
            }
            Control::Align { instance, request } => self.on_align(instance, request),
            Control::Delivered {
                incarnation,
                position,
            } => self.on_delivered(from, (incarnation, position), out),
            Control::Enrol { incarnation, nonce } => {
                self.on_enrol(from, (incarnation, nonce), out);
            }
            Control::Fence { nonce, generation } => self.on_fence(from, nonce, generation, out),
            Control::Forgotten { floor } => self.forgotten = self.forgotten.max(floor),
            _ => {}
        }
    }

    /// Returns whether it may answer for this instance. If it knows the decision, it sends that instead.
    fn speaks(&self, from: u8, instance: u64, out: &mut Out) -> bool {
        if self.is_beyond(instance) {
            return false;
        }
        if let Some(Slot {
            vote: Vote::Decided(value),
            ..
        }) = self.slots.get(&instance)
        {
            let value = value.clone();
            self.send(To::Node(from), &Control::Decided { instance, value }, out);
            return false;
        }
        instance > self.silent
    }

    fn on_prepare(&mut self, from: u8, instance: u64, round: u64, out: &mut Out) {
        if !self.speaks(from, instance, out) {
            return;
        }
        let slot = self.slot(instance);
        let answer = if slot.promised > round {
            Control::Refused {
                instance,
                round,
                promised: slot.promised,
            }
        } else {
            if slot.promised < round {
                slot.promised = round;
                out.records.push(Record::Promised { instance, round });
            }
            Control::Promise {
                instance,
                round,
                vote: slot.vote.clone(),
                generations: self.generations,
            }
        };
        self.send(To::Node(from), &answer, out);
    }

    fn on_accept(&mut self, from: u8, instance: u64, round: u64, value: Value, out: &mut Out) {
        if round == 0 || !self.speaks(from, instance, out) {
            return;
        }
        let slot = self.slot(instance);
        let answer = if slot.promised > round {
            Control::Refused {
                instance,
                round,
                promised: slot.promised,
            }
        } else {
            let vote = Vote::Classic(round, value.clone());
            if slot.vote != vote {
                slot.promised = round;
                slot.vote = vote;
                self.counts.classic += 1;
                out.records.push(Record::Classic {
                    instance,
                    round,
                    value,
                });
            }
            Control::Accepted {
                instance,
                round,
                generations: self.generations,
            }
        };
        self.send(To::Node(from), &answer, out);
    }

    fn on_decided(&mut self, instance: u64, value: Value, out: &mut Out) {
        if self.is_beyond(instance) {
            return;
        }
        if instance <= self.silent {
            let value = value.clone();
            out.records.push(Record::Decided { instance, value });
        }
        self.slot(instance).vote = Vote::Decided(value);
        self.end_silence(out);
    }

    fn end_silence(&mut self, out: &mut Out) {
        if self.silent > 0 && self.missing().next().is_none() {
            self.silent = 0;
            out.records.push(Record::Serves {
                silent: 0,
                floor: self.floor,
            });
        }
    }

    /// Returns the instances of which it has no memory, and does not know the decision.
    fn missing(&self) -> impl Iterator<Item = u64> + '_ {
        (self.floor + 1..=self.silent).filter(|instance| {
            let slot = self.slots.get(instance);
            !slot.is_some_and(|slot| matches!(slot.vote, Vote::Decided(_)))
        })
    }

    /// Grants a learner's start an incarnation above all that it has granted before.
    fn on_enrol(&mut self, from: u8, asked: (u32, u64), out: &mut Out) {
        let Some(learner) = node::as_learner(from, self.config.learners) else {
            return;
        };
        let granted = self.enrolled.entry(learner).or_default();
        if asked.0 > granted.0 {
            *granted = asked;
            // The new start may have less than the one before has reported.
            self.delivered.insert(learner, (asked.0.into(), 0));
            out.records.push(Record::Enrolled {
                learner,
                incarnation: asked.0,
                nonce: asked.1,
            });
        }
        self.say_enrolled(from, learner, out);
    }

    fn say_enrolled(&self, from: u8, learner: u8, out: &mut Out) {
        let (incarnation, nonce) = self.enrolled.get(&learner).copied().unwrap_or_default();
        let enrolled = Control::Enrolled {
            incarnation,
            nonce,
            generations: self.generations,
        };
        self.send(To::Node(from), &enrolled, out);
    }

    fn on_delivered(&mut self, from: u8, reported: (u64, u64), out: &mut Out) {
        let Some(learner) = node::as_learner(from, self.config.learners) else {
            return;
        };
        let granted = self.enrolled.get(&learner).map_or(0, |start| start.0);
        if reported.0 < granted.into() {
            // A late report of an earlier start, which may have had more of the log. Or the earlier start's request for an
            // incarnation came late: then the present one needs another.
            return self.say_enrolled(from, learner, out);
        }
        let last = self.delivered.entry(learner).or_default();
        *last = reported.max(*last);
        let mut positions: Vec<u64> = self.delivered.values().map(|(_, at)| *at).collect();
        positions.sort_unstable_by(|a, b| b.cmp(a));
        let majority = usize::from(self.config.learners) / 2;
        let floor = positions.get(majority).copied().unwrap_or(0);
        if floor > self.floor {
            self.forget_to(floor);
            out.records.push(Record::Floor(floor));
            self.end_silence(out);
        }
    }

    fn forget_to(&mut self, floor: u64) {
        if floor <= self.floor {
            return;
        }
        self.floor = floor;
        self.highest = self.highest.max(floor);
        self.in_use = self.in_use.max(floor);
        let kept = self.slots.split_off(&(floor + 1));
        self.slots = kept;
        self.numbers.retain(|_, instance| *instance > floor);
        let numbers = &self.numbers;
        self.by_request
            .retain(|_, number| numbers.contains_key(number));
        self.gaps.retain(|_, instance| *instance > floor);
    }

    /// Advances time, and completes a batch of packets.
    pub fn tick(&mut self, now: u64, out: &mut Out) {
        self.say(out);
        if now < self.due() {
            return;
        }
        if self.fencing.is_some() {
            return self.fence(now, out);
        }
        let lost = self.missing().filter(|instance| *instance > self.forgotten);
        let mut asked: Vec<u64> = lost.take(LEARNED_AT_ONCE).collect();
        self.learn_at = now + RETRY_NS;
        if asked.is_empty() {
            // The floor will pass them, unless the learner that has forgotten them is lost.
            asked = self.missing().take(LEARNED_AT_ONCE).collect();
            self.learn_at = now + FORGOTTEN_RETRY_NS;
        }
        for instance in asked {
            self.send(To::Learners, &Control::Learn { instance }, out);
        }
    }
}
