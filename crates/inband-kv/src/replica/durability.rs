//! Writing, syncing and reporting applied instances to the logs, and the disk space this takes.

use inband_resp::reply::Reply;

use super::{Replica, ReplicaError, SYNC_PERIOD_MIN, UNWRITTEN_AGE_MAX};
use crate::control::lock;
use crate::limits::{UNWRITTEN_BEHIND_INSTANCES_MAX, UNWRITTEN_INSTANCES_MAX};
use crate::space::Room;

impl Replica {
    /// Returns whether writing must stop.
    pub(super) fn is_disk_full(&self) -> bool {
        self.space.room() == Room::None
    }

    /// Checks whether there is room for client writes.
    pub(super) fn look_at_disks(&mut self) {
        if self.space.look(self.now) {
            self.note_room();
        }
    }

    /// Checks right before a write whether there is room for it: another program may have just filled the disk.
    pub(super) fn may_write(&mut self) -> bool {
        if self.space.look_now(self.now) {
            self.note_room();
        }
        !self.is_disk_full()
    }

    fn note_room(&mut self) {
        let short = self.space.why();
        let held_back = short.filter(|_| self.is_disk_full());
        let held_back = held_back.map(|why| format!("{why}; make room, then try again"));
        self.machine.hold_back(held_back);
        *lock(&self.control.write_refusal) = short.map(|why| format!("writes: {why}"));
        let served = match self.is_disk_full() {
            false => "reads are served",
            true => "nothing is applied, and reads are served until the cluster decides something",
        };
        self.write_refusal = short.map(|why| {
            Reply::error(format!(
                "MISCONF not applied: {why}; {served}. Make room, and writes are taken again"
            ))
        });
    }

    /// Returns whether a log has not been told of an applied instance.
    pub(super) fn has_unreported(&self) -> bool {
        self.lanes.iter().any(|lane| lane.applied != lane.reported)
    }

    /// Takes everything but decided values out of the bursts.
    pub(super) fn take_reports(&mut self) {
        let mut failed = Vec::new();
        let mut needy = Vec::new();
        for (log, burst) in self.machine.bursts().iter_mut().enumerate() {
            failed.append(&mut burst.failed);
            if std::mem::take(&mut burst.checkpoint_needed) {
                needy.push(log);
            }
        }
        for (ticket, failure) in failed {
            self.fail(ticket, failure);
        }
        self.take_read_reports();
        if !needy.is_empty() {
            self.start_loading(needy);
        } else if self.is_loading && !self.loader.is_busy() {
            // The last transfer failed, and the logs have found what was missing meanwhile.
            self.is_loading = false;
        }
    }

    /// Notes the applied instances, and tells the logs which of them survive a crash.
    pub(super) fn note_applied(&mut self) {
        for (lane, applied) in self.lanes.iter_mut().zip(self.machine.applied()) {
            if lane.applied != applied {
                lane.applied = applied;
                lane.last_delivery = self.now;
            }
        }
        self.report_written();
    }

    /// Writes applied instances when there are enough, or they are old enough, on another thread. Replies do not wait for
    /// that: acceptors keep the values until they are written and reported to the logs.
    pub(super) fn write_if_due(&mut self) -> Result<(), ReplicaError> {
        if self.machine.end_write()? {
            self.report_written();
        }
        if self.is_disk_full() {
            return Ok(());
        }
        if self.machine.is_waited_for() && self.machine.unwritten() > 0 && self.may_write() {
            self.machine.flush()?;
            self.report_written();
        }
        let dirty = self.machine.dirty();
        if dirty == 0 {
            self.unwritten_since = None;
            // It may have been written for a reader that needed it.
            if self.has_unreported() {
                self.report_written();
            }
            return Ok(());
        }
        let since = *self.unwritten_since.get_or_insert(self.now);
        let is_old = self.now.saturating_duration_since(since) >= UNWRITTEN_AGE_MAX;
        let is_due = is_old || dirty >= UNWRITTEN_INSTANCES_MAX;
        let is_held_up = self.machine.is_writing() && dirty < UNWRITTEN_BEHIND_INSTANCES_MAX;
        if is_due && !is_held_up && self.may_write() {
            self.machine.wait_for_write()?;
            self.begin_write()?;
            self.report_written();
        }
        Ok(())
    }

    fn begin_write(&mut self) -> Result<(), ReplicaError> {
        self.machine.begin_write()?;
        self.unwritten_since = None;
        Ok(())
    }

    pub(super) fn report_written(&mut self) {
        if self.syncer.is_none() {
            self.report(self.machine.written());
        }
    }

    /// Reports applied instances to the logs: acceptors trim what is reported.
    pub(super) fn report(&mut self, applied: Vec<u64>) {
        for (log, (lane, applied)) in self.lanes.iter_mut().zip(applied).enumerate() {
            if lane.reported < applied {
                lane.reported = applied;
                self.log.applied(log, applied);
            }
        }
    }

    /// In `sync` mode: write applied instances, sync them, then report them to the logs.
    pub(super) fn sync_if_due(&mut self) -> Result<(), ReplicaError> {
        let Some(syncer) = &mut self.syncer else {
            return Ok(());
        };
        if let Some(result) = syncer.take_result() {
            result?;
            self.machine.sync_ends();
            let synced = std::mem::take(&mut self.syncing);
            self.report(synced);
        }
        let is_idle = self.syncer.as_ref().is_some_and(|s| !s.is_busy());
        let is_due = is_idle && self.now >= self.sync_after && self.has_unreported();
        if !is_due || !self.may_write() {
            return Ok(());
        }
        let written = self.machine.written();
        let mut lanes = self.lanes.iter().zip(&written);
        if lanes.all(|(lane, written)| lane.reported == *written) {
            // The end of this write wakes the thread.
            return match self.machine.is_writing() {
                true => Ok(()),
                false => self.begin_write(),
            };
        }
        if let Some(syncer) = &mut self.syncer {
            self.machine.sync_begins();
            self.syncing = written;
            self.sync_after = self.now + SYNC_PERIOD_MIN;
            syncer.request();
        }
        Ok(())
    }
}
