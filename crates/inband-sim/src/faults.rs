//! Fault injection: when the next fault strikes, which faults are active, and how each is undone.

use std::collections::BTreeMap;

use crate::links::{Rates, TypeRates};
use crate::listed::Listed;
use crate::queue::Time;
use crate::system::System;
use crate::world::{Event, World};

type End<S> = Box<dyn FnOnce(&mut World<S>)>;

pub struct Undo<S: System> {
    end: End<S>,
    /// The host that is down until then.
    down: Option<S::Host>,
}

/// The effect of a fault.
pub enum Strike<S: System> {
    /// It is over at once.
    Once,
    Lasts(Undo<S>),
}

impl<S: System> Strike<S> {
    /// Returns a fault that lasts until `end` undoes it.
    pub fn until(end: impl FnOnce(&mut World<S>) + 'static) -> Option<Strike<S>> {
        Some(Strike::Lasts(Undo {
            end: Box::new(end),
            down: None,
        }))
    }

    /// Returns a fault that lasts for a while and ends without action.
    pub fn for_a_while() -> Option<Strike<S>> {
        Strike::until(|_| ())
    }

    /// A host is down until `start` starts it; [`World::end_faults_but`] may leave it down.
    pub fn down(host: S::Host, start: impl FnOnce(&mut World<S>) + 'static) -> Option<Strike<S>> {
        Some(Strike::Lasts(Undo {
            end: Box::new(start),
            down: Some(host),
        }))
    }
}

impl<S: System> Undo<S> {
    /// Runs `and` after this.
    pub fn then(self, and: impl FnOnce(&mut World<S>) + 'static) -> Undo<S> {
        let end = self.end;
        Undo {
            end: Box::new(move |world| {
                end(world);
                and(world);
            }),
            down: self.down,
        }
    }
}

pub(crate) struct Faults<S: System> {
    /// Mean time between two faults; 0: none.
    every: Time,
    next: u64,
    active: BTreeMap<u64, Undo<S>>,
}

impl<S: System> Default for Faults<S> {
    fn default() -> Faults<S> {
        Faults {
            every: 0,
            next: 0,
            active: BTreeMap::new(),
        }
    }
}

impl<S: System> World<S> {
    /// Injects faults at this mean interval.
    pub fn inject_faults(&mut self, every: Time) {
        self.faults.every = every;
        self.plan_fault();
    }

    /// Schedules the next fault.
    pub fn plan_fault(&mut self) {
        if self.faults.every > 0 {
            let wait = self.rng.faults.wait(self.faults.every);
            self.queue.push(self.now + wait, Event::Fault);
        }
    }

    /// Returns whether faults are being injected.
    pub(crate) fn has_faults(&self) -> bool {
        self.faults.every > 0
    }

    /// Returns a number unique among active faults.
    pub fn fault_number(&self) -> u64 {
        self.faults.next
    }

    /// Injects a fault now.
    pub fn next_fault(&mut self) {
        let (fault, lasts) = S::next_fault(self);
        let undo = match S::strike(self, fault, lasts) {
            None => return,
            Some(Strike::Once) => None,
            Some(Strike::Lasts(undo)) => Some(undo),
        };
        S::on_fault(self, Some(fault));
        self.stats.faults.add(fault.description(), 1);
        let number = self.faults.next;
        self.faults.next += 1;
        if let Some(undo) = undo {
            self.faults.active.insert(number, undo);
            self.queue.push(self.now + lasts, Event::FaultEnds(number));
        }
    }

    pub(crate) fn end_fault(&mut self, number: u64) {
        // Faults from before [`World::end_faults`] are gone.
        if let Some(undo) = self.faults.active.remove(&number) {
            S::on_fault(self, None);
            (undo.end)(self);
        }
    }

    /// Stops fault injection and undoes active faults, except that these hosts stay down.
    pub fn end_faults_but(&mut self, stay_down: &[S::Host]) {
        self.faults.every = 0;
        let under_way: Vec<u64> = self.faults.active.keys().copied().collect();
        for number in under_way {
            let down = self.faults.active[&number].down;
            if down.is_some_and(|host| stay_down.contains(&host)) {
                self.faults.active.remove(&number);
            } else {
                self.end_fault(number);
            }
        }
    }

    /// Stops fault injection and repairs all links and pauses. The system has to start hosts that are down.
    pub fn end_faults(&mut self) {
        self.faults = Faults::default();
        self.links.heal();
        self.end_pauses();
    }

    pub fn cut(&mut self, pairs: Vec<(S::Host, S::Host)>) -> Option<Strike<S>> {
        for (from, to) in &pairs {
            self.links.cuts.cut(*from, *to);
        }
        Strike::until(move |world| {
            for (from, to) in pairs {
                world.links.cuts.mend(from, to);
            }
        })
    }

    pub fn pause_for(&mut self, host: S::Host, lasts: Time) -> Option<Strike<S>> {
        self.pause(host, self.now + lasts);
        Strike::for_a_while()
    }

    /// Raises the rates at which packets are lost, duplicated, delayed or damaged.
    pub fn raise_rates(&mut self, by: Rates) -> Option<Strike<S>> {
        self.links.rates.raise(by);
        Strike::until(move |world| world.links.rates.lower(by))
    }

    /// Returns a random share of packets for a fault.
    pub fn any_share_ppm(&mut self) -> u64 {
        [20_000, 100_000, 300_000][self.rng.faults.below(3) as usize]
    }

    /// Loses a share of packets.
    pub fn lose_packets(&mut self) -> Option<Strike<S>> {
        let loss_ppm = self.any_share_ppm();
        self.raise_rates(Rates {
            loss_ppm,
            ..Rates::default()
        })
    }

    /// Delays a share of packets.
    pub fn hold_up_packets(&mut self) -> Option<Strike<S>> {
        let hold_up_ppm = self.any_share_ppm();
        self.raise_rates(Rates {
            hold_up_ppm,
            ..Rates::default()
        })
    }

    /// Cuts the link from one host to another; `any_host` draws them.
    pub fn cut_one_way(
        &mut self,
        any_host: impl Fn(&mut World<S>) -> S::Host,
    ) -> Option<Strike<S>> {
        let (a, b) = (any_host(self), any_host(self));
        self.cut(vec![(a, b)])
    }

    /// Cuts the links between two hosts in both directions; `any_host` draws them.
    pub fn cut_both_ways(
        &mut self,
        any_host: impl Fn(&mut World<S>) -> S::Host,
    ) -> Option<Strike<S>> {
        let (a, b) = (any_host(self), any_host(self));
        self.cut(vec![(a, b), (b, a)])
    }

    /// Loses or delays packets of one type. Replaces other rates with the same `number`.
    pub fn raise_type_rates(&mut self, number: u64, rates: TypeRates) -> Option<Strike<S>> {
        self.links.type_rates.insert(number, rates);
        Strike::until(move |world| {
            world.links.type_rates.remove(&number);
        })
    }
}
