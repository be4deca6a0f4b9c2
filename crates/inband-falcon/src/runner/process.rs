//! Processes that can be stopped from another thread.

use std::process::{Child, ExitStatus};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, os::unix::process::ExitStatusExt};

use nix::sys::signal::{killpg, Signal};
use nix::sys::wait::{waitid, Id, WaitPidFlag};
use nix::unistd::Pid;

/// Whether the running task is to end, and its process, if it has one.
#[derive(Debug, Default)]
pub struct Stop {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: bool,
    /// Of a process that was not yet reaped, so the id cannot have been reused.
    group: Option<Pid>,
}

impl Stop {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new task begins.
    pub fn begin(&self) {
        self.lock().wanted = false;
    }

    /// Ends the running task.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.wanted = true;
        if let Some(group) = state.group {
            // It may have ended by itself.
            let _ = killpg(group, Signal::SIGKILL);
        }
        self.changed.notify_all();
    }

    /// Sleeps for this long, or until stopped. Returns whether it was stopped.
    pub fn sleep(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.lock();
        while !state.wanted {
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return false;
            };
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Sets the process of the running task, which must lead its process group. It is killed at once if a stop was
    /// already requested.
    pub fn watch(&self, child: &Child) {
        let group = Pid::from_raw(child.id() as i32);
        let mut state = self.lock();
        if state.wanted {
            let _ = killpg(group, Signal::SIGKILL);
        }
        state.group = Some(group);
    }

    /// Waits for a watched process to end, and reaps it.
    pub fn reap(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let id = || Id::Pid(Pid::from_raw(child.id() as i32));
        // Its id cannot be reused until it is reaped.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        while waitid(id(), flags) == Err(nix::errno::Errno::EINTR) {}
        self.unwatch();
        child.wait()
    }

    /// The watched process survives its task. Returns true if it was killed instead, because the task was being
    /// stopped.
    pub fn unwatch(&self) -> bool {
        let mut state = self.lock();
        state.group = None;
        state.wanted
    }
}

/// Returns the exit status as shells report it.
pub fn status_of(status: ExitStatus) -> i32 {
    let by_signal = || 128 + status.signal().unwrap_or_default();
    status.code().unwrap_or_else(by_signal)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A task may be stopped just as its process has answered: that process cannot be used for the next task.
    #[test]
    fn who_stops_watching_learns_that_the_process_was_killed() {
        use std::os::unix::process::CommandExt;
        let mut child = Command::new("sleep")
            .arg("60")
            .process_group(0)
            .spawn()
            .expect("it runs");
        let stop = Stop::default();
        stop.begin();
        stop.watch(&child);
        assert!(!stop.unwatch());
        stop.watch(&child);
        stop.stop();
        assert!(stop.unwatch());
        assert_eq!(status_of(child.wait().expect("it ended")), 137);
    }
}
