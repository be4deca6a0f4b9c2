//! Makes what is applied survive a power cut, in the background while the replica's thread goes on.

use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::control::ReplicaControl;
use crate::store::{SharedDbs, StoreError};

/// Syncs the databases whenever it is asked to, one time after the other.
pub struct Syncer {
    /// Dropped to end the thread.
    requests: Option<Sender<()>>,
    results: Receiver<Result<(), StoreError>>,
    thread: Option<JoinHandle<()>>,
    is_busy: bool,
}

impl Syncer {
    /// Sync `dbs`; `control` wakes the replica when that is done.
    pub fn start(dbs: SharedDbs, control: Arc<ReplicaControl>) -> std::io::Result<Self> {
        let (requests, asked) = mpsc::channel();
        let (done, results) = mpsc::channel();
        let work = move || {
            while asked.recv().is_ok() {
                // Nobody there any more: the replica ends.
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

    /// Is a sync going on whose end was not yet [seen](Self::take_result)?
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Sync everything that is written by now.
    pub fn request(&mut self) {
        if let Some(requests) = &self.requests {
            self.is_busy = requests.send(()).is_ok();
        }
    }

    /// The end of the sync that was asked for, once it is there.
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
            // It ends after the sync that it is at; a panic in it was reported already.
            let _ = thread.join();
        }
    }
}
