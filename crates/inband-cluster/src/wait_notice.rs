//! Tells the user why a cluster takes long to start.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// A start that takes longer is explained while it lasts, not only once it has failed.
const NOTICE_AFTER: Duration = Duration::from_secs(5);
const PREFIX: &str = "waiting, for at most ";

/// Says once, on standard error, what is waited for.
#[derive(Debug)]
pub(crate) struct WaitNotice {
    began: Instant,
    said: bool,
}

impl WaitNotice {
    pub(crate) fn new() -> WaitNotice {
        WaitNotice {
            began: Instant::now(),
            said: false,
        }
    }

    fn is_due(&self) -> bool {
        !self.said && self.began.elapsed() >= NOTICE_AFTER
    }

    /// It still waits, for at most `limit` in all, because of this.
    pub(crate) fn waits_for(&mut self, limit: Duration, lack: impl FnOnce() -> String) {
        if self.is_due() {
            self.said = true;
            eprintln!("{PREFIX}{} s: {}", limit.as_secs(), lack());
        }
    }

    /// It waits for a process in the background, and repeats what that one has said in its log.
    pub(crate) fn waits_with(&mut self, log: &Path) {
        if self.is_due() {
            let text = fs::read_to_string(log).unwrap_or_default();
            if let Some(line) = text.lines().find(|line| line.starts_with(PREFIX)) {
                self.said = true;
                eprintln!("{line}");
            }
        }
    }
}
