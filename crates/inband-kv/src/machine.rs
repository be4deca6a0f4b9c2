//! The replicated state machine of a whole replica: the stores of all partitions, and the commands
//! over several of them.
//!
//! A command over several partitions is decided in a log of its own, the last one, and gets a number
//! there: it is an *entry*. A *marker* `k` in a partition's log says: execute here, in their order,
//! all entries up to `k` that concern this partition. A partition that meets a marker stops until
//! that is done; an entry is executed once all its partitions stand at a marker that covers it. So
//! its place in a partition's log is the first marker that covers it, the same on every replica, and
//! the order of entries is the same in all partitions: nobody waits in a circle.
//!
//! Markers may come twice, late or from several replicas: one that covers nothing new is passed.
//!
//! An entry changes several stores. All changes are first written to the lowest of its partitions'
//! stores, those of the others as a *redo record*; then the others are written. After a crash in
//! between the others find, when they come to the marker again, that the lowest one has executed the
//! entry, and take their part from the record. Each store remembers the last entry executed there.
//!
//! An entry that only reads waits in the same way, also where nobody waits for its reply: a replica that
//! passed its marker in one partition while it is missing in another would acknowledge a later write
//! there, whose client could then write in the other partition before the marker. It changes nothing
//! but replicated time, and is not written at once. If a partition's own time does not tell what time
//! that is, every store concerned notes it; after a crash those that lag take it from one that does not.

mod across;
mod entries;
mod queue;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::BytesMut;
use inband_paxos::log::{Burst, Ticket};
use rocksdb::{Cache, WriteBatch};

use crate::command::Command;
use crate::cut::{self, Cut, CutWaiter};
use crate::db::block_cache;
use crate::layout::{remove_dir, Layout};
use crate::limits::{SCAN_CURSOR_BITS, UNAPPLIED_BYTES_MAX};
use crate::partition::logs_of;
use crate::store::{
    LogRole, Outcomes, Position, Reader, ScanPage, SharedDbs, Store, StoreError, Turn,
};
use crate::value;
use queue::{Entry, Queue};

/// Where and how a replica keeps its data.
#[derive(Debug, Clone)]
pub struct MachineConfig {
    /// Directories; partition `k` of `n` directories lives in the one numbered `k mod n`.
    pub dirs: Vec<PathBuf>,
    /// Number of partitions.
    pub partitions: usize,
    /// The store survives power cuts, commands over several partitions whole.
    pub sync: bool,
}

impl MachineConfig {
    /// One partition in one directory.
    pub fn single(dir: &Path) -> Self {
        Self {
            dirs: vec![dir.to_path_buf()],
            partitions: 1,
            sync: false,
        }
    }
}

/// One partition: its store, and how far it has come in what its log has delivered. Shares nothing
/// with other partitions.
struct LogState {
    store: Store,
    /// Marker at which it waits for commands over several partitions.
    standing: Option<u64>,
    /// Highest marker delivered, met or not.
    seen: u64,
    /// Values of the burst that were looked at for markers.
    scanned: usize,
    /// Values of the burst that are applied.
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

    /// Look for markers in what was delivered since the last call.
    fn scan(&mut self, burst: &Burst) {
        for decided in burst.decided().skip(self.scanned) {
            let entry = value::marker_entry(decided.value);
            self.seen = self.seen.max(entry.unwrap_or(0));
            self.scanned += 1;
        }
    }

    /// Apply what was delivered, as far as the first marker that must not be passed yet.
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

    /// Forget what was delivered, if the store is beyond it all; is it?
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
    /// It should cover this entry.
    pub entry: u64,
    /// An entry of this process is among those it would cover.
    pub is_own: bool,
}

/// See the module.
pub struct Machine {
    config: MachineConfig,
    layout: Layout,
    /// Numbers of the databases in use, one a log.
    active: Vec<u64>,
    cache: Cache,
    shared: SharedDbs,
    /// One a log, the queue's included.
    log_states: Vec<LogState>,
    /// What was delivered and is not applied, one a log.
    bursts: Vec<Burst>,
    queue: Queue,
    /// Who wants to look at the stores when an entry is executed, by its value.
    cuts: BTreeMap<Ticket, Cut>,
    /// What the partitions apply is written by [`flush`](Self::flush).
    is_deferring: bool,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // What is not written is lost, and need not be waited for.
        self.shared.turn().has_unwritten = false;
    }
}

impl Machine {
    /// Open the stores, creating them at the first start.
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

    /// How many partitions the data of a replica have whose first directory is `dir`; `None`: there
    /// are no data.
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

    /// Where the stores are.
    pub fn dirs(&self) -> &[PathBuf] {
        &self.config.dirs
    }

    /// Number of partitions.
    pub fn partitions(&self) -> usize {
        self.config.partitions
    }

    /// Number of logs.
    pub fn logs(&self) -> usize {
        logs_of(self.config.partitions)
    }

    /// The log of commands over several partitions, if there is one.
    pub fn queue_log(&self) -> Option<usize> {
        (self.config.partitions > 1).then_some(self.config.partitions)
    }

    /// The store of a log.
    pub fn store(&self, log: usize) -> &Store {
        &self.log_states[log].store
    }

    /// Read in a partition beside its log, at `clock_ms` by cluster time.
    pub fn reader(&mut self, partition: usize, clock_ms: u64) -> Result<Reader<'_>, StoreError> {
        self.log_states[partition].store.reader(clock_ms)
    }

    /// The stores of all partitions.
    pub fn stores(&self) -> impl Iterator<Item = &Store> {
        let partitions = self.config.partitions;
        self.log_states[..partitions]
            .iter()
            .map(|log_state| &log_state.store)
    }

    /// Last instances applied, one a log.
    pub fn applied(&self) -> Vec<u64> {
        self.log_states.iter().map(|s| s.store.applied()).collect()
    }

    /// How far each log's store has come.
    pub fn positions(&self) -> Vec<Position> {
        self.log_states.iter().map(|s| s.store.position()).collect()
    }

    /// Replicated time, the latest of all partitions.
    pub fn time_ms(&self) -> u64 {
        self.stores().map(Store::time_ms).max().unwrap_or(0)
    }

    /// Number of keys, expired ones that are not yet deleted included.
    pub fn keys(&self) -> u64 {
        self.stores().map(Store::keys).sum()
    }

    /// A handle for other threads.
    pub fn shared(&self) -> SharedDbs {
        self.shared.clone()
    }

    /// A hash over everything replicated. Equal on every replica that has applied the same.
    pub fn digest(&self) -> Result<u64, StoreError> {
        self.shared.digest().map(|(_, digest)| digest)
    }

    /// From now on what the partitions apply is kept in memory until it is [written](Self::flush): to
    /// be done every now and then. Commands over several partitions are written at once, and all
    /// before them; so whatever a crash takes, the stores fit each other.
    pub fn defer_writes(&mut self) {
        self.is_deferring = true;
        for log_state in &mut self.log_states[..self.config.partitions] {
            log_state.store.set_deferring(true);
        }
    }

    /// Last instances written, one a log. The log may be told that these are applied.
    pub fn written(&self) -> Vec<u64> {
        self.log_states.iter().map(|s| s.store.written()).collect()
    }

    /// Instances that are applied and not written, of the log with the most. One that is applied in
    /// part counts.
    pub fn unwritten(&self) -> u64 {
        let unwritten = self.log_states.iter().map(|s| s.store.unwritten());
        unwritten.max().unwrap_or(0)
    }

    /// Does somebody wait for what is applied to be written?
    pub(crate) fn is_waited_for(&self) -> bool {
        self.shared.is_waited_for()
    }

    /// Write what is applied.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        let mut turn = shared.turn();
        self.flush_in(&mut turn)
    }

    fn flush_in(&mut self, turn: &mut Turn) -> Result<(), StoreError> {
        for log_state in &mut self.log_states {
            log_state.store.flush()?;
        }
        self.log_states
            .iter_mut()
            .for_each(|s| s.store.all_written());
        turn.has_unwritten = false;
        Ok(())
    }

    /// Make everything applied survive a crash of the host.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.flush()?;
        self.sync_begins();
        self.shared.sync()?;
        self.sync_ends();
        Ok(())
    }

    /// Must what is applied be synced before anybody is told?
    pub fn is_sync(&self) -> bool {
        self.config.sync
    }

    /// A sync through [`shared`](Self::shared) begins.
    pub fn sync_begins(&mut self) {
        self.log_states
            .iter_mut()
            .for_each(|s| s.store.sync_begins());
    }

    /// It has succeeded.
    pub fn sync_ends(&mut self) {
        self.log_states.iter_mut().for_each(|s| s.store.sync_ends());
    }

    /// Let writes fail.
    #[cfg(any(test, feature = "testing"))]
    pub fn faults(&self) -> &crate::testing::Faults {
        self.shared.faults()
    }

    /// Where the logs deliver to, see [`inband_paxos::log::ReplicatedLog::poll`]. What is not a
    /// decided instance is to be taken out before [`run`](Self::run).
    pub fn bursts(&mut self) -> &mut [Burst] {
        &mut self.bursts
    }

    /// Bytes that were delivered of a log and are not applied.
    pub(crate) fn delivered_bytes(&self, log: usize) -> usize {
        let queued = match self.queue_log() {
            Some(queue) if queue == log => self.queued_bytes(),
            _ => 0,
        };
        self.bursts[log].len_bytes() + queued
    }

    /// Nothing is applied for now; is what was delivered too much to be kept?
    pub(crate) fn bound_unapplied(&self) -> Result<(), StoreError> {
        let len_bytes: usize = self.bursts.iter().map(Burst::len_bytes).sum();
        match len_bytes > UNAPPLIED_BYTES_MAX {
            true => Err(StoreError::Unapplied { len_bytes }),
            false => Ok(()),
        }
    }

    /// Apply what was delivered as far as possible; was there anything?
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
        for partition in 0..self.config.partitions {
            let (log_state, burst) = (&mut self.log_states[partition], &mut self.bursts[partition]);
            log_state.scan(burst);
            let queue = &self.queue;
            let may_pass = |entry| queue.may_pass(partition, entry);
            has_progress |= log_state.advance(burst, &may_pass, outcomes)?;
        }
        for partition in 0..self.config.partitions {
            has_progress |= self.execute_at(partition, outcomes)?;
        }
        Ok(has_progress)
    }

    /// The marker that this partition waits for, if there is none on its way here.
    pub fn wanted_marker(&self, partition: usize) -> Option<WantedMarker> {
        let seen = self.log_states[partition].seen;
        self.queue.wanted_marker(partition, seen)
    }

    /// About how much memory the commands over several partitions take that are to be executed.
    pub fn queued_bytes(&self) -> usize {
        self.queue.len_bytes
    }

    /// Does a partition wait for the log of commands over several partitions to deliver more of them?
    pub(crate) fn needs_entries(&self) -> bool {
        let log_states = &self.log_states[..self.config.partitions];
        let standing = log_states.iter().filter_map(|log_state| log_state.standing);
        standing.max() > Some(self.queue.delivered)
    }

    /// Does this partition wait at a marker?
    pub fn is_standing(&self, partition: usize) -> bool {
        self.log_states[partition].standing.is_some()
    }

    /// A command that reads all partitions.
    pub fn barrier() -> Vec<u8> {
        let mut command = BytesMut::new();
        Command::DbSize.encode(None, &mut command);
        command.to_vec()
    }

    /// For somebody who wants to look at all stores when the [barrier](Self::barrier) in this value of
    /// this process, not delivered yet, is executed. The machine waits for that.
    pub fn cut_at(&mut self, ticket: Ticket) -> CutWaiter {
        let (cut, waiter) = cut::cut();
        self.cuts.insert(ticket, cut);
        waiter
    }

    /// The barrier in this value will not come.
    pub fn forget_cut(&mut self, ticket: Ticket) {
        self.cuts.remove(&ticket);
    }

    /// Where to receive a checkpoint for [`install`](Self::install), one directory a log.
    pub fn incoming(&self) -> Vec<PathBuf> {
        (0..self.logs())
            .map(|log| self.layout.incoming(log))
            .collect()
    }

    /// Where checkpoints for peers are made, one directory a log.
    pub fn outgoing(&self) -> Vec<PathBuf> {
        (0..self.logs())
            .map(|log| self.layout.outgoing(log))
            .collect()
    }

    /// Replace the stores that are behind the complete checkpoints in [`incoming`](Self::incoming),
    /// all in one step: a crash at any moment leaves the old or the new ones. Returns the logs that
    /// have to be reset, with the instance they are at now.
    ///
    /// Stores ahead of their checkpoint stay. They fit the others: of a command over several
    /// partitions each of the two sets holds all, or a record of what is missing.
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
        // What is replaced is no part of any cut.
        self.cuts.clear();
        self.flush()?;
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

    /// A page of keys, of those that are written. Of the [bits](SCAN_CURSOR_BITS) of a cursor the highest
    /// hold the partition, and the others the place in the order of that partition's keys.
    pub fn scan(&self, cursor: u64, count: usize) -> Result<ScanPage, StoreError> {
        let place_bits = self.place_bits();
        let partition = self.cursor_partition(cursor);
        let Some(log_state) = self.log_states[..self.config.partitions].get(partition) else {
            return Ok(ScanPage {
                cursor: 0,
                keys: Vec::new(),
            });
        };
        // What of a hash has no room in a cursor: such keys come together.
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

    /// Bits of a cursor that hold the place.
    fn place_bits(&self) -> u32 {
        let partition_bits = self.config.partitions.next_power_of_two().trailing_zeros();
        SCAN_CURSOR_BITS - partition_bits
    }

    /// The partition in which a scan goes on at `cursor`.
    pub fn cursor_partition(&self, cursor: u64) -> usize {
        (cursor >> self.place_bits()) as usize
    }
}

/// Without an ACTIVE file there must be nothing but what an interrupted first start left behind.
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

/// One for each partition of an entry.
fn empty_batches(entry: &Entry) -> Vec<WriteBatch> {
    let batches = entry.involved.iter().map(|_| WriteBatch::default());
    batches.collect()
}
