//! How a process learns that it is to end: from signals, or because its supervisor is gone.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{kill, raise, SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

/// Set to `1` for a process that must end at the end of its standard input, a pipe from its supervisor.
pub const SUPERVISED_ENV: &str = "INBAND_SUPERVISED";
/// How long a process may take to end when its supervisor is gone; a store is synced at its end.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// The exit status of shells after SIGINT.
const EXIT_INTERRUPTED: i32 = 130;

/// What a host process was told, by signals or by the end of its supervisor.
#[derive(Debug, Clone, Default)]
pub struct StopRequest {
    drain: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

/// Returns once standard input, the pipe from the supervisor, has ended.
fn wait_for_supervisor_end() {
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
}

/// What the first SIGINT means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// End now, as SIGTERM does.
    Stops,
    /// Begin nothing, and end when everything begun has ended. A second one ends it now.
    Drains,
}

impl StopRequest {
    /// Listen. Call before any thread is started. SIGTERM and the end of the supervisor set `stop`; one more signal after
    /// that ends the process as it is.
    pub fn listen(stop: Arc<AtomicBool>, interrupt: Interrupt) -> io::Result<StopRequest> {
        let request = StopRequest {
            drain: Arc::default(),
            stop,
        };
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
        signals.thread_block()?;
        let for_thread = request.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || for_thread.wait_for_signals(&signals, interrupt))?;
        if std::env::var_os(SUPERVISED_ENV).is_some() {
            // What this process starts is not supervised so.
            std::env::remove_var(SUPERVISED_ENV);
            let for_thread = request.clone();
            std::thread::Builder::new()
                .name("supervisor".into())
                .spawn(move || for_thread.end_with_supervisor())?;
        }
        Ok(request)
    }

    fn wait_for_signals(&self, signals: &SigSet, interrupt: Interrupt) {
        let mut signalled = false;
        loop {
            match signals.wait() {
                // It was told to stop by a signal before, and has not ended.
                Ok(_) if signalled => std::process::exit(EXIT_INTERRUPTED),
                Ok(Signal::SIGINT) if interrupt == Interrupt::Drains && !self.drains() => {
                    self.drain.store(true, Ordering::Release);
                }
                Ok(_) => {
                    signalled = true;
                    self.stop.store(true, Ordering::Release);
                }
                Err(_) => return,
            }
        }
    }

    fn end_with_supervisor(&self) {
        wait_for_supervisor_end();
        self.stop.store(true, Ordering::Release);
        std::thread::sleep(END_TIMEOUT);
        let _ = raise(Signal::SIGKILL);
    }

    /// End what was begun, and begin nothing?
    pub fn drains(&self) -> bool {
        self.drain.load(Ordering::Acquire)
    }

    /// End now?
    pub fn stops(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// SIGINT, SIGTERM and SIGHUP of this process.
#[derive(Debug)]
pub struct StopSignals {
    fd: SignalFd,
}

impl StopSignals {
    /// Take the signals from now on. Call before any thread is started: threads that exist
    /// already would still die of them. Children are born with them blocked; `inband run` takes
    /// its own in the same way.
    pub fn take() -> io::Result<Self> {
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            signals.add(signal);
        }
        signals.thread_block()?;
        let fd = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { fd })
    }

    /// As [`StopSignals::take`]; in a process that has a supervisor, SIGTERM comes when the supervisor ends, too.
    pub fn take_supervised() -> io::Result<Self> {
        let signals = Self::take()?;
        if std::env::var_os(SUPERVISED_ENV).is_some() {
            std::thread::spawn(|| {
                wait_for_supervisor_end();
                let _ = kill(Pid::this(), Signal::SIGTERM);
            });
        }
        Ok(signals)
    }

    /// Wait for one of them, but not longer than `limit`. True if one came.
    pub fn wait(&self, limit: Duration) -> bool {
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        // Interrupted by another signal: then none of these has come yet.
        let _ = poll(&mut fds, limit);
        matches!(self.fd.read_signal(), Ok(Some(_)))
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::raise;

    use super::*;

    #[test]
    fn a_signal_is_an_event() {
        // Blocked in this test's thread only; the signal is raised for this thread only.
        let signals = StopSignals::take().expect("signals");
        assert!(!signals.wait(Duration::from_millis(1)));
        raise(Signal::SIGTERM).expect("raise");
        assert!(signals.wait(Duration::from_secs(5)));
        assert!(!signals.wait(Duration::ZERO));
    }
}
