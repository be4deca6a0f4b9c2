//! Simulates runs on executors: the work is fetched, takes its time, and ends.

use inband_falcon::message::{Outcome, Payload};
use inband_falcon::task::Attempt;
use inband_falcon::timing::{Nanos, MS};

use crate::falcon::host::Host;
use crate::falcon::invariant::Invariant;
use crate::falcon::limits::{FETCH_AGAIN_NS, FETCH_LIMIT_NS};
use crate::falcon::system::Event;
use crate::falcon::work::{outcome_of, Ends, Plan};
use crate::falcon::{trace, World};

#[derive(Debug)]
pub(in crate::falcon) struct Run {
    number: u64,
    pub attempt: Attempt,
    /// The work, or where to fetch it.
    payload: Payload,
    is_stopped: bool,
    /// When to stop trying to fetch the work.
    fetch_until: Nanos,
}

impl World {
    pub(super) fn run_task(&mut self, number: u8, slot: usize, attempt: Attempt, payload: Payload) {
        let run_number = self.number();
        let fetch_until = self.now + FETCH_LIMIT_NS;
        let Some(worker) = self.worker(number) else {
            return;
        };
        let at = &mut worker.slots[slot];
        let is_revoked = at.revoked == Some(attempt);
        let is_here = matches!(payload, Payload::Inline(_));
        at.run = Some(Run {
            number: run_number,
            attempt,
            payload,
            is_stopped: false,
            fetch_until,
        });
        if is_revoked {
            self.broken(Invariant::RevokedNotRun, format!("{attempt:?} begins"));
        }
        match is_here {
            true => self.begin_run(number, slot),
            false => {
                let event = Event::FetchesWork(number, slot, run_number);
                self.after(MS / 2, event);
            }
        }
    }

    /// Returns the run with this number, if it is still the current one.
    fn run_of(&mut self, number: u8, slot: usize, run: u64) -> Option<&mut Run> {
        let run_of = self.worker(number)?.slots.get_mut(slot)?.run.as_mut();
        run_of.filter(|is| is.number == run)
    }

    pub(in crate::falcon) fn on_fetches_work(&mut self, number: u8, slot: usize, run: u64) {
        let (own, now) = (Host::Worker(number), self.now);
        let Some(is) = self.run_of(number, slot, run) else {
            return;
        };
        let (Payload::At(place), is_over) =
            (is.payload.clone(), is.is_stopped || now > is.fetch_until)
        else {
            return;
        };
        if is_over {
            let said = Outcome::Error(Payload::Inline(b"cannot fetch the work".to_vec()));
            return self.end_run(number, slot, said);
        }
        let Some(work) = self.fetch(own, &place) else {
            let event = Event::FetchesWork(number, slot, run);
            return self.after(FETCH_AGAIN_NS, event);
        };
        if let Some(is) = self.run_of(number, slot, run) {
            is.payload = Payload::Inline(work);
        }
        self.begin_run(number, slot);
    }

    /// The work has been fetched; the run takes as long as its plan says.
    fn begin_run(&mut self, number: u8, slot: usize) {
        let slowness = self.system.workers[usize::from(number)].slowness.max(1);
        let Some(worker) = self.worker(number) else {
            return;
        };
        let Some(run) = &worker.slots[slot].run else {
            return;
        };
        let (run_number, id) = (run.number, run.attempt.id);
        let Payload::Inline(work) = run.payload.clone() else {
            return;
        };
        trace::about(
            &mut self.trace,
            self.now,
            Host::Worker(number),
            run_number,
            id,
        );
        let held = self.system.ledger.runs(id, &work);
        self.check(held);
        let takes_ns = Plan::of(&work).map_or(0, |plan| plan.takes_ns);
        let ends = Event::RunEnds(number, slot, run_number);
        self.after(takes_ns * slowness, ends);
    }

    pub(super) fn stop_run(&mut self, number: u8, slot: usize, attempt: Attempt) {
        let Some(worker) = self.worker(number) else {
            return;
        };
        let run = worker.slots[slot].run.as_mut();
        if let Some(run) = run.filter(|run| run.attempt == attempt) {
            run.is_stopped = true;
            let ends = match run.payload {
                Payload::Inline(_) => Event::RunEnds(number, slot, run.number),
                Payload::At(_) => Event::FetchesWork(number, slot, run.number),
            };
            self.after(MS / 10, ends);
        }
    }

    pub(in crate::falcon) fn on_run_ends(&mut self, number: u8, slot: usize, run: u64) {
        let Some(is) = self.run_of(number, slot, run) else {
            return;
        };
        let is_stopped = is.is_stopped;
        let Payload::Inline(work) = &is.payload else {
            return;
        };
        let kills = Plan::of(work).is_some_and(|plan| plan.ends == Ends::Kills);
        if kills && !is_stopped {
            return self.restart_worker(number, "workers killed by tasks");
        }
        let outcome = match is_stopped {
            true => Outcome::Error(Payload::Inline(b"it was stopped".to_vec())),
            false => outcome_of(work),
        };
        self.end_run(number, slot, outcome);
    }
}
