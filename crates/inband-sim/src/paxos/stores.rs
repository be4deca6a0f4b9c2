//! Hosts whose replicas run the real store: their clients' requests, the replies, and the checks of both.

use inband_kv::store::{Outcome, Outcomes, StoreError};
use inband_paxos::log::{ReadTicket, SubmitFailure, Ticket};
use inband_paxos::outbox::Outbox;
use inband_paxos::session::Verdict;
use inband_resp::reply::Reply;

use crate::paxos::app::decided_key;
use crate::paxos::invariant::{Broken, Invariant};
use crate::paxos::limits::STORE_SYNC_PPM;
use crate::paxos::simhost::SimHost;
use crate::paxos::store::{Asked, ReadWaiting, StoreReplica, Waiting};
use crate::paxos::trace::Happened;
use crate::paxos::{counts, World};

/// What the logs reported besides decided values.
#[derive(Default)]
struct Reports {
    failed: Vec<(Ticket, SubmitFailure)>,
    reads_failed: Vec<ReadTicket>,
    checkpoint_needed: bool,
}

fn stopped(node: u8, error: &StoreError) -> Broken {
    Invariant::NoPanic.broken(format!("the store of node {node} stopped: {error}"))
}

impl World {
    /// Applies what the logs have delivered to the store of this host, and answers clients. Returns true if there was
    /// something.
    pub(crate) fn apply_to_store(&mut self, at: usize, out: &mut Outbox) -> bool {
        let (new, reports) = match self.take_decided(at) {
            Ok(taken) => taken,
            Err(broken) => {
                self.check(Err(broken));
                return false;
            }
        };
        let result = self.handle_reports(at, reports);
        self.check(result);
        let mut outcomes = Outcomes::default();
        let sim = &mut self.system.hosts[at];
        let (Some(store), true) = (&mut sim.store, sim.host.is_some()) else {
            return false;
        };
        let ran = store.machine().run(&mut outcomes);
        let has_progress = match ran {
            Ok(has_progress) => has_progress,
            Err(error) => {
                let broken = stopped(sim.node, &error);
                self.check(Err(broken));
                return false;
            }
        };
        let result = self.answer(at, &mut outcomes, out);
        self.check(result);
        let result = self.answer_reads(at);
        self.check(result);
        self.tell_written(at);
        // This host's own acceptor may have voted for a marker, which must be checked.
        let has_submitted = self.submit_markers(at, out);
        if new || has_progress {
            self.flush_later(at);
        }
        (new || has_progress || has_submitted) && self.violation.is_none()
    }

    /// Moves decided values into the state machine's bursts and checks each.
    fn take_decided(&mut self, at: usize) -> Result<(bool, Reports), Broken> {
        let (now, digest) = (self.now, self.system.layout.digest());
        let sim = &mut self.system.hosts[at];
        let node = sim.node;
        let mut reports = Reports::default();
        let (Some(host), Some(store)) = (&mut sim.host, &mut sim.store) else {
            return Ok((false, reports));
        };
        let machine = store.machine.as_mut().expect("the host is up");
        host.take_bursts(machine.bursts());
        let mut new = false;
        for (log, burst) in machine.bursts().iter_mut().enumerate() {
            reports.failed.append(&mut burst.failed);
            let reads_failed = burst.reads_failed.drain(..).map(|(ticket, _)| ticket);
            reports.reads_failed.extend(reads_failed);
            let confirmed = burst.confirmed.drain(..);
            let waiting = confirmed.map(|(ticket, index)| ReadWaiting { ticket, index });
            store.confirmed.extend(waiting);
            let needed = std::mem::take(&mut burst.checkpoint_needed);
            reports.checkpoint_needed |= needed;
            if needed && !sim.copies_checkpoint[log] {
                sim.copies_checkpoint[log] = true;
                self.system
                    .checkpoints_wanted
                    .push((node, sim.incarnation, log));
            }
            let delivered = &mut store.delivered[log];
            for decided in burst.decided() {
                if decided.instance <= *delivered {
                    continue;
                }
                if decided.instance != *delivered + 1 {
                    return Err(Invariant::InOrder.broken(format!(
                        "replica {node} was handed {} after {delivered} of {log}",
                        decided.instance
                    )));
                }
                *delivered = decided.instance;
                let key = decided_key(&decided, digest);
                self.system.observers[log].learned(node, decided.instance, key)?;
                self.system.ledger.delivered(node, log, &decided)?;
                self.trace
                    .note(now, Happened::Applied(node, log, decided.instance, key));
                new = true;
            }
        }
        Ok((new, reports))
    }

    fn handle_reports(&mut self, at: usize, reports: Reports) -> Result<(), Broken> {
        self.copy_checkpoints_later();
        let (node, Some(store)) = (self.system.hosts[at].node, &mut self.system.hosts[at].store)
        else {
            return Ok(());
        };
        let mut ended = Vec::new();
        for (ticket, why) in reports.failed {
            store.orphans.remove(&ticket);
            store.forget_marker(ticket);
            ended.extend(store.waiting.remove(&ticket).map(|waiting| (waiting, why)));
        }
        for ticket in &reports.reads_failed {
            store.reads.remove(ticket);
        }
        for (waiting, why) in ended {
            self.store_failed(node, &waiting, why)?;
        }
        for ticket in reports.reads_failed {
            self.system.ledger.read_failed(node, ticket)?;
        }
        Ok(())
    }

    fn store_failed(
        &mut self,
        node: u8,
        waiting: &Waiting,
        why: SubmitFailure,
    ) -> Result<(), Broken> {
        if waiting.asked == Asked::Marker {
            return Ok(());
        }
        let command = self.system.ledger.failed(node, waiting.ticket, why)?;
        let how = match why {
            SubmitFailure::OutcomeUnknown(_) => 1,
            SubmitFailure::NotApplied(_) => 2,
        };
        self.trace
            .note(self.now, Happened::Ended(node, command, how));
        if how == 1 {
            return Ok(());
        }
        match &waiting.asked {
            Asked::Append(commands) => commands
                .iter()
                .try_for_each(|command| self.system.histories.not_applied(*command)),
            Asked::Transaction(command, _) => self.system.histories.not_applied(*command),
            Asked::SetAll(_) | Asked::SetExpiring(..) | Asked::ReadAll(_) | Asked::Marker => Ok(()),
        }
    }

    /// The outcomes of these are unknown.
    fn outcomes_unknown(&mut self, node: u8, ended: &[Waiting]) -> Result<(), Broken> {
        let why = SubmitFailure::OutcomeUnknown(self.system.layout.submit_deadline_us() / 1000);
        ended
            .iter()
            .try_for_each(|waiting| self.store_failed(node, waiting, why))
    }

    /// Answers clients whose values were applied.
    fn answer(
        &mut self,
        at: usize,
        outcomes: &mut Outcomes,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        for outcome in std::mem::take(&mut outcomes.values) {
            let end = outcome.first_reply + outcome.reply_count;
            let replies = &outcomes.replies[outcome.first_reply..end];
            self.value_applied(at, outcome, replies, out)?;
        }
        for (entry, reply) in outcomes.entries.drain(..) {
            let store = self.system.hosts[at].store.as_mut();
            let waiting = store.and_then(|store| store.entries.remove(&entry));
            if let Some(waiting) = waiting {
                self.succeeded(at, &waiting, &[reply])?;
            }
        }
        let sim = &mut self.system.hosts[at];
        let (node, shows) = (sim.node, sim.clock.shows(self.now));
        let store = sim.store.as_mut();
        let overdue = store.map(|store| store.overdue(shows)).unwrap_or_default();
        self.outcomes_unknown(node, &overdue)
    }

    fn value_applied(
        &mut self,
        at: usize,
        outcome: Outcome,
        replies: &[Reply],
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        let SimHost {
            node,
            host,
            store,
            clock,
            ..
        } = &mut self.system.hosts[at];
        let (Some(host), Some(store)) = (host, store) else {
            return Ok(());
        };
        let (node, ticket) = (*node, outcome.ticket);
        match outcome.verdict {
            Verdict::Nothing => return Ok(()),
            Verdict::Refused => {
                if let Some(waiting) = store.waiting.get_mut(&ticket) {
                    // If it was refused under this session before, it has already been resubmitted under another.
                    if waiting.refused_session < outcome.session_id {
                        waiting.refused_session = outcome.session_id;
                        host.session_refused(clock.shows(self.now), ticket, out);
                        return Ok(());
                    }
                }
            }
            Verdict::Apply | Verdict::Duplicate => {}
        }
        if store.orphans.remove(&ticket) {
            host.answered(ticket);
            return Ok(());
        }
        if outcome.verdict == Verdict::Refused {
            return Ok(());
        }
        let Some(waiting) = store.waiting.remove(&ticket) else {
            return Ok(());
        };
        host.answered(ticket);
        store.forget_marker(ticket);
        if waiting.asked == Asked::Marker {
            return Ok(());
        }
        if outcome.verdict == Verdict::Duplicate {
            return self.outcomes_unknown(node, &[waiting]);
        }
        if let Some(entry) = outcome.first_entry {
            store.entries.insert(entry, waiting);
            return Ok(());
        }
        self.succeeded(at, &waiting, replies)
    }

    /// A client is told that its request succeeded.
    fn succeeded(&mut self, at: usize, waiting: &Waiting, replies: &[Reply]) -> Result<(), Broken> {
        let node = self.system.hosts[at].node;
        let command = self.system.ledger.finished(node, waiting.ticket)?;
        self.trace.note(self.now, Happened::Ended(node, command, 0));
        let partition = waiting.ticket.partition();
        let strange = |reply: &[Reply]| {
            let what = format!("replica {node} answered {:?} with {reply:?}", waiting.asked);
            Err(Invariant::NothingLost.broken(what))
        };
        match (&waiting.asked, replies) {
            (Asked::Append(commands), replies) if commands.len() == replies.len() => {
                for (command, reply) in commands.iter().zip(replies) {
                    let Reply::Integer(len_bytes) = reply else {
                        return strange(replies);
                    };
                    self.system
                        .histories
                        .acknowledged(*command, partition, *len_bytes)?;
                }
                Ok(())
            }
            (Asked::Transaction(command, involved), [Reply::Array(replies)])
                if involved.len() == replies.len() =>
            {
                for (partition, reply) in involved.iter().zip(replies) {
                    let Reply::Integer(len_bytes) = reply else {
                        return strange(replies);
                    };
                    self.system
                        .histories
                        .acknowledged(*command, *partition, *len_bytes)?;
                }
                Ok(())
            }
            (Asked::SetAll(_), [Reply::Ok]) => Ok(()),
            (Asked::SetExpiring(..), [Reply::Array(_)]) => Ok(()),
            (Asked::ReadAll(must_see), [Reply::Array(values)]) => {
                self.all_read(node, values, must_see)
            }
            _ => strange(replies),
        }
    }

    /// Checks what one command has read: the keys that are set together, those that expire together, and then all
    /// histories.
    fn all_read(&mut self, node: u8, values: &[Reply], must_see: &[usize]) -> Result<(), Broken> {
        let (together, histories) = values.split_at(values.len() / 3 * 2);
        for set in together.chunks(histories.len()) {
            if set.iter().any(|value| *value != set[0]) {
                return Err(Invariant::CrossPartitionAtomic.broken(format!(
                    "replica {node} read {set:?} of keys that are set, and expire, together"
                )));
            }
        }
        let value = |reply: &Reply| match reply {
            Reply::Bulk(value) => value.clone(),
            _ => Vec::new(),
        };
        let histories: Vec<(usize, Vec<u8>)> = histories.iter().map(value).enumerate().collect();
        self.system
            .histories
            .read_together(node, &histories, must_see)
    }

    /// Answers reads whose index is applied, and ends those whose deadlines have passed.
    fn answer_reads(&mut self, at: usize) -> Result<(), Broken> {
        let sim = &mut self.system.hosts[at];
        let shows = sim.clock.shows(self.now);
        let (node, Some(store)) = (sim.node, &mut sim.store) else {
            return Ok(());
        };
        let mut waiting = std::mem::take(&mut store.confirmed);
        let mut result = Ok(());
        waiting.retain(|read| {
            let log = read.ticket.partition();
            let Some(begun) = store.reads.get(&read.ticket).copied() else {
                return false;
            };
            let applied = store.machine().store(log).applied();
            if applied < read.index && begun.deadline >= shows {
                return true;
            }
            store.reads.remove(&read.ticket);
            let ended = if applied < read.index {
                self.system.ledger.read_failed(node, read.ticket)
            } else if log < store.partitions {
                let answered =
                    self.system
                        .ledger
                        .read_answered(node, read.ticket, read.index, applied);
                let seen = sample(store, node, log, shows, &mut self.system.histories);
                let sees = |length| {
                    self.system
                        .histories
                        .read(node, log, length, begun.must_see)
                };
                answered.and(seen.and_then(sees))
            } else {
                self.system
                    .ledger
                    .read_answered(node, read.ticket, read.index, applied)
            };
            self.trace
                .note(self.now, Happened::Read(node, log, read.index));
            result = std::mem::replace(&mut result, Ok(())).and(ended);
            false
        });
        store.confirmed.append(&mut waiting);
        result
    }

    /// Tells the logs what is written, which acceptors then need not keep.
    fn tell_written(&mut self, at: usize) {
        let sim = &mut self.system.hosts[at];
        let (Some(host), Some(store)) = (&mut sim.host, &mut sim.store) else {
            return;
        };
        let (applied, written) = (store.machine().applied(), store.machine().written());
        // With `sync` they are told only once it is synced.
        let written = match self.system.layout.sync {
            true => store.synced_applied.clone(),
            false => written,
        };
        let positions = applied.into_iter().zip(written);
        for (log, (app, (applied, written))) in sim.apps.iter_mut().zip(positions).enumerate() {
            app.live.applied = applied;
            if app.durable.applied < written {
                app.durable.applied = written;
                host.applied(log, written);
            }
        }
    }

    fn submit_markers(&mut self, at: usize, out: &mut Outbox) -> bool {
        let index = self.replica_index(at);
        let sim = &mut self.system.hosts[at];
        let shows = sim.clock.shows(self.now);
        let (Some(host), Some(store)) = (&mut sim.host, &mut sim.store) else {
            return false;
        };
        let mut has_submitted = false;
        for (partition, entry) in store.wanted_markers(shows, index) {
            let marker = inband_kv::value::marker(entry);
            let Ok(ticket) = host.submit(shows, partition, &marker, out) else {
                continue;
            };
            store.markers[partition].in_flight = Some((ticket, entry));
            store.wait(Asked::Marker, ticket, u64::MAX);
            has_submitted = true;
        }
        has_submitted
    }

    fn replica_index(&self, at: usize) -> u64 {
        let node = self.system.hosts[at].node;
        let place = self.system.layout.replicas.iter().position(|n| *n == node);
        place.unwrap_or(0) as u64
    }

    /// Writes what the store has applied, and checks it. A write apart from what is applied begins with one event, and
    /// each log's part is written with another one; the process may end in between.
    pub(crate) fn flush_store(&mut self, at: usize) {
        let sim = &mut self.system.hosts[at];
        let (node, shows) = (sim.node, sim.clock.shows(self.now));
        let Some(store) = &mut sim.store else { return };
        let syncs = self.system.layout.sync && self.system.rng.disks.chance_ppm(STORE_SYNC_PPM);
        let flushed = match syncs {
            true => store.sync_all(),
            false => store.write_apart(),
        };
        let mut result = flushed.map_err(|error| stopped(node, &error));
        for partition in 0..store.partitions {
            let seen = sample(store, node, partition, shows, &mut self.system.histories);
            result = result.and(seen.map(|_| ()));
        }
        self.check(result);
        self.with_host(node, None, None, |_, _, _| {});
        // Repeat until it is synced.
        self.flush_later(at);
    }

    /// The process of a host with a store has ended, in most cases because of a power cut.
    pub(crate) fn store_crashes(&mut self, at: usize) {
        let rng = &mut self.system.rng.disks;
        let Some(store) = &mut self.system.hosts[at].store else {
            return;
        };
        let lost = match self.system.layout.sync && rng.below(4) > 0 {
            true => store.lose_power(|| rng.chance_ppm(500_000)),
            false => Ok(()),
        };
        store.crash();
        let broken = |error| Invariant::NoPanic.broken(format!("a store's files: {error}"));
        self.check(lost.map_err(broken));
    }

    /// Installs the stores of peer `from`.
    pub(crate) fn checkpoint_store(&mut self, at: usize, from: usize, log: usize) {
        let Some(mut peer) = self.system.hosts[from].store.take() else {
            return;
        };
        let sim = &mut self.system.hosts[at];
        let (node, Some(store)) = (sim.node, &mut sim.store) else {
            return;
        };
        let installed = store.install_from(&mut peer);
        let orphans = match &installed {
            Ok(_) => store.orphan_all(),
            Err(_) => Vec::new(),
        };
        let applied = store.machine().store(log).applied();
        self.system.hosts[from].store = Some(peer);
        let reset = match installed {
            Ok(reset) => reset,
            // It has caught up in the meantime.
            Err(StoreError::CheckpointTooOld { .. }) => return,
            Err(error) => return self.check(Err(stopped(node, &error))),
        };
        self.stats.count(counts::CHECKPOINTS, 1);
        self.trace
            .note(self.now, Happened::Checkpoint(node, log, applied));
        let result = self.outcomes_unknown(node, &orphans);
        self.check(result);
        self.with_host(node, None, None, |host, _, _| {
            for (log, applied) in reset {
                host.reset(log, applied);
            }
        });
    }

    /// At the end of a run the stores of all running replicas must be equal.
    pub(crate) fn stores_are_equal(&mut self) -> Result<(), Broken> {
        let mut first = None;
        for node in self.living_replicas() {
            let at = self.index(node).expect("it lives");
            let shows = self.system.hosts[at].clock.shows(self.now);
            let Some(store) = &mut self.system.hosts[at].store else {
                continue;
            };
            for partition in 0..store.partitions {
                sample(store, node, partition, shows, &mut self.system.histories)?;
            }
            let flushed = store.machine().flush();
            let digest = flushed.and_then(|()| store.machine().digest());
            let digest = digest.map_err(|error| stopped(node, &error))?;
            let (other, expected) = *first.get_or_insert((node, digest));
            if digest != expected {
                return Err(Invariant::ReplicasEqual.broken(format!(
                    "the stores of nodes {other} and {node} differ at equal positions"
                )));
            }
        }
        self.system.histories.all_atomic()
    }
}

/// Checks the history of a partition as a replica has it. Returns its number of commands.
fn sample(
    store: &mut StoreReplica,
    node: u8,
    partition: usize,
    shows: u64,
    histories: &mut crate::paxos::history::Histories,
) -> Result<usize, Broken> {
    let history = store.history(partition, shows);
    let value = history.map_err(|error| stopped(node, &error))?;
    let position = store.machine().store(partition).position();
    histories.saw(node, partition, position, &value)
}
