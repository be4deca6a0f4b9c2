//! What goes wrong: when the next fault strikes, which are under way, and how each is undone.

use std::collections::BTreeMap;

use crate::links::{Rates, TypeRates};
use crate::listed::Listed;
use crate::queue::Time;
use crate::system::System;
use crate::world::{Event, World};

type End<S> = Box<dyn FnOnce(&mut World<S>)>;

/// How a fault is undone.
pub struct Undo<S: System> {
    end: End<S>,
    /// The host that is down as long as it lasts.
    down: Option<S::Host>,
}

/// A fault that has struck.
pub enum Strike<S: System> {
    /// It is over.
    Once,
    /// It lasts until it is undone.
    Lasts(Undo<S>),
}

impl<S: System> Strike<S> {
    /// It lasts until this undoes it.
    pub fn until(end: impl FnOnce(&mut World<S>) + 'static) -> Option<Strike<S>> {
        Some(Strike::Lasts(Undo {
            end: Box::new(end),
            down: None,
        }))
    }

    /// It lasts for a while, and ends by itself.
    pub fn for_a_while() -> Option<Strike<S>> {
        Strike::until(|_| ())
    }

    /// A host is down until this starts it; [`World::end_faults_but`] may leave it down for good.
    pub fn down(host: S::Host, start: impl FnOnce(&mut World<S>) + 'static) -> Option<Strike<S>> {
        Some(Strike::Lasts(Undo {
            end: Box::new(start),
            down: Some(host),
        }))
    }
}

impl<S: System> Undo<S> {
    /// The same, and this afterwards.
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

/// The faults under way.
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
    /// Faults strike this often, on average.
    pub fn inject_faults(&mut self, every: Time) {
        self.faults.every = every;
        self.plan_fault();
    }

    /// The next fault strikes some time from now.
    pub fn plan_fault(&mut self) {
        if self.faults.every > 0 {
            let wait = self.rng.faults.wait(self.faults.every);
            self.queue.push(self.now + wait, Event::Fault);
        }
    }

    /// Does anything go wrong from now on?
    pub(crate) fn has_faults(&self) -> bool {
        self.faults.every > 0
    }

    /// A number that no other fault under way has.
    pub fn fault_number(&self) -> u64 {
        self.faults.next
    }

    /// A fault strikes now.
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
        // Those of before everything was healed are gone.
        if let Some(undo) = self.faults.active.remove(&number) {
            S::on_fault(self, None);
            (undo.end)(self);
        }
    }

    /// No fault strikes any more, and those under way are undone, but for hosts that stay down.
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

    /// Nothing goes wrong any more: links work, hosts run; those that are down are the system's to start.
    pub fn end_faults(&mut self) {
        self.faults = Faults::default();
        self.links.heal();
        self.end_pauses();
    }

    /// These links are cut.
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

    /// A host stands still.
    pub fn pause_for(&mut self, host: S::Host, lasts: Time) -> Option<Strike<S>> {
        self.pause(host, self.now + lasts);
        Strike::for_a_while()
    }

    /// More packets are lost, doubled, held up or damaged.
    pub fn raise_rates(&mut self, by: Rates) -> Option<Strike<S>> {
        self.links.rates.raise(by);
        Strike::until(move |world| world.links.rates.lower(by))
    }

    /// A share of packets that a fault concerns, drawn at random.
    pub fn any_share_ppm(&mut self) -> u64 {
        [20_000, 100_000, 300_000][self.rng.faults.below(3) as usize]
    }

    /// A share of packets is lost.
    pub fn lose_packets(&mut self) -> Option<Strike<S>> {
        let loss_ppm = self.any_share_ppm();
        self.raise_rates(Rates {
            loss_ppm,
            ..Rates::default()
        })
    }

    /// A share of packets is held up.
    pub fn hold_up_packets(&mut self) -> Option<Strike<S>> {
        let hold_up_ppm = self.any_share_ppm();
        self.raise_rates(Rates {
            hold_up_ppm,
            ..Rates::default()
        })
    }

    /// No packets from one host to another; `any_host` draws them.
    pub fn cut_one_way(
        &mut self,
        any_host: impl Fn(&mut World<S>) -> S::Host,
    ) -> Option<Strike<S>> {
        let (a, b) = (any_host(self), any_host(self));
        self.cut(vec![(a, b)])
    }

    /// No packets between two hosts; `any_host` draws them.
    pub fn cut_both_ways(
        &mut self,
        any_host: impl Fn(&mut World<S>) -> S::Host,
    ) -> Option<Strike<S>> {
        let (a, b) = (any_host(self), any_host(self));
        self.cut(vec![(a, b), (b, a)])
    }

    /// Packets of one type are lost or held up. `number`: what else has it is replaced.
    pub fn raise_type_rates(&mut self, number: u64, rates: TypeRates) -> Option<Strike<S>> {
        self.links.type_rates.insert(number, rates);
        Strike::until(move |world| {
            world.links.type_rates.remove(&number);
        })
    }
}
