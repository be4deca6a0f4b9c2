//! Fetches checkpoints in the background while the replica's thread keeps running.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inband_transport::tls::Transport;

use crate::checkpoint::TransferError;
use crate::checkpoint_client::Fetch;
use crate::control::ReplicaControl;
use crate::limits::CHECKPOINT_RETRY_MS;
use crate::store::Position;

type Outcome = Result<(), TransferError>;

/// Fetches one checkpoint at a time.
pub struct Loader {
    control: Arc<ReplicaControl>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Outcome>>,
    retry_after: Option<Instant>,
    transport: Transport,
}

impl Loader {
    pub fn new(control: Arc<ReplicaControl>, transport: Transport) -> Self {
        Self {
            control,
            stop: Arc::default(),
            thread: None,
            retry_after: None,
            transport,
        }
    }

    /// Starts a transfer, unless one is running or has just failed.
    pub fn start(
        &mut self,
        now: Instant,
        peers: Vec<SocketAddr>,
        positions: Vec<Position>,
        into: Vec<PathBuf>,
    ) {
        if self.thread.is_some() || self.retry_after.is_some_and(|after| now < after) {
            return;
        }
        let (control, stop) = (self.control.clone(), self.stop.clone());
        let transport = self.transport.clone();
        let fetch = move || {
            let fetch = Fetch {
                peers: &peers,
                positions: &positions,
                into: &into,
                received_bytes: &control.loading_bytes,
                total_bytes: &control.loading_bytes_total,
                transport: &transport,
                stop: &stop,
            };
            let outcome = fetch.run();
            control.wake();
            outcome
        };
        match std::thread::Builder::new()
            .name("ib-ckpt-fetch".into())
            .spawn(fetch)
        {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => {
                tracing::warn!("starting a thread to fetch a checkpoint: {error}");
                self.pause(now);
            }
        }
    }

    /// Returns whether a transfer is running, or its outcome was not [taken](Self::take_result) yet.
    pub fn is_busy(&self) -> bool {
        self.thread.is_some()
    }

    /// Returns the outcome, once available.
    pub fn take_result(&mut self, now: Instant) -> Option<Outcome> {
        if !self.thread.as_ref()?.is_finished() {
            return None;
        }
        let outcome = self.thread.take()?.join();
        let panicked = || Err(std::io::Error::other("the fetching thread panicked").into());
        let outcome = outcome.unwrap_or_else(|_| panicked());
        if outcome.is_err() {
            self.pause(now);
        }
        Some(outcome)
    }

    fn pause(&mut self, now: Instant) {
        self.retry_after = Some(now + Duration::from_millis(CHECKPOINT_RETRY_MS));
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The thread checks the flag at every chunk and is bounded by its timeouts.
            let _ = thread.join();
        }
    }
}
