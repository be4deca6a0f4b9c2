//! How a process learns that it must stop: by signals, or by the exit of its supervisor.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{kill, raise, SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::notify::Notifier;
use crate::reload::Reload;

/// Set to `1` for a process that must exit at the end of its standard input, a pipe from its supervisor.
pub const SUPERVISED_ENV: &str = "INBAND_SUPERVISED";

/// Inherited listening sockets: comma-separated `NUMBER:USE`, `USE` being `resp`, [`SHARED_LISTENER`] or `metrics`.
///
/// systemd's own `LISTEN_FDS` requires the receiving process's id, which is not known before it runs.
pub const LISTEN_FDS_ENV: &str = "INBAND_LISTEN_FDS";

/// Use of a socket for Redis clients at which other replicas accept clients, too: one that does not serve yet leaves them
/// to the others.
pub const SHARED_LISTENER: &str = "shared";

/// How long a process may take to exit when its supervisor is gone; a store is synced at its end.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// The exit status of shells after SIGINT.
const EXIT_INTERRUPTED: i32 = 130;

/// Requests to a host process, by signals or by the exit of its supervisor.
#[derive(Debug, Clone, Default)]
pub struct StopRequest {
    drain: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    signalled: Arc<AtomicBool>,
    reload: Arc<(Mutex<bool>, Condvar)>,
}

/// Returns when standard input, the pipe from the supervisor, ends.
fn wait_for_supervisor_end() {
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
}

/// The meaning of the first SIGINT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// Exit now, as for SIGTERM.
    Stops,
    /// Start nothing new, and exit when everything in progress has ended. A second SIGINT exits now.
    Drains,
}

impl StopRequest {
    /// Starts listening. Must be called before any thread is started. SIGTERM and the supervisor's exit set `stop`;
    /// another signal after that ends the process immediately. SIGHUP asks to [reload](crate::reload).
    pub fn listen(stop: Arc<AtomicBool>, interrupt: Interrupt) -> io::Result<StopRequest> {
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        let request = StopRequest {
            drain: Arc::default(),
            stop,
            signalled: Arc::default(),
            reload: Arc::default(),
        };
        signals.thread_block()?;
        let for_thread = request.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || for_thread.wait_for_signals(&signals, interrupt))?;
        if std::env::var_os(SUPERVISED_ENV).is_some() {
            // Child processes must not inherit this.
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
                Ok(Signal::SIGHUP) => {
                    let (asked, changed) = &*self.reload;
                    *asked.lock().unwrap_or_else(PoisonError::into_inner) = true;
                    changed.notify_all();
                }
                // A signal told it to stop before, and it has not exited.
                Ok(_) if signalled => std::process::exit(EXIT_INTERRUPTED),
                Ok(Signal::SIGINT) if interrupt == Interrupt::Drains && !self.drains() => {
                    self.drain.store(true, Ordering::Release);
                }
                Ok(_) => {
                    signalled = true;
                    self.signalled.store(true, Ordering::Release);
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

    /// Returns whether to finish what is in progress, and start nothing new.
    pub fn drains(&self) -> bool {
        self.drain.load(Ordering::Acquire)
    }

    /// Returns whether it stops because of a signal. The sender of a signal waits for the process; a process that has lost
    /// its supervisor must end within two seconds.
    pub fn is_signalled(&self) -> bool {
        self.signalled.load(Ordering::Acquire)
    }

    /// Waits up to `limit` for a request to read files again. Returns whether there was one since the last call.
    pub(crate) fn wait_for_reload(&self, limit: Duration) -> bool {
        let (asked, changed) = &*self.reload;
        let asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = changed.wait_timeout_while(asked, limit, |asked| !*asked);
        let (mut asked, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *asked)
    }

    /// Returns whether to exit now.
    pub fn stops(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// SIGINT, SIGTERM and SIGHUP of this process.
#[derive(Debug)]
pub struct StopSignals {
    fd: SignalFd,
    /// What SIGHUP does; `None`: it ends the process, as the others do.
    reload: Option<Reload>,
}

impl StopSignals {
    /// Takes over the signals from now on. Must be called before any thread is started: existing threads would still be
    /// killed by them. Child processes inherit the blocked mask; `inband run` takes its signals in the same way.
    pub fn take() -> io::Result<Self> {
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            signals.add(signal);
        }
        signals.thread_block()?;
        let fd = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { fd, reload: None })
    }

    /// As [`StopSignals::take`]; in a supervised process, the supervisor's exit also counts as SIGTERM.
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

    /// For a service: SIGHUP does not end it. It has the thread that waits for signals carry out these steps.
    pub fn reloading(self, reload: Reload) -> Self {
        let reload = Some(reload);
        Self { reload, ..self }
    }

    /// Waits up to `limit` for one of them. Returns whether one arrived that ends the process.
    pub fn wait(&self, limit: Duration) -> bool {
        self.ends(limit, Reload::run)
    }

    /// `reload` is called if SIGHUP arrives and does not end the process.
    fn ends(&self, limit: Duration, reload: impl FnOnce(&Reload)) -> bool {
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        // If another signal interrupts this, none of these has arrived yet.
        let _ = poll(&mut fds, limit);
        let Ok(Some(arrived)) = self.fd.read_signal() else {
            return false;
        };
        match &self.reload {
            Some(steps) if arrived.ssi_signo == Signal::SIGHUP as u32 => {
                reload(steps);
                false
            }
            _ => true,
        }
    }

    /// For a main loop, which calls this often: returns whether it is to end. The service manager learns that it turns,
    /// reads its files again, or stops.
    pub fn end(&self, notifier: &mut Notifier) -> bool {
        notifier.turned(Instant::now());
        let ends = self.ends(Duration::ZERO, |reload| notifier.reloading(|| reload.run()));
        if ends {
            notifier.stopping();
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

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

    #[test]
    fn sighup_ends_a_command_and_has_a_service_read_its_files_again() {
        let signals = StopSignals::take().expect("signals");
        raise(Signal::SIGHUP).expect("raise");
        assert!(signals.wait(Duration::from_secs(5)));

        let reads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reads);
        let signals = signals.reloading(Reload::new().with("the file", move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(None)
        }));
        raise(Signal::SIGHUP).expect("raise");
        assert!(!signals.wait(Duration::from_secs(5)));
        assert_eq!(reads.load(Ordering::Relaxed), 1);
        raise(Signal::SIGTERM).expect("raise");
        assert!(signals.wait(Duration::from_secs(5)));
    }
}
