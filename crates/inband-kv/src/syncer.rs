//! Makes applied instances survive power failures, in the background while the replica's thread keeps running.

use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::control::ReplicaControl;
use crate::store::{SharedDbs, StoreError};

/// Syncs the databases on request, one sync at a time.
pub struct Syncer {
    /// Dropped to end the thread.
    requests: Option<Sender<()>>,
    results: Receiver<Result<(), StoreError>>,
    thread: Option<JoinHandle<()>>,
    is_busy: bool,
}

impl Syncer {
    /// Syncs `dbs`; `control` wakes the replica after each sync.
    pub fn start(dbs: SharedDbs, control: Arc<ReplicaControl>) -> std::io::Result<Self> {
        let (requests, asked) = mpsc::channel();
        let (done, results) = mpsc::channel();
        let work = move || {
            while asked.recv().is_ok() {
                // The receiver is gone: the replica is exiting.
                let _ = done.send(dbs.sync());
                control.wake();
            }
        };
        let thread = std::thread::Builder::new()
            .name("ib-sync".into())
            .spawn(work)?;
        Ok(Self {
            requests: Some(requests),
            results,
            thread: Some(thread),
            is_busy: false,
        })
    }

    /// Returns whether a sync is running, or its result was not [taken](Self::take_result) yet.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Syncs everything written by now.
    pub fn request(&mut self) {
        if let Some(requests) = &self.requests {
            self.is_busy = requests.send(()).is_ok();
        }
    }

    /// Returns the result of the requested sync, once available.
    pub fn take_result(&mut self) -> Option<Result<(), StoreError>> {
        let result = match self.results.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(StoreError::Stopped),
        };
        self.is_busy = false;
        Some(result)
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // The thread exits after the current sync; a panic in it has already been reported.
            let _ = thread.join();
        }
    }
}
