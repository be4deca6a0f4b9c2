//! The processes of a cluster of `inband falcon up`.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use inband_lab::process::{ProcessSpec, SupervisedChild};
use nix::sys::signal::Signal;

use super::status::ProcessEntry;
use crate::flair::status::Process;

/// Lines of a log that an error message quotes.
const LOG_TAIL_LINES: usize = 4;

/// One process, and how it is started.
pub struct Host {
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
}

impl Host {
    /// A process that was not started yet. It is to log in this directory.
    pub fn new(
        name: &str,
        program: &Path,
        args: Vec<OsString>,
        dir: &Path,
        network: Option<Arc<inband_lab::Host>>,
    ) -> Host {
        Host {
            name: name.into(),
            program: program.into(),
            args,
            log: dir.join("log"),
            network,
            slot: Mutex::new(Slot {
                child: None,
                process: Process::Killed,
            }),
        }
    }

    /// `scheduler`, `worker/0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let has_ended = |child: &mut SupervisedChild| child.exit_status().is_some();
        if slot.child.as_mut().is_some_and(has_ended) {
            slot.child = None;
            slot.process = Process::Ended;
        }
        slot
    }

    /// What it does, now.
    pub fn entry(&self) -> ProcessEntry {
        let slot = self.slot();
        ProcessEntry {
            name: self.name.clone(),
            process: slot.process,
            pid: slot.child.as_ref().map(SupervisedChild::pid),
        }
    }

    /// Start it, in the place of the one that runs.
    pub fn start(&self) -> Result<()> {
        let mut slot = self.slot();
        slot.child = None; // kills it
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("cannot open {}", self.log.display()))?;
        let mut process = ProcessSpec::new(&self.program).args(self.args.iter().cloned());
        process.log = Some(log);
        let child = match &self.network {
            Some(host) => host.spawn(&process)?,
            None => SupervisedChild::spawn(&process, None)?,
        };
        slot.child = Some(child);
        slot.process = Process::Running;
        Ok(())
    }

    /// Kill it at once. False: it does not run.
    pub fn kill(&self) -> bool {
        let mut slot = self.slot();
        let runs = slot.child.is_some();
        if runs {
            slot.child = None;
            slot.process = Process::Killed;
        }
        runs
    }

    /// Tell it to end, and what it runs.
    pub fn tell_to_end(&self) {
        if let Some(child) = &mut self.slot().child {
            child.signal(Signal::SIGTERM);
        }
    }

    /// Wait so long for it to end; then it is killed.
    pub fn wait_for_end(&self, limit: Duration) {
        let mut slot = self.slot();
        if let Some(child) = &mut slot.child {
            child.wait_for_exit(limit);
        }
        slot.child = None;
    }

    /// The end of its log, for an error message.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join(" | ")
    }
}
