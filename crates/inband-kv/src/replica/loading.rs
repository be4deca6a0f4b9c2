//! Fetching a checkpoint from another replica.

use super::{Replica, ReplicaError};
use crate::checkpoint_server::CheckpointServer;
use crate::control::add;
use crate::store::StoreError;

impl Replica {
    pub(super) fn start_loading(&mut self, logs: Vec<usize>) {
        if !self.is_loading {
            let applied = self.machine.applied();
            tracing::warn!(?logs, ?applied, "peers no longer hold what is missing");
        }
        self.is_loading = true;
        self.loading_logs = logs;
        let peers = self.log.checkpoint_peers();
        let (positions, incoming) = (self.machine.positions(), self.machine.incoming());
        self.loader.start(self.now, peers, positions, incoming);
    }

    /// A peer that is sent a checkpoint will need what is decided meanwhile.
    pub(super) fn look_at_checkpoints(&mut self) {
        let server = self.checkpoint_server.as_ref();
        if server.is_some_and(CheckpointServer::has_sent) {
            self.log.sends_checkpoint();
        }
    }

    /// Installs a checkpoint that has been received.
    pub(super) fn finish_loading(&mut self) -> Result<(), ReplicaError> {
        if self.is_disk_full() {
            return Ok(());
        }
        let Some(result) = self.loader.take_result(self.now) else {
            return Ok(());
        };
        match result.map(|()| self.machine.install()) {
            Ok(Ok(beyond)) => {
                tracing::info!(applied = ?self.machine.applied(), "installed a checkpoint");
                add(&self.control.counters.checkpoints_installed_total, 1);
                for (log, applied) in beyond {
                    self.log.reset(log, applied);
                    self.lanes[log].reported = applied;
                }
                self.note_applied();
                self.is_loading = false;
                self.may_be_behind();
                self.orphan_values();
                self.machine.shared().transient().awaited.lose_track();
                self.close_subscribers();
                self.close_watchers();
                self.look_for_elements();
                self.submit_attempts();
            }
            // The log continued meanwhile; if it still needs a checkpoint it will say so again.
            Ok(Err(error @ StoreError::CheckpointTooOld { .. })) => {
                tracing::warn!("installing a checkpoint: {error}");
                self.is_loading = false;
            }
            Ok(Err(error)) => return Err(error.into()),
            // As long as a log needs a checkpoint, it says so at every poll.
            Err(error) => tracing::warn!("fetching a checkpoint: {error}"),
        }
        Ok(())
    }
}
