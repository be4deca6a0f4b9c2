//! How the processes of a cluster are told to end.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use inband_lab::process::SUPERVISED_ENV;
use nix::sys::signal::{raise, SigSet, Signal};

/// How long a process that is told to end may take for it when its supervisor is gone.
const END_LIMIT: Duration = Duration::from_secs(2);

/// As shells say it.
const EXIT_INTERRUPTED: i32 = 130;

/// What a process was told.
#[derive(Debug, Clone, Default)]
pub struct Told {
    drain: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Told {
    /// Listen. Call before any thread is started. SIGINT: end what was begun; a second one, SIGTERM and the end of
    /// the supervisor (seen as the end of standard input): end now. One more ends the process as it is.
    pub fn listen() -> Result<Told> {
        let told = Told::default();
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
        signals.thread_block().context("blocking signals")?;
        let for_thread = told.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || for_thread.hear(&signals))?;
        if std::env::var_os(SUPERVISED_ENV).is_some() {
            // What this process starts is not supervised so.
            std::env::remove_var(SUPERVISED_ENV);
            let for_thread = told.clone();
            std::thread::Builder::new()
                .name("supervisor".into())
                .spawn(move || for_thread.end_with_supervisor())?;
        }
        Ok(told)
    }

    fn hear(&self, signals: &SigSet) {
        loop {
            match signals.wait() {
                // It was told before, and has not ended.
                Ok(_) if self.stops() => std::process::exit(EXIT_INTERRUPTED),
                Ok(Signal::SIGINT) if !self.drains() => self.drain.store(true, Ordering::Release),
                Ok(_) => self.stop.store(true, Ordering::Release),
                Err(_) => return,
            }
        }
    }

    fn end_with_supervisor(&self) {
        let mut sink = [0; 64];
        while matches!(std::io::stdin().read(&mut sink), Ok(n) if n > 0) {}
        self.stop.store(true, Ordering::Release);
        std::thread::sleep(END_LIMIT);
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
