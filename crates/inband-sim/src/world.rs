//! The world: hosts, links, faults and time, stepped from event to event.

use std::collections::BTreeMap;

use crate::drifting_clock::Clock;
use crate::faults::Faults;
use crate::links::{Fate, Links};
use crate::queue::{Queue, Time};
use crate::rng::Rng;
use crate::stats::Stats;
use crate::system::{Packet, System, Travel};
use crate::trace::Trace;
use crate::violation::{Broken, Violation};

pub(crate) enum Event<S: System> {
    Packet {
        from: S::Host,
        to: S::Host,
        packet: S::Packet,
    },
    Wake(S::Host),
    Fault,
    FaultEnds(u64),
    Own(S::Event),
}

/// Streams of random numbers, one per purpose, so that more draws of one do not shift the others.
pub struct Streams {
    /// For hosts, and for whatever is specific to a system.
    pub hosts: Rng,
    pub links: Rng,
    pub faults: Rng,
}

impl Streams {
    /// Returns the streams of a seed.
    pub fn of(seed: u64) -> Streams {
        Streams {
            hosts: Rng::new(seed, 1),
            links: Rng::new(seed, 2),
            faults: Rng::new(seed, 3),
        }
    }
}

struct HostState {
    clock: Clock,
    paused_until: Time,
    wake_at: Time,
}

/// A system in simulated time.
pub struct World<S: System> {
    /// True time, in the system's unit.
    pub now: Time,
    pub system: S,
    pub links: Links<S::Host, S::Packet>,
    pub trace: Trace,
    pub stats: Stats,
    pub rng: Streams,
    /// The first invariant that was broken.
    pub violation: Option<Violation<S::Invariant>>,
    pub(crate) queue: Queue<Event<S>>,
    pub(crate) faults: Faults<S>,
    hosts: BTreeMap<S::Host, HostState>,
}

impl<S: System> World<S> {
    /// Returns a world without hosts or events.
    pub fn of(system: S, rng: Streams) -> World<S> {
        World {
            now: 1,
            system,
            links: Links::new(S::LINKS),
            trace: Trace::new(S::TICKS_PER_US),
            stats: Stats::default(),
            rng,
            violation: None,
            queue: Queue::default(),
            faults: Faults::default(),
            hosts: BTreeMap::new(),
        }
    }

    /// Adds a host that can be paused. It has its own clock, with an arbitrary offset and a slightly wrong rate.
    pub fn add_host(&mut self, host: S::Host) {
        let state = HostState {
            clock: Clock::random(&mut self.rng.hosts),
            paused_until: 0,
            wake_at: Time::MAX,
        };
        self.hosts.insert(host, state);
    }

    pub fn has_host(&self, host: S::Host) -> bool {
        self.hosts.contains_key(&host)
    }

    /// Returns the reading of a host's clock.
    pub fn local(&self, host: S::Host) -> Time {
        self.hosts[&host].clock.shows(self.now)
    }

    /// Returns the clock of a host, for faults to change.
    pub(crate) fn clock(&mut self, host: S::Host) -> &mut Clock {
        &mut self.hosts.get_mut(&host).expect("a host").clock
    }

    /// Pauses a host until then; its events wait.
    pub fn pause(&mut self, host: S::Host, until: Time) {
        let state = self.hosts.get_mut(&host).expect("a host");
        state.paused_until = state.paused_until.max(until);
        S::on_pause(self, host);
    }

    pub fn is_paused(&self, host: S::Host) -> bool {
        self.hosts[&host].paused_until > self.now
    }

    pub(crate) fn end_pauses(&mut self) {
        for state in self.hosts.values_mut() {
            state.paused_until = state.paused_until.min(self.now);
        }
    }

    /// Schedules [`System::on_wake`] for when the host's clock shows `due`, unless it will wake earlier.
    pub fn sleep(&mut self, host: S::Host, due: Time) {
        let state = self.hosts.get_mut(&host).expect("a host");
        let at = state.clock.when(due).max(self.now);
        if due < Time::MAX && at < state.wake_at {
            state.wake_at = at;
            self.queue.push(at, Event::Wake(host));
        }
    }

    /// Cancels the wake-up of a host whose clock has changed.
    pub(crate) fn forget_wake(&mut self, host: S::Host) {
        self.hosts.get_mut(&host).expect("a host").wake_at = Time::MAX;
    }

    /// Schedules an event of the system after a delay.
    pub fn after(&mut self, wait: Time, event: S::Event) {
        self.queue.push(self.now + wait, Event::Own(event));
    }

    /// Schedules an event of the system at this time.
    pub fn at(&mut self, at: Time, event: S::Event) {
        self.queue.push(at, Event::Own(event));
    }

    /// Notes an event in the trace; `describe` is called only if the last events are kept.
    pub fn note(&mut self, words: &[u64], describe: impl FnOnce() -> String) {
        self.trace.note_words(self.now, words, describe);
    }

    /// Reports a broken invariant; only the first one is kept.
    pub fn broken(&mut self, invariant: S::Invariant, what: impl Into<String>) {
        let violation = Violation {
            invariant,
            at_us: self.now / S::TICKS_PER_US,
            what: what.into(),
        };
        self.violation.get_or_insert(violation);
    }

    /// Reports a broken invariant if a check failed.
    pub fn check(&mut self, result: Result<(), Broken<S::Invariant>>) {
        if let Err(Broken { invariant, what }) = result {
            self.broken(invariant, what);
        }
    }

    /// Runs until then, until `done`, or until an invariant is broken. Time stays that of the last event. Returns true
    /// if done.
    pub fn step_until(&mut self, until: Time, mut done: impl FnMut(&World<S>) -> bool) -> bool {
        loop {
            if done(self) {
                return true;
            }
            if self.queue.next_at().is_none_or(|at| at > until) || !self.step() {
                return false;
            }
        }
    }

    /// Like [`World::step_until`], but if it is not done before, time is `until` at the end.
    pub fn run_until(&mut self, until: Time, mut done: impl FnMut(&World<S>) -> bool) -> bool {
        if self.step_until(until, &mut done) {
            return true;
        }
        if self.violation.is_some() {
            return false;
        }
        self.now = until.max(self.now);
        done(self)
    }

    /// Runs for this long. Returns false if an invariant is broken.
    pub fn run_for(&mut self, time: Time) -> bool {
        self.run_until(self.now + time, |_| false);
        self.violation.is_none()
    }

    /// Handles the next event. Returns false if an invariant is broken or there is no event.
    pub fn step(&mut self) -> bool {
        if self.violation.is_some() {
            return false;
        }
        let Some((at, event)) = self.queue.pop() else {
            return false;
        };
        self.now = self.now.max(at);
        self.stats.events += 1;
        let Some(event) = self.unless_paused(event) else {
            return true;
        };
        match event {
            Event::Packet { from, to, packet } => {
                S::on_travel(self, Travel::Arrived, from, to, &packet);
                S::on_packet(self, from, to, packet);
            }
            Event::Wake(host) => self.wake_host(host),
            Event::Fault if self.has_faults() => S::on_fault_due(self),
            Event::Fault => {}
            Event::FaultEnds(number) => self.end_fault(number),
            Event::Own(event) => S::on_event(self, event),
        }
        S::after_event(self);
        self.violation.is_none()
    }

    fn unless_paused(&mut self, event: Event<S>) -> Option<Event<S>> {
        let host = match &event {
            Event::Packet { to, .. } => Some(*to),
            Event::Wake(host) => Some(*host),
            Event::Own(event) => S::host_of(event),
            Event::Fault | Event::FaultEnds(_) => None,
        };
        let Some(state) = host.and_then(|host| self.hosts.get_mut(&host)) else {
            return Some(event);
        };
        if state.paused_until <= self.now {
            return Some(event);
        }
        let mut at = state.paused_until;
        if let Event::Wake(_) = event {
            at += S::TIMERS_AFTER_PAUSE;
            state.wake_at = at;
        }
        self.queue.push(at, event);
        None
    }

    fn wake_host(&mut self, host: S::Host) {
        let state = self.hosts.get_mut(&host).expect("a host");
        if state.wake_at <= self.now {
            state.wake_at = Time::MAX;
            S::on_wake(self, host);
        } // else it was postponed
    }

    pub fn send(&mut self, from: S::Host, to: S::Host, packet: S::Packet) {
        S::send(self, from, to, packet);
    }

    /// A packet has left its host; the links decide its fate.
    pub fn put_on_link(&mut self, from: S::Host, to: S::Host, packet: S::Packet) {
        let fate = self.links.filtered(self.now, from, to, &packet);
        if fate == Fate::Keep {
            return self.links.kept.push((from, to, packet));
        }
        let (rng, stats) = (&mut self.rng.links, &mut self.stats.links);
        stats.sent += 1;
        let copies = self
            .links
            .copies(rng, stats, (from, to, &packet), fate, false);
        let flipped = |mut packet: S::Packet, flip: Option<(usize, u8)>| {
            if let Some((byte, bit)) = flip {
                packet.flip(byte, bit);
            }
            packet
        };
        let Some((last, others)) = copies.split_last() else {
            self.stats.links.lost += 1;
            return S::on_travel(self, Travel::Lost, from, to, &packet);
        };
        match copies[0].flip {
            None => S::on_travel(self, Travel::Sent, from, to, &packet),
            flip => {
                let first = flipped(packet.clone(), flip);
                S::on_travel(self, Travel::Sent, from, to, &first);
            }
        }
        for copy in others {
            let packet = flipped(packet.clone(), copy.flip);
            self.deliver(copy.after, from, to, packet);
        }
        self.deliver(last.after, from, to, flipped(packet, last.flip));
    }

    /// Delivers a packet after this delay, bypassing the links.
    pub fn deliver(&mut self, after: Time, from: S::Host, to: S::Host, packet: S::Packet) {
        let event = Event::Packet { from, to, packet };
        self.queue.push(self.now + after, event);
    }

    /// Sends the packets that a filter kept, in order.
    pub fn release(&mut self) {
        let filter = self.links.filter.take();
        for (from, to, packet) in std::mem::take(&mut self.links.kept) {
            S::send(self, from, to, packet);
        }
        self.links.filter = filter;
    }

    pub fn heal(&mut self) {
        S::heal(self);
    }
}
