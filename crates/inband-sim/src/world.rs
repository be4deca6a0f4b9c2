//! The world: hosts, links, faults, time. Steps from event to event.

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

/// Something that will happen.
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

/// Streams of random numbers, one a purpose, so that the schedule of one does not shift the others.
pub struct Streams {
    /// For hosts, and what is particular to a system.
    pub hosts: Rng,
    /// For what links do.
    pub links: Rng,
    /// For faults.
    pub faults: Rng,
}

impl Streams {
    /// Those of a seed.
    pub fn of(seed: u64) -> Streams {
        Streams {
            hosts: Rng::new(seed, 1),
            links: Rng::new(seed, 2),
            faults: Rng::new(seed, 3),
        }
    }
}

/// What the world knows of a host.
struct HostState {
    clock: Clock,
    paused_until: Time,
    wake_at: Time,
}

/// A system in simulated time.
pub struct World<S: System> {
    /// True time, in the system's unit.
    pub now: Time,
    /// What is particular to the system.
    pub system: S,
    /// The links between hosts.
    pub links: Links<S::Host, S::Packet>,
    /// What happened.
    pub trace: Trace,
    /// The same in numbers.
    pub stats: Stats,
    /// What is random.
    pub rng: Streams,
    /// The first invariant that was broken.
    pub violation: Option<Violation<S::Invariant>>,
    pub(crate) queue: Queue<Event<S>>,
    pub(crate) faults: Faults<S>,
    hosts: BTreeMap<S::Host, HostState>,
}

impl<S: System> World<S> {
    /// A world in which nothing has happened yet, without hosts.
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

    /// A host that can be paused, and has a clock of its own: with any offset, and a rate that is not quite right.
    pub fn add_host(&mut self, host: S::Host) {
        let state = HostState {
            clock: Clock::random(&mut self.rng.hosts),
            paused_until: 0,
            wake_at: Time::MAX,
        };
        self.hosts.insert(host, state);
    }

    /// Is there such a host?
    pub fn has_host(&self, host: S::Host) -> bool {
        self.hosts.contains_key(&host)
    }

    /// What a host's clock shows.
    pub fn local(&self, host: S::Host) -> Time {
        self.hosts[&host].clock.shows(self.now)
    }

    /// The clock of a host, which a fault changes.
    pub(crate) fn clock(&mut self, host: S::Host) -> &mut Clock {
        &mut self.hosts.get_mut(&host).expect("a host").clock
    }

    /// A host does nothing until then; what comes waits.
    pub fn pause(&mut self, host: S::Host, until: Time) {
        let state = self.hosts.get_mut(&host).expect("a host");
        state.paused_until = state.paused_until.max(until);
        S::on_pause(self, host);
    }

    /// Does a host stand still?
    pub fn is_paused(&self, host: S::Host) -> bool {
        self.hosts[&host].paused_until > self.now
    }

    pub(crate) fn end_pauses(&mut self) {
        for state in self.hosts.values_mut() {
            state.paused_until = state.paused_until.min(self.now);
        }
    }

    /// Wake a host when its clock shows this.
    pub fn sleep(&mut self, host: S::Host, due: Time) {
        let state = self.hosts.get_mut(&host).expect("a host");
        let at = state.clock.when(due).max(self.now);
        if due < Time::MAX && at < state.wake_at {
            state.wake_at = at;
            self.queue.push(at, Event::Wake(host));
        }
    }

    /// Forget when a host should wake: its clock has changed.
    pub(crate) fn forget_wake(&mut self, host: S::Host) {
        self.hosts.get_mut(&host).expect("a host").wake_at = Time::MAX;
    }

    /// An event of the system happens so much later.
    pub fn after(&mut self, wait: Time, event: S::Event) {
        self.queue.push(self.now + wait, Event::Own(event));
    }

    /// An event of the system happens then.
    pub fn at(&mut self, at: Time, event: S::Event) {
        self.queue.push(at, Event::Own(event));
    }

    /// Note something that happens in the trace; `describe` is called only if somebody wants to read it.
    pub fn note(&mut self, words: &[u64], describe: impl FnOnce() -> String) {
        self.trace.note_words(self.now, words, describe);
    }

    /// An invariant is broken; the first one counts.
    pub fn broken(&mut self, invariant: S::Invariant, what: impl Into<String>) {
        let violation = Violation {
            invariant,
            at_us: self.now / S::TICKS_PER_US,
            what: what.into(),
        };
        self.violation.get_or_insert(violation);
    }

    /// An invariant is broken, if a check says so.
    pub fn check(&mut self, result: Result<(), Broken<S::Invariant>>) {
        if let Err(Broken { invariant, what }) = result {
            self.broken(invariant, what);
        }
    }

    /// Go on until then, or until `done`, or an invariant is broken. Time stays that of the last event. True if done.
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

    /// The same, and if it is not done before, time is `until` in the end.
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

    /// Go on for so long. False if an invariant is broken.
    pub fn run_for(&mut self, time: Time) -> bool {
        self.run_until(self.now + time, |_| false);
        self.violation.is_none()
    }

    /// Handle the next event. False if an invariant is broken or there is none.
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
        } // else it was put off
    }

    /// A host sends a packet.
    pub fn send(&mut self, from: S::Host, to: S::Host, packet: S::Packet) {
        S::send(self, from, to, packet);
    }

    /// A packet has left its host; the links decide what becomes of it.
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

    /// A packet arrives so much later, whatever the links are like.
    pub fn deliver(&mut self, after: Time, from: S::Host, to: S::Host, packet: S::Packet) {
        let event = Event::Packet { from, to, packet };
        self.queue.push(self.now + after, event);
    }

    /// Send the packets that a filter kept, in their order.
    pub fn release(&mut self) {
        let filter = self.links.filter.take();
        for (from, to, packet) in std::mem::take(&mut self.links.kept) {
            S::send(self, from, to, packet);
        }
        self.links.filter = filter;
    }

    /// Nothing is wrong any more.
    pub fn heal(&mut self) {
        S::heal(self);
    }
}
