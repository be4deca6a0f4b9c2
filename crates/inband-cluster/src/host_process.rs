//! The process of a host.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use inband_lab::process::{ProcessSpec, SupervisedChild};
use inband_lab::restart::RestartPolicy;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::lock;

/// Lines of a log that an error message quotes.
const LOG_TAIL_LINES: usize = 4;

/// What a host's process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Process {
    /// It runs.
    Running,
    /// Killed on request.
    Killed,
    /// It ended by itself; its log says why.
    Ended,
}

/// One process, and how it is started.
pub struct HostProcess {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    log: PathBuf,
    /// `None`: the network of this process.
    network: Option<Arc<inband_lab::Host>>,
    slot: Mutex<Slot>,
}

struct Slot {
    child: Option<SupervisedChild>,
    process: Process,
    restart: RestartPolicy,
}

impl Slot {
    /// False: it does not run.
    fn kill(&mut self) -> bool {
        let runs = self.child.take().is_some() || self.restart.is_pending();
        self.restart.cancel();
        if runs {
            self.process = Process::Killed;
        }
        runs
    }
}

impl HostProcess {
    /// A process that was not started yet. It is to log in this directory.
    pub fn new(
        name: &str,
        program: &Path,
        args: Vec<OsString>,
        dir: &Path,
        network: Option<Arc<inband_lab::Host>>,
    ) -> HostProcess {
        HostProcess {
            name: name.into(),
            program: program.into(),
            args,
            log: dir.join("log"),
            network,
            slot: Mutex::new(Slot {
                child: None,
                process: Process::Killed,
                restart: RestartPolicy::default(),
            }),
        }
    }

    /// `scheduler`, `replica/0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        let mut slot = lock(&self.slot);
        let status = slot.child.as_mut().and_then(SupervisedChild::exit_status);
        if let Some(status) = status {
            slot.child = None;
            slot.process = Process::Ended;
            slot.restart.ended(Instant::now(), status);
        }
        slot
    }

    /// What it does now, and its id while it runs.
    pub fn state(&self) -> (Process, Option<u32>) {
        let slot = self.slot();
        (slot.process, slot.child.as_ref().map(SupervisedChild::pid))
    }

    /// How many times it was started again after it had ended by itself, and how it last did.
    pub fn restarts(&self) -> (u32, Option<String>) {
        let slot = self.slot();
        let last_exit = slot.restart.last_exit().map(str::to_owned);
        (slot.restart.restarts(), last_exit)
    }

    /// If it has ended by itself and its time has come, `start` it again.
    pub fn restart_if_due(&self, start: impl FnOnce() -> Result<()>) {
        let mut slot = self.slot();
        if !slot.restart.is_due(Instant::now()) {
            return;
        }
        let (name, restarts) = (&self.name, slot.restart.count());
        let how = slot.restart.last_exit().unwrap_or("unknown").to_owned();
        drop(slot);
        match start() {
            Ok(()) => tracing::warn!(
                "{name} ended by itself ({how}) and was started again (restart {restarts}); its log: {}",
                self.log.display()
            ),
            Err(error) => {
                tracing::warn!("{name} ended by itself ({how}) and could not be started: {error:#}");
                lock(&self.slot).restart.retry(Instant::now());
            }
        }
    }

    /// The program and its arguments, for [`Self::start`].
    pub fn spec(&self) -> ProcessSpec<'static> {
        ProcessSpec::new(&self.program).args(self.args.iter().cloned())
    }

    /// Start it, in the place of the one that runs.
    pub fn start(&self, mut spec: ProcessSpec<'_>) -> Result<()> {
        let mut slot = self.slot();
        slot.child = None;
        slot.process = Process::Killed;
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        spec.log = Some(log.with_context(|| format!("cannot open {}", self.log.display()))?);
        let child = match &self.network {
            Some(host) => host.spawn(&spec)?,
            None => SupervisedChild::spawn(&spec, None)?,
        };
        slot.child = Some(child);
        slot.process = Process::Running;
        slot.restart.started(Instant::now());
        Ok(())
    }

    /// Kill it at once. False: it does not run.
    pub fn kill(&self) -> bool {
        self.slot().kill()
    }

    /// Tell it to end, and what it runs.
    pub fn tell_to_end(&self) {
        let mut slot = self.slot();
        slot.restart.cancel();
        if let Some(child) = &mut slot.child {
            child.signal(Signal::SIGTERM);
        }
    }

    /// Wait so long for it to end; then it is killed.
    pub fn wait_for_end(&self, limit: Duration) {
        let mut slot = self.slot();
        if let Some(child) = &mut slot.child {
            child.wait_for_exit(limit);
            slot.child = None;
            slot.process = Process::Ended;
        }
    }

    /// The end of its log, for an error message.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join(" | ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_started_again_does_not_run() {
        let dir = tempfile::tempdir().expect("a directory");
        let sleep = HostProcess::new(
            "sleeper",
            Path::new("sleep"),
            vec!["600".into()],
            dir.path(),
            None,
        );
        assert_eq!(sleep.state(), (Process::Killed, None));
        sleep.start(sleep.spec()).expect("it starts");
        assert!(matches!(sleep.state(), (Process::Running, Some(_))));
        let error = sleep.start(ProcessSpec::new("/no/such/program"));
        assert!(error.is_err());
        assert_eq!(sleep.state(), (Process::Killed, None));
        assert!(!sleep.kill());
        sleep.start(sleep.spec()).expect("it starts");
        assert!(sleep.kill());
        sleep.start(sleep.spec()).expect("it starts");
        sleep.tell_to_end();
        sleep.wait_for_end(Duration::from_secs(20));
        assert_eq!(sleep.state(), (Process::Ended, None));
    }
}
