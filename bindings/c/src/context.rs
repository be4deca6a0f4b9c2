//! A context: a [`Library`] behind a lock that is never held while a callback runs, so that callbacks may call any
//! function.
//!
//! The lock is not for sharing a context among threads. It only turns a violation of that rule into an error instead of
//! a data race.

use std::ffi::{CStr, CString};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use inband_paxos::backend::{self, Choice};
use inband_paxos::config::{Config, Dataplane, Role};
use inband_paxos::library::{DeliveryKind, Event, Library, LibraryError, RecoverFailure};
use inband_paxos::log::{ReplicatedLog, SubmitFailure};

use crate::abi::{Callbacks, Code, Kind, Outcome};
use crate::error::{c_text, Error};

/// A pending callback. Its value is in a separate buffer.
#[derive(Debug)]
pub enum Call {
    Deliver {
        instance: u64,
        ticket: u64,
        kind: Kind,
    },
    Failed {
        ticket: u64,
        instance: u64,
        outcome: Outcome,
        message: CString,
    },
    StateNeeded,
}

/// Stops a run: a flag, and a socket that interrupts its wait.
struct Stop {
    asked: AtomicBool,
    wake: UnixStream,
    woken: UnixStream,
}

impl Stop {
    fn new() -> std::io::Result<Stop> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        Ok(Stop {
            asked: AtomicBool::new(false),
            wake,
            woken,
        })
    }

    fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        // Fails if the socket is full of wake-ups, which is fine.
        let _ = (&self.wake).write(&[0]);
    }

    /// Whether a stop was requested; clears the request.
    fn take(&self) -> bool {
        self.asked.swap(false, Ordering::SeqCst)
    }

    /// Discards wake-ups. The flag is set before a wake-up is sent, so it must be read after this.
    fn drain(&self) {
        let mut bytes = [0; 64];
        while (&self.woken)
            .read(&mut bytes)
            .is_ok_and(|len_bytes| len_bytes > 0)
        {}
    }
}

struct Inner {
    library: Library,
    callbacks: Callbacks,
}

pub struct Context {
    stop: Stop,
    running: AtomicBool,
    is_replica: bool,
    dataplane_used: CString,
    inner: Mutex<Inner>,
}

/// Marks the run as ended, however it ends.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

fn broken() -> Error {
    let message = "the library failed in an earlier call; free this context";
    Error::new(Code::Internal, message)
}

impl Context {
    pub fn open(
        config_path: &Path,
        dataplane: Option<Dataplane>,
        saved: Option<&[u8]>,
    ) -> Result<Context, Error> {
        let mut config = Config::load(config_path)?;
        config.host.dataplane = dataplane.unwrap_or(config.host.dataplane);
        let Choice { dataplane, why } = backend::of_host(&config).map_err(LibraryError::from)?;
        let stop = Stop::new().map_err(|e| {
            Error::new(
                Code::Internal,
                format!("no socket pair: {e}; raise the limit of open files"),
            )
        })?;
        let library = Library::open(&config, dataplane, saved)?;
        Ok(Context {
            stop,
            running: AtomicBool::new(false),
            is_replica: config.this().has(Role::Replica),
            dataplane_used: c_text(&format!("{dataplane}: {why}")),
            inner: Mutex::new(Inner {
                library,
                callbacks: Callbacks::default(),
            }),
        })
    }

    pub fn dataplane_used(&self) -> &CStr {
        &self.dataplane_used
    }

    fn lock(&self) -> Result<MutexGuard<'_, Inner>, Error> {
        match self.inner.try_lock() {
            Ok(inner) => Ok(inner),
            Err(TryLockError::WouldBlock) => Err(Error::new(
                Code::Busy,
                "another thread is using this context; a context belongs to one thread",
            )),
            Err(TryLockError::Poisoned(_)) => Err(broken()),
        }
    }

    /// Like `lock`, for the run: if another thread violates the rule, that thread gets the error, not the run.
    fn lock_in_run(&self) -> Result<MutexGuard<'_, Inner>, Error> {
        self.inner.lock().map_err(|_| broken())
    }

    pub fn set_callbacks(&self, change: impl FnOnce(&mut Callbacks)) -> Result<(), Error> {
        change(&mut self.lock()?.callbacks);
        Ok(())
    }

    pub fn submit(&self, value: &[u8]) -> Result<u64, Error> {
        Ok(self.lock()?.library.submit(value)?.0)
    }

    pub fn room(&self) -> Result<usize, Error> {
        Ok(self.lock()?.library.node().submit_room(0))
    }

    pub fn recover(&self, instance: u64, noop: &[u8]) -> Result<(), Error> {
        Ok(self.lock()?.library.recover(instance, noop)?)
    }

    pub fn save(&self) -> Result<Vec<u8>, Error> {
        Ok(self.lock()?.library.save())
    }

    pub fn restore(&self, saved: &[u8]) -> Result<(), Error> {
        Ok(self.lock()?.library.restore(saved)?)
    }

    pub fn applied(&self) -> Result<u64, Error> {
        Ok(self.lock()?.library.applied())
    }

    /// May be called from a signal handler: it neither locks nor allocates.
    pub fn stop(&self) {
        self.stop.ask();
    }

    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::SeqCst)
    }

    fn begin(&self) -> Result<Running<'_>, Error> {
        if self.running.swap(true, Ordering::SeqCst) {
            let message = "this context is running already; return from the callback first";
            return Err(Error::new(Code::Busy, message));
        }
        Ok(Running(&self.running))
    }

    /// Runs until stopped. `call` calls the application.
    pub fn run(&self, call: &mut dyn FnMut(&Callbacks, &Call, &[u8])) -> Result<(), Error> {
        let _running = self.begin()?;
        loop {
            match self.step(None, call) {
                Ok(_) => {}
                Err(error) if error.code == Code::Stopped => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs once. Returns the number of callbacks. A timeout of `None` means no limit.
    pub fn run_once(
        &self,
        timeout: Option<Duration>,
        call: &mut dyn FnMut(&Callbacks, &Call, &[u8]),
    ) -> Result<usize, Error> {
        let _running = self.begin()?;
        self.step(timeout, call)
    }

    fn step(
        &self,
        timeout: Option<Duration>,
        call: &mut dyn FnMut(&Callbacks, &Call, &[u8]),
    ) -> Result<usize, Error> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut value = Vec::new();
        let mut calls = 0;
        loop {
            self.check_stop()?;
            let left = deadline.map_or(Duration::MAX, |at| {
                at.saturating_duration_since(Instant::now())
            });
            {
                let mut inner = self.lock_in_run()?;
                if self.is_replica && inner.callbacks.deliver.is_none() {
                    let message = "this host is a replica and has no deliver callback; set one \
                                   with inband_on_deliver before it runs";
                    return Err(Error::new(Code::Argument, message));
                }
                let wake = self.stop.woken.as_fd();
                if !inner.library.wait(left, Some(wake)) {
                    self.stop.drain();
                }
            }
            while let Some((callbacks, next)) = self.next(&mut value)? {
                if matches!(next, Call::StateNeeded) && callbacks.state_needed.is_none() {
                    let message = "this replica is further behind than its peers remember and has \
                                   no state-needed callback; set one, or restore a peer's state";
                    return Err(Error::new(Code::StateNeeded, message));
                }
                call(&callbacks, &next, &value);
                calls += 1;
                self.check_stop()?;
            }
            if calls > 0 || deadline.is_some_and(|at| Instant::now() >= at) {
                return Ok(calls);
            }
        }
    }

    fn check_stop(&self) -> Result<(), Error> {
        if self.stop.take() {
            self.stop.drain();
            return Err(Error::new(Code::Stopped, "inband_stop was called"));
        }
        Ok(())
    }

    /// The next callback. The value is copied out, so that the library is unlocked while the application uses it.
    fn next(&self, buffer: &mut Vec<u8>) -> Result<Option<(Callbacks, Call)>, Error> {
        let inner = &mut *self.lock_in_run()?;
        let Some(event) = inner.library.next_event() else {
            return Ok(None);
        };
        buffer.clear();
        let call = match event {
            Event::Delivery(delivery) => {
                buffer.extend_from_slice(delivery.value);
                Call::Deliver {
                    instance: delivery.instance,
                    ticket: delivery.ticket.map_or(0, |ticket| ticket.0),
                    kind: match delivery.kind {
                        DeliveryKind::New => Kind::New,
                        DeliveryKind::Replay => Kind::Replay,
                        DeliveryKind::Noop => Kind::Noop,
                    },
                }
            }
            Event::Failed(ticket, failure) => Call::Failed {
                ticket: ticket.0,
                instance: 0,
                outcome: match failure {
                    SubmitFailure::OutcomeUnknown(_) => Outcome::Unknown,
                    SubmitFailure::NotApplied(_) => Outcome::NotApplied,
                },
                message: c_text(&failure.to_string()),
            },
            Event::InRestoredState(ticket) => Call::Failed {
                ticket: ticket.0,
                instance: 0,
                outcome: Outcome::InRestoredState,
                message: c_text("applied in the state that was restored"),
            },
            Event::RecoverFailed(instance, failure) => Call::Failed {
                ticket: 0,
                instance,
                outcome: match failure {
                    RecoverFailure::OutcomeUnknown(_) => Outcome::Unknown,
                    RecoverFailure::InRestoredState => Outcome::InRestoredState,
                },
                message: c_text(&failure.to_string()),
            },
            Event::StateNeeded => Call::StateNeeded,
        };
        Ok(Some((inner.callbacks, call)))
    }
}
