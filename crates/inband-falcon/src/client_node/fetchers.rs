//! Threads that fetch long results, as many as needed, up to a limit.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inband_ground::auth::Digest;
use inband_transport::tls::Transport;

use crate::blobs;
use crate::limits::FETCHERS_MAX;
use crate::message::{Outcome, Payload};

/// What to fetch, and the function to call then, without an outcome if that failed.
pub struct Fetch {
    pub outcome: Outcome,
    pub done: Box<dyn FnOnce(Option<Outcome>) + Send>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Fetch>,
    threads: usize,
}

pub struct Fetchers {
    state: Arc<Mutex<State>>,
    digest: Digest,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fetchers {
    /// `digest`: how the results were digested.
    pub fn new(digest: Digest) -> Fetchers {
        let state = Arc::default();
        Fetchers { state, digest }
    }

    /// Fetches this as soon as a thread is free.
    pub fn fetch(&mut self, fetch: Fetch) {
        let mut state = lock(&self.state);
        state.waiting.push_back(fetch);
        if state.threads >= FETCHERS_MAX {
            return;
        }
        let shared = Arc::clone(&self.state);
        let digest = self.digest;
        let thread = std::thread::Builder::new().name("falcon-fetch".into());
        // If no thread can be started, it waits for another thread, or for the next call.
        if thread.spawn(move || work(&shared, &digest)).is_ok() {
            state.threads += 1;
        }
    }
}

/// Runs until there is nothing to fetch.
fn work(shared: &Mutex<State>, digest: &Digest) {
    loop {
        let fetch = {
            let mut state = lock(shared);
            let Some(fetch) = state.waiting.pop_front() else {
                state.threads -= 1;
                return;
            };
            fetch
        };
        let Payload::At(place) = *fetch.outcome.payload() else {
            (fetch.done)(Some(fetch.outcome));
            continue;
        };
        let bytes = blobs::fetch(&Transport::plain(), digest, &place);
        let outcome = bytes
            .ok()
            .map(|bytes| fetch.outcome.with(Payload::Inline(bytes)));
        (fetch.done)(outcome);
    }
}
