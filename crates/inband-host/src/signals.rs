//! Ctrl-C and the polite signals, taken as events instead of sudden death, so that a lab is
//! cleaned up.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

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
