//! Disks of acceptors that keep a journal, and power cuts.
//!
//! An action of such an acceptor counts, for the observer too, only once it is on disk: a power cut undoes everything
//! else, and no answer has revealed it.

use inband_paxos::journal::{AcceptorDisk, AcceptorStart, DiskLimits, Synced};
use inband_storage::{Cut, Failure, JournalConfig, SimulatedDisk, Storage};

use crate::paxos::event::Event;
use crate::paxos::fault_kind::FaultKind;
use crate::paxos::invariant::Invariant;
use crate::paxos::layout::EPOCH;
use crate::paxos::limits::{COMPACT_MIN_BYTES, EXTEND_BYTES, SEGMENT_BYTES, SYNC_OPERATIONS_MAX};
use crate::paxos::mutation::Mutation;
use crate::paxos::simhost::SimHost;
use crate::paxos::World;

/// Half of the hosts sync the witness with each commit, so that they notice any damage.
fn limits(node: u8) -> DiskLimits {
    let witness_sync_commits = match node % 2 {
        0 => 1,
        _ => JournalConfig::DEFAULT.witness_sync_commits,
    };
    DiskLimits {
        journal: JournalConfig {
            segment_bytes: SEGMENT_BYTES,
            extend_bytes: EXTEND_BYTES,
            witness_sync_commits,
            ..JournalConfig::DEFAULT
        },
        compact_min_bytes: COMPACT_MIN_BYTES,
    }
}

/// The disk of an acceptor that keeps a journal.
#[derive(Default)]
pub(crate) struct Power {
    pub(crate) storage: SimulatedDisk,
    /// The journal, while the process runs.
    pub(crate) journal: Option<AcceptorDisk>,
    /// The acceptor has entered an epoch. This note is stored separately from the journal.
    has_entered: bool,
    sync_is_due: bool,
    /// The process has ended with a power cut, so the witness may not know the last commits.
    was_cut: bool,
    /// The journal was damaged while the process was down, possibly where it does not matter.
    pub(crate) is_damaged: bool,
}

/// Returns whether an acceptor has lost votes, or may have.
pub(crate) fn has_lost(start: &AcceptorStart, is_managed: bool) -> bool {
    match is_managed {
        true => start.damage.is_some(),
        false => !start.voting,
    }
}

impl World {
    /// Returns whether the acceptor of this host keeps a journal.
    pub(crate) fn keeps_journal(&self, node: u8) -> bool {
        let layout = &self.system.layout;
        let acceptors = match layout.plane {
            true => &layout.acceptor_hosts, // they come and go
            false => &layout.acceptors,
        };
        layout.sync && acceptors.contains(&node)
    }

    /// Opens the journal of a host that starts. Returns the acceptor's restored state, and whether it may vote.
    pub(crate) fn open_journal(&mut self, at: usize) -> Result<AcceptorStart, String> {
        let has_forgotten = self.system.hosts[at].memory_lost;
        let limits = limits(self.system.hosts[at].node);
        let power = &mut self.system.hosts[at].power;
        // An operator who restarts a host on a full or failing disk repairs the disk first.
        power.storage.set_free_bytes(None);
        power.storage.fail_at(u64::MAX, Failure::Io);
        let lies = self.system.mutation == Some(Mutation::LyingDisk);
        power.storage.lie_about_sync(lies);
        let storage = power.storage.clone();
        let mut open = || Ok(Box::new(storage.clone()) as Box<dyn Storage>);
        let geometry = self.system.layout.geometry();
        let is_managed = self.system.layout.plane;
        let opened = match is_managed {
            true => AcceptorDisk::resume(&mut open, limits, geometry),
            false => AcceptorDisk::open(&mut open, limits, geometry, EPOCH, power.has_entered),
        };
        let (journal, start) = opened.map_err(|error| error.to_string())?;
        power.journal = Some(journal);
        power.sync_is_due = false;
        let was_damaged = std::mem::take(&mut power.is_damaged);
        if has_lost(&start, is_managed) && !was_damaged && !has_forgotten {
            return Err(format!("it forgot what nobody damaged: {:?}", start.damage));
        }
        Ok(start)
    }

    /// A host that keeps a journal has started: restores its acceptor's state.
    pub(crate) fn restore(&mut self, at: usize, start: &AcceptorStart) {
        let SimHost {
            node, host, power, ..
        } = &mut self.system.hosts[at];
        let Some(host) = host else { return };
        host.keep_journal(start.restored.as_ref());
        let (journal, registers) = host.journal().expect("it keeps one from now on");
        let mut result = Ok(());
        if self.system.layout.plane {
            // The control plane decides whether it votes, as in `Node`.
            for log in 0..self.system.layout.partitions {
                let epoch = registers.acceptor.acceptor(log).epoch;
                registers.acceptor.seal(log, epoch);
            }
            for observer in &mut self.system.observers {
                if start.damage.is_some() {
                    observer.lost_disk(*node);
                }
                result = result.and(observer.recovered(*node, registers));
            }
            return self.check(result);
        }
        if start.restored.is_none() {
            let disk = power.journal.as_mut().expect("it was opened");
            let entered = disk.enter(journal, registers);
            result = entered.map_err(|error| Invariant::DiskKept.broken(error.to_string()));
        }
        power.has_entered = true;
        if start.voting {
            result = result.and(
                self.system
                    .observers
                    .iter_mut()
                    .try_for_each(|observer| observer.restored(*node, registers)),
            );
        }
        self.check(result);
    }

    /// Plans a sync of a host's journal if there is something to sync.
    pub(crate) fn sync_later(&mut self, at: usize) {
        let sim = &mut self.system.hosts[at];
        let shows = sim.clock.shows(self.now);
        let Some((journal, _)) = sim.host.as_ref().and_then(|host| host.journal()) else {
            return;
        };
        let due = match journal.wants_sync(shows) {
            true => self.now,
            false if journal.due() == u64::MAX || sim.clock.stands() => return,
            false => sim.clock.when(journal.due()).max(self.now),
        };
        if sim.power.sync_is_due || sim.frozen > 0 {
            return;
        }
        sim.power.sync_is_due = true;
        let (low_us, high_us) = self.system.layout.sync_us;
        let delay_us = self.system.rng.disks.between(low_us, high_us);
        let sync = Event::Sync(sim.node, sim.incarnation);
        self.at(due + delay_us, sync);
    }

    pub(crate) fn sync(&mut self, node: u8, incarnation: u64) {
        let Some(at) = self.index(node) else { return };
        let sim = &mut self.system.hosts[at];
        if sim.incarnation != incarnation {
            return;
        }
        sim.power.sync_is_due = false;
        let (Some(host), Some(disk)) = (&mut sim.host, &mut sim.power.journal) else {
            return;
        };
        if sim.frozen > 0 {
            return;
        }
        let (journal, registers) = host.journal_mut().expect("it keeps one");
        match disk.sync(sim.clock.shows(self.now), journal, registers) {
            Synced::Done | Synced::Again => {
                let mut observers = self.system.observers.iter_mut();
                let seen = observers.try_for_each(|observer| observer.synced(node));
                self.check(seen);
                self.with_host(node, None, None, |host, now, out| host.release(now, out));
            }
            Synced::Failed(_) | Synced::FailedAgain(_) => self.sync_later(at),
        }
    }

    /// The process of a host has ended, in most cases because of a power cut; then everything that was not synced is
    /// lost.
    pub(crate) fn close_journal(&mut self, at: usize) {
        let sim = &mut self.system.hosts[at];
        sim.power.journal = None;
        let rng = &mut self.system.rng.disks;
        // One in four is a killed process, which loses nothing that it has written.
        let cuts = [
            (Cut::Unsynced, FaultKind::UnsyncedLost),
            (Cut::Torn, FaultKind::TornWrite),
            (Cut::Scattered, FaultKind::ScatteredWrites),
        ];
        let cut = cuts.get(rng.below(4) as usize);
        sim.power.was_cut = cut.is_some();
        if let Some((cut, kind)) = cut {
            self.stats.faults.add(kind.name(), 1);
            sim.power
                .storage
                .power_cut(*cut, &mut |bound| rng.below(bound));
        }
        let node = sim.node;
        self.system
            .observers
            .iter_mut()
            .for_each(|o| o.lost_power(node));
    }

    /// Cuts the power of all hosts at once.
    pub fn power_cut(&mut self) {
        for node in self.system.layout.nodes() {
            self.crash(node);
        }
    }

    /// Makes the disk of a host full, or no longer full.
    pub fn fill_disk(&mut self, node: u8, full: bool) {
        if let Some(at) = self.index(node) {
            let free_bytes = full.then_some(0);
            self.system.hosts[at]
                .power
                .storage
                .set_free_bytes(free_bytes);
        }
    }

    /// Makes one of the next operations of a host's disk fail.
    pub(crate) fn fail_disk(&mut self, node: u8) {
        let Some(at) = self.index(node) else { return };
        let storage = &self.system.hosts[at].power.storage;
        let operation = storage.operations() + self.system.rng.disks.below(SYNC_OPERATIONS_MAX);
        storage.fail_at(operation, Failure::Io);
    }

    /// Damages the journal of a host that is down in one place, possibly where it does not matter. Not where that would
    /// look like the result of a power cut (docs/bugs.md, known limits): in two places, which could be the last commit
    /// and its witness, or after a power cut that may have taken the witness of the last commit.
    pub fn damage_journal(&mut self, node: u8) {
        let Some(at) = self.index(node).filter(|_| self.keeps_journal(node)) else {
            return;
        };
        let power = &self.system.hosts[at].power;
        let is_known = !power.was_cut || limits(node).journal.witness_sync_commits == 1;
        if power.is_damaged || !is_known {
            return;
        }
        self.system.hosts[at].power.is_damaged = true;
        self.damage_member(node);
        let storage = &self.system.hosts[at].power.storage;
        let files = storage.list().unwrap_or_default();
        if let Some(file) = self.system.rng.disks.pick(&files) {
            let len_bytes = storage.len_bytes(file).unwrap_or(0);
            if len_bytes > 0 {
                let offset = self.system.rng.disks.below(len_bytes);
                storage.corrupt(file, offset, 0x10);
            }
        }
    }
}
