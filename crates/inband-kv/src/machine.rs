//! The replicated state machine of a whole replica: the stores of all partitions, and cross-partition commands.
//!
//! A cross-partition command is decided in a separate log, the last one, and gets a number there: it is an *entry*. A
//! *marker* `k` in a partition's log means: execute here, in order, all entries up to `k` that involve this partition.
//! A partition that reaches a marker stops until that is done; an entry is executed once all its partitions stand at a
//! marker that covers it. So its place in a partition's log is the first marker that covers it, the same on every
//! replica, and the order of entries is the same in all partitions, so there is no deadlock.
//!
//! Markers may be duplicated, delayed or submitted by several replicas: a marker that covers nothing new is skipped.
//!
//! An entry changes several stores. All changes are first written to the store of its lowest partition, those for the
//! others as a *redo record*; then the other stores are written. After a crash in between, the other stores reach the
//! marker again, find that the lowest one has executed the entry, and apply their part of the record. Each store
//! remembers the last entry executed there.
//!
//! An entry that only reads waits in the same way, also on replicas where no client waits for its reply: a replica that
//! passed its marker in one partition while it is missing in another would acknowledge a later write there, whose
//! client could then write in the other partition before the marker. Such an entry changes only replicated time, and is
//! not written at once. If a partition's own time does not determine what that time is, every store involved records
//! it; after a crash the stores that lag take it from one that does not.

mod across;
mod entries;
mod partitions;
mod queue;
mod writes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::BytesMut;
use inband_host::log::{Burst, Ticket};
use rocksdb::{Cache, WriteBatch};

use crate::command::Command;
use crate::cut::{self, Cut, CutWaiter};
use crate::db::block_cache;
use crate::layout::{remove_dir, Layout};
use crate::limits::{SCAN_CURSOR_BITS, UNAPPLIED_BYTES_MAX};
use crate::partition::logs_of;
use crate::script_cache::Scripts;
use crate::store::{
    Job, LogRole, Outcomes, Position, Reader, ScanPage, SharedDbs, Store, StoreError, Writer,
};
use crate::value;
use crate::workers::Workers;
use queue::{Entry, Queue};

/// Where and how a replica stores its data.
#[derive(Debug, Clone)]
pub struct MachineConfig {
    /// Directories; with `n` directories, partition `k` is in directory `k mod n`.
    pub dirs: Vec<PathBuf>,
    pub partitions: usize,
    /// The store survives power failures, cross-partition commands included.
    pub sync: bool,
}

impl MachineConfig {
    /// Returns the configuration of one partition in one directory.
    pub fn single(dir: &Path) -> Self {
        Self {
            dirs: vec![dir.to_path_buf()],
            partitions: 1,
            sync: false,
        }
    }
}

/// One partition: its store, and its progress in what its log has delivered. Shares nothing with other partitions.
struct LogState {
    store: Store,
    /// The marker at which it waits for cross-partition commands.
    standing: Option<u64>,
    /// Highest marker delivered, whether reached or not.
    seen: u64,
    /// How many values of the burst have been scanned for markers.
    scanned: usize,
    /// How many values of the burst have been applied.
    taken: usize,
}

impl LogState {
    fn new(store: Store) -> Self {
        Self {
            store,
            standing: None,
            seen: 0,
            scanned: 0,
            taken: 0,
        }
    }

    /// Scans for markers in what was delivered since the last call.
    fn scan(&mut self, burst: &Burst) {
        for decided in burst.decided().skip(self.scanned) {
            let entry = value::marker_entry(decided.value);
            self.seen = self.seen.max(entry.unwrap_or(0));
            self.scanned += 1;
        }
    }

    /// Applies what was delivered, up to the first marker that must not be passed yet.
    fn advance(
        &mut self,
        burst: &mut Burst,
        may_pass: &dyn Fn(u64) -> bool,
        outcomes: &mut Outcomes,
    ) -> Result<bool, StoreError> {
        let delivered = burst.decided().len();
        if delivered == 0 || self.standing.is_some_and(|marker| !may_pass(marker)) {
            return Ok(false);
        }
        let mut taken = 0;
        if self.taken < delivered {
            let rest = burst.decided().skip(self.taken);
            taken = self.store.apply(rest, may_pass, outcomes)?;
            self.taken += taken;
            let next = burst.get(self.taken);
            self.standing = next.and_then(|decided| value::marker_entry(decided.value));
        }
        if self.taken == delivered {
            burst.clear();
            (self.taken, self.scanned) = (0, 0);
        }
        Ok(taken > 0)
    }

    /// Discards what was delivered if the store is ahead of all of it. Returns whether it was.
    fn skip_delivered(&mut self, burst: &mut Burst) -> bool {
        self.standing = None;
        self.taken = 0;
        let last = burst.decided().last().map(|decided| decided.instance);
        if last.is_some_and(|last| last > self.store.applied()) {
            return false;
        }
        burst.clear();
        self.scanned = 0;
        true
    }
}

/// A marker that a partition is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedMarker {
    /// The marker must cover this entry.
    pub entry: u64,
    /// The marker would cover an entry submitted by this process.
    pub is_own: bool,
}

pub struct Machine {
    config: MachineConfig,
    layout: Layout,
    /// Numbers of the active databases, one per log.
    active: Vec<u64>,
    cache: Cache,
    shared: SharedDbs,
    /// One per log, including the log of cross-partition commands.
    log_states: Vec<LogState>,
    /// What was delivered and is not applied, one per log.
    bursts: Vec<Burst>,
    queue: Queue,
    /// Readers that wait for a cut when an entry is executed, by the entry's value.
    cuts: BTreeMap<Ticket, Cut>,
    /// The partitions' writes are deferred until [`flush`](Self::flush) or [`begin_write`](Self::begin_write).
    is_deferring: bool,
    /// What [`begin_write`](Self::begin_write) has begun, until its end is noted.
    writing: Option<Arc<Job>>,
    /// Does that.
    writer: Option<Writer>,
    workers: Workers,
    /// Reused when partitions are applied together.
    spare: Vec<Outcomes>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // After the end of a write under way: no reader may see one partition with it and another without.
        self.writer = None;
        // That write may have ended without having been noted. If it failed, what it had is unwritten.
        let _ = self.end_write();
        let mut turn = self.shared.turn();
        turn.has_unwritten = self.unwritten() > 0;
        turn.is_over = true;
    }
}

impl Machine {
    /// Opens the stores, creating them at the first start.
    pub fn open(config: MachineConfig) -> Result<Self, StoreError> {
        let layout = Layout::new(&config.dirs, config.partitions)?;
        let cache = block_cache()?;
        let shared = SharedDbs::default();
        let found = layout.active()?;
        let active = found.clone().unwrap_or_else(|| vec![0; layout.logs()]);
        if found.is_some() {
            layout.clean(&active)?;
        } else {
            refuse_left_over(&layout)?;
        }
        let mut machine = Self {
            queue: Queue::new(config.partitions),
            bursts: Burst::for_logs(layout.logs()),
            config,
            layout,
            active,
            cache,
            shared,
            log_states: Vec::new(),
            cuts: BTreeMap::new(),
            is_deferring: false,
            writing: None,
            writer: None,
            workers: Workers::default(),
            spare: Vec::new(),
        };
        for log in 0..machine.logs() {
            let store = machine.open_store(log, found.is_none())?;
            machine.shared.dbs().push(store.db().clone());
            machine.log_states.push(LogState::new(store));
        }
        if found.is_none() {
            machine.layout.set_active(&machine.active)?;
        }
        machine.load_queue()?;
        Ok(machine)
    }

    /// Returns the number of partitions of the replica whose first directory is `dir`; `None` if there is no data.
    pub fn partitions_in(dir: &Path) -> Result<Option<usize>, StoreError> {
        Layout::partitions_in(dir)
    }

    fn open_store(&self, log: usize, create: bool) -> Result<Store, StoreError> {
        let path = self.layout.database(log, self.active[log]);
        if !create && !path.exists() {
            return Err(StoreError::Missing { path });
        }
        let partitions = self.config.partitions;
        let role = LogRole { log, partitions };
        let mut store = Store::open(&path, role, &self.cache, self.shared.clone(), create)?;
        store.keep_local_records_until_synced(self.config.sync);
        store.set_deferring(self.is_deferring && !role.is_queue());
        Ok(store)
    }

    pub fn dirs(&self) -> &[PathBuf] {
        &self.config.dirs
    }

    pub fn partitions(&self) -> usize {
        self.config.partitions
    }

    pub fn logs(&self) -> usize {
        logs_of(self.config.partitions)
    }

    /// Returns the log of cross-partition commands, if there is one.
    pub fn queue_log(&self) -> Option<usize> {
        (self.config.partitions > 1).then_some(self.config.partitions)
    }

    pub fn store(&self, log: usize) -> &Store {
        &self.log_states[log].store
    }

    /// Reads in a partition without going through its log, at cluster time `clock_ms`.
    pub fn reader(&mut self, partition: usize, clock_ms: u64) -> Result<Reader<'_>, StoreError> {
        self.log_states[partition].store.reader(clock_ms)
    }

    /// Returns the stores of all partitions.
    pub fn stores(&self) -> impl Iterator<Item = &Store> {
        let partitions = self.config.partitions;
        self.log_states[..partitions]
            .iter()
            .map(|log_state| &log_state.store)
    }

    pub fn applied(&self) -> Vec<u64> {
        self.log_states.iter().map(|s| s.store.applied()).collect()
    }

    /// Positions of the stores, one per log.
    pub fn positions(&self) -> Vec<Position> {
        self.log_states.iter().map(|s| s.store.position()).collect()
    }

    /// Replicated time: the latest of all partitions.
    pub fn time_ms(&self) -> u64 {
        self.stores().map(Store::time_ms).max().unwrap_or(0)
    }

    /// Returns the number of keys, including expired keys not yet deleted.
    pub fn keys(&self) -> u64 {
        self.stores().map(Store::keys).sum()
    }

    /// The scripts that this replica knows.
    pub fn scripts(&self) -> &Scripts {
        self.shared.scripts()
    }

    pub fn shared(&self) -> SharedDbs {
        self.shared.clone()
    }

    /// Returns a hash over the replicated state, equal on every replica that has applied the same instances.
    pub fn digest(&self) -> Result<u64, StoreError> {
        self.shared.digest().map(|(_, digest)| digest)
    }

    /// From now on several partitions are applied together with these workers.
    pub(crate) fn work_with(&mut self, workers: Workers) {
        self.workers = workers;
    }

    /// The same, with workers of its own.
    #[cfg(any(test, feature = "testing"))]
    pub fn start_workers(&mut self, config: crate::workers::WorkerConfig) -> std::io::Result<()> {
        self.workers = Workers::start(config)?;
        Ok(())
    }

    /// Bytes of records that the partitions have in memory.
    #[cfg(any(test, feature = "testing"))]
    pub fn cached_bytes(&self) -> usize {
        let stores = self.log_states.iter();
        stores.map(|s| s.store.cached_bytes()).sum()
    }

    /// Fault injection for writes.
    #[cfg(any(test, feature = "testing"))]
    pub fn faults(&self) -> &crate::testing::Faults {
        self.shared.faults()
    }

    /// Where the logs deliver to, see [`inband_host::log::ReplicatedLog::poll`]. Everything but decided instances must
    /// be removed before [`run`](Self::run).
    pub fn bursts(&mut self) -> &mut [Burst] {
        &mut self.bursts
    }

    /// Bytes that a log has delivered and that are not applied.
    pub(crate) fn delivered_bytes(&self, log: usize) -> usize {
        let queued = match self.queue_log() {
            Some(queue) if queue == log => self.queued_bytes(),
            _ => 0,
        };
        self.bursts[log].len_bytes() + queued
    }

    /// Called while nothing can be applied: fails if what was delivered exceeds the memory limit.
    pub(crate) fn bound_unapplied(&self) -> Result<(), StoreError> {
        let len_bytes: usize = self.bursts.iter().map(Burst::len_bytes).sum();
        match len_bytes > UNAPPLIED_BYTES_MAX {
            true => Err(StoreError::Unapplied { len_bytes }),
            false => Ok(()),
        }
    }

    /// Applies as much as possible of what was delivered. Returns whether anything was applied.
    pub fn run(&mut self, outcomes: &mut Outcomes) -> Result<bool, StoreError> {
        let shared = self.shared.clone();
        let mut turn = shared.turn();
        let mut has_progress = false;
        while self.step(outcomes)? {
            has_progress = true;
        }
        if shared.is_waited_for() || !self.is_deferring {
            self.flush_in(&mut turn)?;
        }
        turn.has_unwritten = self.unwritten() > 0;
        Ok(has_progress)
    }

    fn step(&mut self, outcomes: &mut Outcomes) -> Result<bool, StoreError> {
        let mut has_progress = false;
        if let Some(log) = self.queue_log() {
            let (log_state, burst) = (&mut self.log_states[log], &mut self.bursts[log]);
            has_progress |= log_state.advance(burst, &|_| true, outcomes)?;
            self.take_queued(outcomes);
        }
        has_progress |= self.advance_partitions(outcomes)?;
        for partition in 0..self.config.partitions {
            has_progress |= self.execute_at(partition, outcomes)?;
        }
        Ok(has_progress)
    }

    /// Returns the marker that this partition waits for, unless it has already been delivered.
    pub fn wanted_marker(&self, partition: usize) -> Option<WantedMarker> {
        let seen = self.log_states[partition].seen;
        self.queue.wanted_marker(partition, seen)
    }

    /// Approximate memory of the cross-partition commands that wait for execution.
    pub fn queued_bytes(&self) -> usize {
        self.queue.len_bytes
    }

    /// Returns whether a partition waits for the log of cross-partition commands to deliver more.
    pub(crate) fn needs_entries(&self) -> bool {
        let log_states = &self.log_states[..self.config.partitions];
        let standing = log_states.iter().filter_map(|log_state| log_state.standing);
        standing.max() > Some(self.queue.delivered)
    }

    /// Returns whether this partition waits at a marker.
    pub fn is_standing(&self, partition: usize) -> bool {
        self.log_states[partition].standing.is_some()
    }

    /// Returns a command that reads all partitions.
    pub fn barrier() -> Vec<u8> {
        let mut command = BytesMut::new();
        Command::DbSize.encode(None, &mut command);
        command.to_vec()
    }

    /// For a reader that needs a cut through all stores when the [barrier](Self::barrier) in this value, submitted by
    /// this process and not delivered yet, is executed. The machine pauses for the reader.
    pub fn cut_at(&mut self, ticket: Ticket) -> CutWaiter {
        let (cut, waiter) = cut::cut();
        self.cuts.insert(ticket, cut);
        waiter
    }

    /// The barrier in this value will not be executed.
    pub fn forget_cut(&mut self, ticket: Ticket) {
        self.cuts.remove(&ticket);
    }

    /// Returns where to receive a checkpoint for [`install`](Self::install), one directory per log.
    pub fn incoming(&self) -> Vec<PathBuf> {
        (0..self.logs())
            .map(|log| self.layout.incoming(log))
            .collect()
    }

    /// Returns where checkpoints for peers are made, one directory per log.
    pub fn outgoing(&self) -> Vec<PathBuf> {
        (0..self.logs())
            .map(|log| self.layout.outgoing(log))
            .collect()
    }

    /// Replaces the stores that are behind the complete checkpoints in [`incoming`](Self::incoming), all in one step:
    /// after a crash at any point, either the old or the new stores are active. Returns the logs that must be reset,
    /// with their new instance.
    ///
    /// Stores ahead of their checkpoint are kept. They are consistent with the others: of each cross-partition command,
    /// each of the two sets holds either everything or a record of what is missing.
    pub fn install(&mut self) -> Result<Vec<(usize, u64)>, StoreError> {
        let mut behind = Vec::new();
        for log in 0..self.logs() {
            let incoming = self.layout.incoming(log);
            let is_there = incoming.exists();
            if is_there && Store::position_in(&incoming)? > self.log_states[log].store.position() {
                behind.push(log);
            }
        }
        if behind.is_empty() {
            let applied = self.applied();
            return Err(StoreError::CheckpointTooOld { applied });
        }
        // Replaced stores are not part of any cut.
        self.cuts.clear();
        // A power failure must not take back the stores that are kept: the peer may hold no record any more of what they
        // have executed.
        match self.config.sync {
            true => self.sync()?,
            false => self.flush()?,
        }
        let shared = self.shared.clone();
        let mut in_use = shared.dbs();
        let before = std::mem::take(&mut self.active);
        self.active = self.layout.install(&behind, &before)?;
        for log in &behind {
            let store = self.open_store(*log, false)?;
            in_use[*log] = store.db().clone();
            self.log_states[*log].store = store;
        }
        drop(in_use);
        for (log, number) in before.iter().enumerate() {
            if *number != self.active[log] {
                remove_dir(&self.layout.database(log, *number))?;
            }
            remove_dir(&self.layout.incoming(log))?;
        }
        let mut reset = Vec::new();
        for (log, (log_state, burst)) in
            self.log_states.iter_mut().zip(&mut self.bursts).enumerate()
        {
            let is_beyond = behind.contains(&log) && log_state.skip_delivered(burst);
            if is_beyond {
                reset.push((log, log_state.store.applied()));
            }
        }
        self.load_queue()?;
        Ok(reset)
    }

    /// Returns a page of the keys. Of the [bits](SCAN_CURSOR_BITS) of a cursor, the highest hold the partition
    /// and the others the position in the order of that partition's keys.
    pub fn scan(&self, cursor: u64, count: usize) -> Result<ScanPage, StoreError> {
        let place_bits = self.place_bits();
        let partition = self.cursor_partition(cursor);
        let Some(log_state) = self.log_states[..self.config.partitions].get(partition) else {
            return Ok(ScanPage {
                cursor: 0,
                keys: Vec::new(),
                kinds: Vec::new(),
            });
        };
        // The bits of a hash that do not fit in a cursor: keys that differ only in them are returned together.
        let fine_bits = u64::BITS - place_bits;
        let mut page = log_state
            .store
            .scan(cursor << fine_bits, count, fine_bits)?;
        page.cursor = match page.cursor >> fine_bits {
            0 if partition + 1 < self.config.partitions => (partition as u64 + 1) << place_bits,
            0 => 0,
            place => (partition as u64) << place_bits | place,
        };
        Ok(page)
    }

    /// Bits of a cursor that hold the position.
    fn place_bits(&self) -> u32 {
        let partition_bits = self.config.partitions.next_power_of_two().trailing_zeros();
        SCAN_CURSOR_BITS - partition_bits
    }

    /// Returns the partition in which a scan continues at `cursor`.
    pub fn cursor_partition(&self, cursor: u64) -> usize {
        (cursor >> self.place_bits()) as usize
    }
}

/// Without an ACTIVE file there must be no data except what an interrupted first start left behind.
fn refuse_left_over(layout: &Layout) -> Result<(), StoreError> {
    layout.refuse_others()?;
    for log in 0..layout.logs() {
        let path = layout.database(log, 0);
        if !path.exists() {
            continue;
        }
        let is_whole = path.join("CURRENT").exists();
        let applied = match is_whole {
            true => Store::position_in(&path)?.applied,
            false => 0,
        };
        if applied > 0 {
            return Err(StoreError::NotActive { path });
        }
        remove_dir(&path)?;
    }
    Ok(())
}

/// One batch for each partition of an entry.
fn empty_batches(entry: &Entry) -> Vec<WriteBatch> {
    let batches = entry.involved.iter().map(|_| WriteBatch::default());
    batches.collect()
}
