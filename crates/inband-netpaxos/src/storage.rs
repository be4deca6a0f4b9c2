//! A minion's storage server, sans-I/O: an acceptor of Fast Paxos whose votes in the fast round follow its minion's
//! numbers (docs/netpaxos.md). Its [`Out::records`] must be durable before its [`Out::packets`] leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::control::{Control, To};
use crate::quorum::{Generations, Sizes, Vote};
use crate::request::{Identity, Request, Value};
use crate::wire::node;

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

/// What must survive a restart, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// A vote in the fast round.
    Fast {
        /// The instance.
        instance: u64,
        /// Incarnation of the minion.
        incarnation: u64,
        /// The minion's number; 0 in a snapshot if it is no longer needed.
        number: u64,
        /// The request voted for.
        request: Arc<Request>,
    },
    /// A promise to vote in no lower round.
    Promised {
        /// The instance.
        instance: u64,
        /// The round.
        round: u64,
    },
    /// A vote in a round of recovery, which implies a promise for the same round.
    Classic {
        /// The instance.
        instance: u64,
        /// The round.
        round: u64,
        /// The value voted for.
        value: Value,
    },
    /// A decision that it was told, in an instance in which it must stay silent.
    Decided {
        /// The instance.
        instance: u64,
        /// The value.
        value: Value,
    },
    /// It has started without memory, and has not fenced the others yet.
    Lost,
    /// It has fenced the others, and has no memory of instances up to `silent`.
    Serves {
        /// The last such instance; 0: there is none.
        silent: u64,
        /// All instances up to this one are decided, and forgotten here.
        floor: u64,
    },
    /// The generations that it knows, including its own.
    Generations(Generations),
    /// How its minion's numbers map to instances, in a [`Storage::snapshot`].
    Numbers {
        /// Incarnation of the minion.
        incarnation: u64,
        /// The highest number that has arrived.
        top: u64,
        /// What to add to a number to get its instance.
        base: u64,
        /// The highest instance with a fast vote.
        voted: u64,
    },
    /// All instances up to this one are decided, and forgotten here.
    Floor(u64),
    /// It has granted this learner an incarnation.
    Enrolled {
        /// The learner's number.
        learner: u8,
        /// The incarnation.
        incarnation: u32,
        /// The start that has it; 0: unknown.
        nonce: u64,
    },
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
    /// Numbers that were missing when a higher one arrived.
    pub gaps: u64,
    /// Votes in rounds of recovery.
    pub classic: u64,
    /// How often it moved its numbers to where the others vote.
    pub aligned: u64,
    /// Requests for which the window had no instance.
    pub window_full: u64,
    /// How often its numbers began anew after a full window.
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

/// State of a storage server that has lost its memory, and must fence the others before it serves.
#[derive(Debug)]
struct Fencing {
    nonce: u64,
    /// 0 while it asks for generations.
    generation: u16,
    answered: BTreeSet<u8>,
    highest: u64,
    floor: u64,
    again_at: u64,
}

impl Fencing {
    fn new(nonce: u64) -> Fencing {
        Fencing {
            nonce,
            generation: 0,
            answered: BTreeSet::new(),
            highest: 0,
            floor: 0,
            again_at: 0,
        }
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

    /// Creates a storage server that continues from its records. `nonce` must be drawn afresh at each start.
    pub fn restored(
        config: Config,
        records: impl IntoIterator<Item = Record>,
        nonce: u64,
    ) -> Storage {
        let mut storage = Storage::new(config);
        let mut is_lost = false;
        for record in records {
            match record {
                Record::Lost => is_lost = true,
                Record::Serves { .. } => is_lost = false,
                _ => {}
            }
            storage.replay(record);
        }
        storage.fencing = is_lost.then(|| Fencing::new(nonce));
        storage
    }

    /// Creates a storage server that has lost its records, or that replaces one that is gone for good. `nonce` must be
    /// drawn afresh at each start.
    pub fn without_memory(config: Config, nonce: u64) -> Storage {
        let mut storage = Storage::new(config);
        storage.fencing = Some(Fencing::new(nonce));
        storage
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Fast {
                instance,
                incarnation,
                number,
                request,
            } => {
                self.enter(incarnation);
                if number > self.top {
                    self.top = number;
                    self.base = instance.wrapping_sub(number);
                }
                self.voted = self.voted.max(instance);
                self.store(instance, number, request);
            }
            Record::Numbers {
                incarnation,
                top,
                base,
                voted,
            } => {
                self.enter(incarnation);
                (self.top, self.base, self.voted) = (top, base, voted);
            }
            Record::Promised { instance, round } => self.slot(instance).promised = round,
            Record::Classic {
                instance,
                round,
                value,
            } => {
                let slot = self.slot(instance);
                slot.promised = round;
                slot.vote = Vote::Classic(round, value);
            }
            Record::Decided { instance, value } => {
                self.slot(instance).vote = Vote::Decided(value);
            }
            Record::Serves { silent, floor } => {
                self.silent = silent;
                self.highest = self.highest.max(silent);
                self.in_use = self.in_use.max(silent);
                self.forget_to(floor);
            }
            Record::Generations(generations) => {
                self.generations.merge(&generations);
            }
            Record::Floor(floor) => self.forget_to(floor),
            Record::Enrolled {
                learner,
                incarnation,
                nonce,
            } => {
                let last = self.enrolled.entry(learner).or_default();
                *last = (incarnation, nonce).max(*last);
            }
            Record::Lost => {}
        }
    }

    /// Returns records to start a new journal with, from which [`Storage::restored`] recreates the same state.
    pub fn snapshot(&self) -> Vec<Record> {
        let mut records = vec![Record::Generations(self.generations)];
        records.extend(self.enrolments());
        if self.fencing.is_some() {
            records.push(Record::Lost);
            return records;
        }
        records.push(Record::Serves {
            silent: self.silent,
            floor: self.floor,
        });
        let incarnation = self.incarnation;
        records.push(Record::Numbers {
            incarnation,
            top: self.top,
            base: self.base,
            voted: self.voted,
        });
        let numbers: BTreeMap<u64, u64> = self.numbers.iter().map(|(n, i)| (*i, *n)).collect();
        for (instance, slot) in &self.slots {
            let instance = *instance;
            if let Vote::Fast(request) = &slot.vote {
                records.push(Record::Fast {
                    instance,
                    incarnation,
                    number: numbers.get(&instance).copied().unwrap_or(0),
                    request: Arc::clone(request),
                });
            }
            if slot.promised > 0 {
                let round = slot.promised;
                records.push(Record::Promised { instance, round });
            }
            match slot.vote.clone() {
                Vote::Classic(round, value) => {
                    // A promise of a higher round comes after it.
                    records.push(Record::Classic {
                        instance,
                        round,
                        value,
                    });
                    let round = slot.promised;
                    records.push(Record::Promised { instance, round });
                }
                Vote::Decided(value) => records.push(Record::Decided { instance, value }),
                Vote::None | Vote::Fast(_) => {}
            }
        }
        records
    }

    fn enrolments(&self) -> impl Iterator<Item = Record> + '_ {
        let all = self.enrolled.iter();
        all.map(|(learner, (incarnation, nonce))| Record::Enrolled {
            learner: *learner,
            incarnation: *incarnation,
            nonce: *nonce,
        })
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

    fn enter(&mut self, incarnation: u64) -> bool {
        if incarnation <= self.incarnation {
            return false;
        }
        self.incarnation = incarnation;
        self.top = 0;
        self.numbers.clear();
        self.gaps.clear();
        self.by_request.clear();
        self.unsaid.clear();
        true
    }

    fn store(&mut self, instance: u64, number: u64, request: Arc<Request>) {
        if number > 0 {
            self.numbers.insert(number, instance);
            self.by_request.insert(request.identity(), number);
        }
        self.slot(instance).vote = Vote::Fast(request);
    }

    /// Handles a request that the minion has numbered. It is a vote if its instance is open.
    pub fn on_numbered(&mut self, incarnation: u64, number: u64, request: Request, out: &mut Out) {
        if self.fencing.is_some() || incarnation < self.incarnation || number == 0 {
            return;
        }
        if self.enter(incarnation) {
            let next = self.in_use.max(self.highest).max(self.floor) + 1;
            self.base = next.wrapping_sub(number);
            self.top = number - 1;
        }
        let Some(instance) = self.instance_of(number) else {
            return;
        };
        let request = Arc::new(request);
        out.records.push(Record::Fast {
            instance,
            incarnation,
            number,
            request: Arc::clone(&request),
        });
        self.counts.fast += 1;
        self.store(instance, number, request);
        self.unsaid.insert(number);
    }

    /// Reports newly stored numbers to the learners, 64 per packet.
    fn say(&mut self, out: &mut Out) {
        while let Some(number) = self.unsaid.pop_last() {
            let Some(base) = self.base_of(number) else {
                continue;
            };
            self.say_stored(number, To::Learners, out);
            let first = number.saturating_sub(MASK_BITS - 1);
            let mut unsaid = std::mem::take(&mut self.unsaid);
            unsaid.retain(|other| *other < first || self.base_of(*other) != Some(base));
            self.unsaid = unsaid;
        }
    }

    /// Returns the offset from a stored number to its instance.
    fn base_of(&self, number: u64) -> Option<u64> {
        Some(self.numbers.get(&number)?.wrapping_sub(number))
    }

    /// Returns the instance in which a number that has just arrived is a vote, or `None` if it is not and never will
    /// be.
    fn instance_of(&mut self, number: u64) -> Option<u64> {
        if number <= self.top {
            let instance = self.gaps.remove(&number)?;
            if !self.is_open(instance) {
                self.counts.refused += 1;
                return None;
            }
            return Some(instance);
        }
        let mut instance = self.base.wrapping_add(number);
        if instance.wrapping_sub(self.voted) as i64 <= 0 {
            // Its numbers were ahead of the others', so they are skipped until the others catch up.
            self.top = number;
            self.counts.refused += 1;
            return None;
        }
        while !self.is_open(instance) {
            instance += 1;
        }
        if self.is_beyond(instance) {
            let next = self.in_use.max(self.voted).max(self.floor) + 1;
            // With this offset its numbers would be beyond the window for ever. All servers begin anew, and only once
            // much of the window is free: while it stays full, each would do so at another number.
            let has_passed = number - self.top > self.config.window;
            let has_room = next <= self.floor + self.config.window / 2;
            if !has_passed || !has_room {
                self.counts.window_full += 1;
                return None;
            }
            instance = next;
            self.top = number - 1;
            self.counts.renumbered += 1;
        }
        for missing in (self.top + 1..number).rev().take(GAPS_MAX) {
            let at = instance - (number - missing).min(instance);
            self.gaps.insert(missing, at);
            self.counts.gaps += 1;
        }
        while self.gaps.len() > GAPS_MAX {
            self.gaps.pop_first();
        }
        self.base = instance.wrapping_sub(number);
        self.top = number;
        self.voted = instance;
        Some(instance)
    }

    /// Reports which numbers up to this one are stored, as far as they have the same offset to their instances.
    fn say_stored(&self, number: u64, to: To, out: &mut Out) {
        let Some(base) = self.base_of(number) else {
            return;
        };
        let first = number.saturating_sub(MASK_BITS - 1).max(1);
        let mut mask = 0;
        for (stored, instance) in self.numbers.range(first..=number) {
            if instance.wrapping_sub(*stored) == base {
                mask |= 1 << (stored - first);
            }
        }
        self.send(
            to,
            &Control::Stored {
                incarnation: self.incarnation,
                base,
                first,
                mask,
                generations: self.generations,
            },
            out,
        );
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

    fn on_fetch(&mut self, from: u8, incarnation: u64, number: u64, out: &mut Out) {
        let instance = self.numbers.get(&number);
        if incarnation != self.incarnation {
            return;
        }
        let Some((instance, slot)) = instance.and_then(|i| Some((*i, self.slots.get(i)?))) else {
            return;
        };
        match &slot.vote {
            Vote::Fast(request) => {
                let request = Arc::clone(request);
                let number = Control::Number {
                    incarnation,
                    number,
                    request,
                };
                self.send(To::Node(from), &number, out);
            }
            Vote::Decided(value) => {
                let value = value.clone();
                self.send(To::Node(from), &Control::Decided { instance, value }, out);
            }
            Vote::None | Vote::Classic(..) => {}
        }
    }

    /// Handles the report that the others voted for this request elsewhere: from now on it votes with the offset that
    /// would have been right for this request. This is safe in any case, as it still votes only once per instance.
    fn on_align(&mut self, instance: u64, request: Identity) {
        self.in_use = self.in_use.max(instance);
        let Some((number, voted)) = self
            .by_request
            .get(&request)
            .and_then(|number| Some((*number, *self.numbers.get(number)?)))
        else {
            return;
        };
        let base = instance.wrapping_sub(number);
        if voted.wrapping_sub(number) == self.base && base != self.base {
            self.base = base;
            self.counts.aligned += 1;
        }
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
        let (incarnation, nonce) = *granted;
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
        for (_, slot) in std::mem::replace(&mut self.slots, kept) {
            if let Vote::Fast(request) = slot.vote {
                if let Some(number) = self.by_request.remove(&request.identity()) {
                    self.numbers.remove(&number);
                }
            }
        }
        self.numbers.retain(|_, instance| *instance > floor);
        let numbers = &self.numbers;
        self.by_request
            .retain(|_, number| numbers.contains_key(number));
        self.gaps.retain(|_, instance| *instance > floor);
    }

    fn on_fence(&mut self, from: u8, nonce: u64, generation: u16, out: &mut Out) {
        let Some(minion) = node::as_storage(from, self.config.sizes.minions()) else {
            return;
        };
        if self.generations.raise(minion, generation) {
            out.records.push(Record::Generations(self.generations));
        }
        let fenced = Control::Fenced {
            nonce,
            generation,
            highest: self.highest,
            floor: self.floor,
            generations: self.generations,
            incarnations: self.enrolled.iter().map(|(n, (i, _))| (*n, *i)).collect(),
        };
        self.send(To::Node(from), &fenced, out);
    }

    fn on_fenced(
        &mut self,
        now: u64,
        from: u8,
        (nonce, generation): (u64, u16),
        (highest, floor): (u64, u64),
        out: &mut Out,
    ) {
        let others = usize::from(self.config.sizes.failures) * 2;
        let own = self.config.minion;
        let is_storage = node::as_storage(from, self.config.sizes.minions()).is_some();
        let Some(fencing) = &mut self.fencing else {
            return;
        };
        if (nonce, generation) != (fencing.nonce, fencing.generation) || !is_storage {
            return;
        }
        fencing.answered.insert(from);
        if fencing.generation > 0 {
            fencing.highest = fencing.highest.max(highest);
            fencing.floor = fencing.floor.max(floor);
        }
        if fencing.answered.len() < others {
            return;
        }
        if fencing.generation == 0 {
            // A generation that only some have heard of has never voted.
            let Some(next) = self.generations.of(own).checked_add(1) else {
                return;
            };
            fencing.generation = next;
            fencing.answered.clear();
            self.generations.raise(own, next);
            out.records.push(Record::Generations(self.generations));
            return self.fence(now, out);
        }
        let (silent, floor) = (fencing.highest, fencing.floor);
        self.fencing = None;
        out.records.push(Record::Generations(self.generations));
        out.records.extend(self.enrolments());
        let serves = Record::Serves { silent, floor };
        self.replay(serves.clone());
        out.records.push(serves);
        self.end_silence(out);
        self.learn_at = now;
    }

    fn fence(&mut self, now: u64, out: &mut Out) {
        let Some(fencing) = &mut self.fencing else {
            return;
        };
        if fencing.again_at == 0 {
            out.records.push(Record::Lost);
        }
        fencing.again_at = now + RETRY_NS;
        let fence = Control::Fence {
            nonce: fencing.nonce,
            generation: fencing.generation,
        };
        self.send(To::Storages, &fence, out);
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
