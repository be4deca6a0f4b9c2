//! Writing what has been applied to RocksDB: at once, or on a thread while the replica goes on, and syncing it.

use std::collections::VecDeque;

use super::Machine;
use crate::store::{Job, StoreError, Turn, Writer};

impl Machine {
    /// From now on keep the partitions' writes in memory until [`flush`](Self::flush) or
    /// [`begin_write`](Self::begin_write), which must be called regularly.
    /// Cross-partition commands, and everything before them, are still written at once; so the stores stay consistent
    /// with each other whatever a crash loses.
    pub fn defer_writes(&mut self) {
        self.is_deferring = true;
        for log_state in &mut self.log_states[..self.config.partitions] {
            log_state.store.set_deferring(true);
        }
    }

    /// From now on a thread writes what [`begin_write`](Self::begin_write) begins, and calls `wake` at each end. With
    /// workers, there are as many more of these threads, but not more than partitions.
    pub fn write_on_thread(
        &mut self,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> std::io::Result<()> {
        let threads = (1 + self.workers.config.threads).min(self.config.partitions);
        self.writer = Some(Writer::start(threads, wake)?);
        Ok(())
    }

    /// Last instances written, one per log. These may be reported to the log as applied.
    pub fn written(&self) -> Vec<u64> {
        self.log_states.iter().map(|s| s.store.written()).collect()
    }

    /// Returns the largest number of applied and unwritten instances of any log. A partly applied instance counts.
    pub fn unwritten(&self) -> u64 {
        let unwritten = self.log_states.iter().map(|s| s.store.unwritten());
        unwritten.max().unwrap_or(0)
    }

    /// Says why nothing is written from now on, for those who wait for it; `None`: it is written again.
    pub(crate) fn hold_back(&self, why: Option<String>) {
        self.shared.turn().held_back = why;
    }

    /// Returns whether another thread waits for applied instances to be written.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.shared.is_waited_for()
    }

    /// Returns the largest number of instances of any log that were applied since the last write began.
    pub(crate) fn dirty(&self) -> u64 {
        let dirty = self.log_states.iter().map(|s| s.store.dirty());
        dirty.max().unwrap_or(0)
    }

    /// Begins to write everything that has been applied, and returns at once, unless a write is under way. The
    /// [thread](Self::write_on_thread) writes it. Without a thread, [`step_write`](Self::step_write) does, or whatever
    /// waits for it: any other write, and [`wait_for_write`](Self::wait_for_write).
    pub fn begin_write(&mut self) -> Result<(), StoreError> {
        if self.is_writing() {
            return Ok(());
        }
        let mut parts = Vec::new();
        for log_state in &mut self.log_states {
            parts.extend(log_state.store.take_part()?);
        }
        if parts.is_empty() {
            return Ok(());
        }
        let job = Job::new(parts);
        for log_state in &mut self.log_states {
            log_state.store.write_begins(&job);
        }
        if let Some(writer) = &self.writer {
            writer.begin(&job);
        }
        self.writing = Some(job);
        Ok(())
    }

    /// Returns whether a write is under way, or its end was not [noted](Self::end_write) yet.
    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Notes the end of the write under way. Returns whether one has ended.
    pub fn end_write(&mut self) -> Result<bool, StoreError> {
        let has_ended = self.writing.as_ref().is_some_and(|job| job.is_done());
        if has_ended {
            self.wait_for_write()?;
        }
        Ok(has_ended)
    }

    /// Waits for the write under way.
    pub fn wait_for_write(&mut self) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        let mut turn = shared.turn();
        self.wait_in(&mut turn)
    }

    fn wait_in(&mut self, turn: &mut Turn) -> Result<(), StoreError> {
        if self.writing.take().is_none() {
            return Ok(());
        }
        for log_state in &mut self.log_states {
            log_state.store.end_write()?;
        }
        for log_state in &mut self.log_states {
            log_state.store.all_begun_written();
        }
        turn.has_unwritten = self.unwritten() > 0;
        Ok(())
    }

    /// For a simulator: writes one log's part of the write under way, the first or the last one that is left. Several
    /// threads may write them in any order.
    pub fn step_write(&mut self, is_last: bool) {
        if let Some(job) = &self.writing {
            job.write_one(match is_last {
                false => VecDeque::pop_front,
                true => VecDeque::pop_back,
            });
        }
    }

    /// Writes everything that has been applied.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        let mut turn = shared.turn();
        self.flush_in(&mut turn)
    }

    pub(super) fn flush_in(&mut self, turn: &mut Turn) -> Result<(), StoreError> {
        self.wait_in(turn)?;
        for log_state in &mut self.log_states {
            log_state.store.flush()?;
        }
        self.log_states
            .iter_mut()
            .for_each(|s| s.store.all_written());
        turn.has_unwritten = false;
        Ok(())
    }

    /// Makes everything applied survive a crash of the host.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.flush()?;
        self.sync_begins();
        self.shared.sync()?;
        self.sync_ends();
        Ok(())
    }

    /// Returns whether applied instances must be synced before they are reported.
    pub fn is_sync(&self) -> bool {
        self.config.sync
    }

    /// Notes that a sync through [`shared`](Self::shared) has begun.
    pub fn sync_begins(&mut self) {
        self.log_states
            .iter_mut()
            .for_each(|s| s.store.sync_begins());
    }

    /// Notes that the sync has succeeded.
    pub fn sync_ends(&mut self) {
        self.log_states.iter_mut().for_each(|s| s.store.sync_ends());
    }
}
