//! When a supervisor restarts a host's process that has ended by itself.

use std::process::ExitStatus;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use inband_host::program::EXIT_CONFIGURATION;

/// Back-off before a restart; doubled with each end, up to [`DELAY_MAX`].
const DELAY_MIN: Duration = Duration::from_secs(1);
const DELAY_MAX: Duration = Duration::from_secs(30);
/// Once a process has run this long, the back-off is reset.
const WELL_AFTER: Duration = Duration::from_secs(60);
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// Decides when the process of one host is restarted. The code that starts and stops the process calls it and passes
/// the time.
#[derive(Debug)]
pub struct RestartPolicy {
    delay: Duration,
    started: Option<Instant>,
    due: Option<Instant>,
    restarts: u32,
    last_exit: Option<String>,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            delay: DELAY_MIN,
            started: None,
            due: None,
            restarts: 0,
            last_exit: None,
        }
    }
}

impl RestartPolicy {
    pub fn started(&mut self, now: Instant) {
        self.started = Some(now);
        self.due = None;
    }

    /// Records that the process has ended by itself. With exit status 78 it is not restarted.
    pub fn ended(&mut self, now: Instant, status: ExitStatus) {
        self.last_exit = Some(status.to_string());
        if status.code() == Some(EXIT_CONFIGURATION.into()) {
            self.due = None;
            return;
        }
        self.retry(now);
    }

    /// Records that the process could not be started.
    pub fn retry(&mut self, now: Instant) {
        let ran = self.started.take().map(|at| now.duration_since(at));
        if ran.is_some_and(|ran| ran >= WELL_AFTER) {
            self.delay = DELAY_MIN;
        }
        self.due = Some(now + self.delay);
        self.delay = (self.delay * 2).min(DELAY_MAX);
    }

    /// Records that the user has stopped or started the process, and cancels a scheduled restart.
    pub fn cancel(&mut self) {
        self.due = None;
        self.delay = DELAY_MIN;
    }

    pub fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    pub fn is_pending(&self) -> bool {
        self.due.is_some()
    }

    /// Counts a restart and returns their number.
    pub fn count(&mut self) -> u32 {
        self.restarts += 1;
        self.restarts
    }

    /// Returns the number of restarts.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Returns how the process last ended by itself.
    pub fn last_exit(&self) -> Option<&str> {
        self.last_exit.as_deref()
    }
}

/// For status: `  restarts 2 (last exit: signal: 9 (SIGKILL))`; empty without a restart.
pub fn in_words(restarts: u32, last_exit: Option<&str>) -> String {
    match (restarts, last_exit) {
        (0, _) => String::new(),
        (_, exit) => format!(
            "  restarts {restarts} (last exit: {})",
            exit.unwrap_or("unknown")
        ),
    }
}

/// A thread that watches over processes. Dropping it stops and joins the thread.
#[derive(Debug)]
pub struct Watcher {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Calls `look` periodically.
    pub fn start(mut look: impl FnMut() + Send + 'static) -> std::io::Result<Watcher> {
        let (stop, stopped) = mpsc::channel();
        let run = move || {
            while stopped.recv_timeout(WATCH_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                look();
            }
        };
        let thread = thread::Builder::new().name("restarts".into()).spawn(run)?;
        Ok(Watcher {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn killed() -> ExitStatus {
        ExitStatus::from_raw(9)
    }

    /// The back-off after an end.
    fn delay_of(policy: &mut RestartPolicy, now: Instant) -> Duration {
        policy.ended(now, killed());
        (0..)
            .map(|i| Duration::from_millis(500) * i)
            .find(|wait| policy.is_due(now + *wait))
            .expect("it is started again")
    }

    #[test]
    fn the_delay_doubles_up_to_half_a_minute_and_is_short_again_after_a_minute_without_an_end() {
        let (mut policy, mut now) = (RestartPolicy::default(), Instant::now());
        let mut delays = Vec::new();
        for _ in 0..7 {
            policy.started(now);
            delays.push(delay_of(&mut policy, now + MS).as_secs());
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
        policy.started(now);
        now += Duration::from_secs(59);
        assert_eq!(delay_of(&mut policy, now).as_secs(), 30);
        policy.started(now);
        now += Duration::from_secs(60);
        assert_eq!(delay_of(&mut policy, now).as_secs(), 1);
    }

    #[test]
    fn what_would_fail_again_and_what_was_stopped_is_left_alone() {
        let (mut policy, now) = (RestartPolicy::default(), Instant::now());
        let later = now + Duration::from_secs(3600);
        policy.started(now);
        policy.ended(
            now,
            ExitStatus::from_raw(i32::from(EXIT_CONFIGURATION) << 8),
        );
        assert!(!policy.is_due(later));
        assert_eq!(policy.last_exit(), Some("exit status: 78"));
        policy.started(now);
        policy.ended(now, killed());
        assert!(!policy.is_due(now) && policy.is_due(later));
        policy.cancel();
        assert!(!policy.is_due(later));
    }
}
