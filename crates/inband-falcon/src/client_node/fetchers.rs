//! Threads that fetch long results, as many as are needed, up to a limit.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inband_transport::tls::Transport;

use crate::blobs;
use crate::limits::FETCHERS_MAX;
use crate::message::{Outcome, Payload};

/// What is to be fetched, and what to do then. Without an outcome: it cannot be had.
pub struct Fetch {
    pub outcome: Outcome,
    pub done: Box<dyn FnOnce(Option<Outcome>) + Send>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Fetch>,
    threads: usize,
}

/// See the module.
#[derive(Default)]
pub struct Fetchers(Arc<Mutex<State>>);

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fetchers {
    /// Fetch this when a thread is free.
    pub fn fetch(&mut self, fetch: Fetch) {
        let mut state = lock(&self.0);
        state.waiting.push_back(fetch);
        if state.threads >= FETCHERS_MAX {
            return;
        }
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("falcon-fetch".into());
        // Without a thread of its own it waits for another one, or for the next try.
        if thread.spawn(move || work(&shared)).is_ok() {
            state.threads += 1;
        }
    }
}

/// Until nothing is to be fetched.
fn work(shared: &Mutex<State>) {
    loop {
        let fetch = {
            let mut state = lock(shared);
            let Some(fetch) = state.waiting.pop_front() else {
                state.threads -= 1;
                return;
            };
            fetch
        };
        let Payload::At {
            address,
            token,
            len_bytes,
        } = *fetch.outcome.payload()
        else {
            (fetch.done)(Some(fetch.outcome));
            continue;
        };
        let bytes = blobs::fetch(&Transport::plain(), address, token, len_bytes);
        let outcome = bytes
            .ok()
            .map(|bytes| fetch.outcome.with(Payload::Inline(bytes)));
        (fetch.done)(outcome);
    }
}
