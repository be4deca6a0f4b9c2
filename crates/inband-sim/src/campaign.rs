//! Many seeds, one after the other or several at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

/// Seeds to play, of whichever world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seeds {
    /// The first one.
    pub first: u64,
    /// How many; `None`: until somebody says stop.
    pub count: Option<u64>,
    /// Threads. A seed is played by one of them.
    pub jobs: usize,
}

impl Seeds {
    /// As [`Campaign::play`], with any way to play a seed.
    pub fn play<R: Send>(
        &self,
        play: impl Fn(u64) -> R + Sync,
        stop: impl Fn() -> bool + Sync,
        mut progress: impl FnMut(R),
    ) {
        let played = AtomicU64::new(0);
        let next = || {
            let number = played.fetch_add(1, Ordering::Relaxed);
            let is_left = self.count.is_none_or(|count| number < count);
            (is_left && !stop()).then_some(self.first + number)
        };
        let (reports, arriving) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                let reports = reports.clone();
                let (play, next) = (&play, &next);
                scope.spawn(move || {
                    while let Some(seed) = next() {
                        if reports.send(play(seed)).is_err() {
                            return; // nobody listens any more
                        }
                    }
                });
            }
            drop(reports);
            arriving.into_iter().for_each(&mut progress);
        });
    }
}
