//! The process of a host.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::listeners::Closed;
use crate::restart::{self, RestartPolicy};
use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::network::{Host, LabError};
use crate::process::{ProcessSpec, SupervisedChild};
use crate::supervisor::lock;
use crate::system::HostPlan;

/// Lines of a log that an error message quotes.
const LOG_TAIL_LINES: usize = 4;

/// The state of a host's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Process {
    Running,
    /// Its packets are held, or it is stopped.
    Paused,
    /// Killed on request.
    Killed,
    /// It ended by itself; its log says why.
    Ended,
}

/// A process that can be started, paused and killed, and is restarted if it ends by itself. Thread-safe.
#[derive(Debug)]
pub(crate) struct ProcessSlot(Mutex<Slot>);

#[derive(Debug)]
struct Slot {
    child: Option<SupervisedChild>,
    process: Process,
    /// Its link is held.
    is_held: bool,
    restart: RestartPolicy,
}

impl Default for ProcessSlot {
    fn default() -> ProcessSlot {
        ProcessSlot(Mutex::new(Slot {
            child: None,
            process: Process::Killed,
            is_held: false,
            restart: RestartPolicy::default(),
        }))
    }
}

impl ProcessSlot {
    /// Locks the slot, and notices if the process has ended by itself.
    fn lock(&self) -> MutexGuard<'_, Slot> {
        let mut slot = lock(&self.0);
        let status = slot.child.as_mut().and_then(SupervisedChild::exit_status);
        if let Some(status) = status {
            slot.child = None;
            slot.restart.ended(Instant::now(), status);
            // The user has paused it, and will resume or restart it.
            if slot.process == Process::Paused {
                slot.restart.cancel();
            }
            slot.process = Process::Ended;
        }
        slot
    }

    /// Returns the state of the process, and its id while it runs.
    pub(crate) fn state(&self) -> (Process, Option<u32>) {
        let slot = self.lock();
        (slot.process, slot.child.as_ref().map(SupervisedChild::pid))
    }

    /// Returns how often the process was restarted after it had ended by itself, and how it last ended so.
    pub(crate) fn restarts(&self) -> (u32, Option<String>) {
        let slot = self.lock();
        let last_exit = slot.restart.last_exit().map(str::to_owned);
        (slot.restart.restarts(), last_exit)
    }

    /// Starts the process, replacing a running one. Returns its id.
    pub(crate) fn start(
        &self,
        spec: &ProcessSpec<'_>,
        namespace: Option<&Host>,
    ) -> Result<u32, LabError> {
        let mut slot = self.lock();
        slot.child = None;
        slot.process = Process::Killed;
        slot.is_held = false;
        let child = SupervisedChild::spawn(spec, namespace.map(Host::namespace))?;
        let pid = child.pid();
        slot.child = Some(child);
        slot.process = Process::Running;
        slot.restart.started(Instant::now());
        Ok(pid)
    }

    /// Calls `start` if it ended by itself and its back-off is over.
    pub(crate) fn restart_if_due<E: std::fmt::Display>(
        &self,
        name: &str,
        log: &Path,
        start: impl FnOnce() -> Result<(), E>,
    ) {
        let mut slot = self.lock();
        if !slot.restart.is_due(Instant::now()) {
            return;
        }
        let restarts = slot.restart.count();
        let how = slot.restart.last_exit().unwrap_or("unknown").to_owned();
        drop(slot);
        match start() {
            Ok(()) => tracing::warn!(
                "{name} exited unexpectedly ({how}) and was restarted (restart {restarts}); its log: {}",
                log.display()
            ),
            Err(error) => {
                tracing::warn!("{name} exited unexpectedly ({how}) and could not be started: {error:#}");
                self.lock().restart.retry(Instant::now());
            }
        }
    }

    /// Returns whether a pause left its link held.
    pub(crate) fn is_held(&self) -> bool {
        lock(&self.0).is_held
    }

    /// Marks the process as paused: its link is held, or it is stopped, or both.
    pub(crate) fn pause(&self, is_held: bool, is_stopped: bool) {
        let mut slot = self.lock();
        let Some(child) = &mut slot.child else { return };
        if is_stopped {
            child.signal(Signal::SIGSTOP);
        }
        slot.is_held = is_held;
        slot.process = Process::Paused;
    }

    /// Ends a pause. A process that was not stopped is not signalled.
    pub(crate) fn resume(&self) {
        let mut slot = self.lock();
        slot.is_held = false;
        if let Some(child) = &mut slot.child {
            child.signal(Signal::SIGCONT);
            slot.process = Process::Running;
        }
    }

    /// Kills the process at once. Returns false if it is not running and no restart was scheduled.
    pub(crate) fn kill(&self) -> bool {
        let mut slot = self.lock();
        slot.is_held = false;
        let runs = slot.child.take().is_some() || slot.restart.is_pending();
        slot.restart.cancel();
        if runs {
            slot.process = Process::Killed;
        }
        runs
    }

    /// Takes the process, for the caller to end. It is not restarted.
    pub(crate) fn take(&self) -> Option<SupervisedChild> {
        let mut slot = self.lock();
        slot.restart.cancel();
        let child = slot.child.take()?;
        slot.process = Process::Ended;
        Some(child)
    }

    /// Asks the process to end.
    pub(crate) fn tell_to_end(&self) {
        let mut slot = self.lock();
        slot.restart.cancel();
        if let Some(child) = &mut slot.child {
            child.signal(Signal::SIGTERM);
            // A stopped process would not handle it.
            child.signal(Signal::SIGCONT);
        }
    }

    /// Waits this long for the process to end, then kills it.
    pub(crate) fn wait_for_end(&self, limit: Duration) {
        if let Some(mut child) = self.take() {
            child.wait_for_exit(limit);
        }
    }
}

/// A process in a cluster's status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// The host's name: `scheduler`, `replica/0`.
    pub name: String,
    pub process: Process,
    /// Its process id, while it runs.
    pub pid: Option<u32>,
    /// How often it was restarted after it had ended by itself.
    #[serde(default)]
    pub restarts: u32,
    /// How it last ended by itself.
    #[serde(default)]
    pub last_exit: Option<String>,
}

impl ProcessStatus {
    /// Returns what is wrong with a process: `killed`, `exited unexpectedly; see its log`. Empty if it is running.
    pub fn in_words(&self) -> &'static str {
        match self.process {
            Process::Running => "",
            Process::Paused => "paused",
            Process::Killed => "killed",
            Process::Ended => "exited unexpectedly; see its log",
        }
    }

    /// Returns a process and its restarts. `node` is the status of a running process's node (`None`: it does not
    /// answer).
    pub fn in_words_with(&self, node: Option<String>) -> String {
        let how = match self.process {
            Process::Running => node.unwrap_or_else(|| "does not answer".to_owned()),
            _ => self.in_words().to_owned(),
        };
        how + &self.restarts_in_words()
    }

    /// `  restarts 2 (last exit: ...)`; empty without a restart.
    pub fn restarts_in_words(&self) -> String {
        restart::in_words(self.restarts, self.last_exit.as_deref())
    }
}

/// A process, and how to start it.
pub struct HostProcess {
    plan: HostPlan,
    log: PathBuf,
    /// Length of the log at the last start, in bytes.
    log_before: AtomicU64,
    /// `None`: the network of this process.
    namespace: Option<Arc<Host>>,
    slot: ProcessSlot,
    /// Its listeners, while it is killed.
    closed: Mutex<Vec<Closed>>,
}

impl HostProcess {
    /// A process that is not yet started. `dir` is where its log goes.
    pub(crate) fn new(plan: HostPlan, dir: &Path, namespace: Option<Arc<Host>>) -> HostProcess {
        HostProcess {
            plan,
            log: dir.join("log"),
            log_before: AtomicU64::new(0),
            namespace,
            slot: ProcessSlot::default(),
            closed: Mutex::default(),
        }
    }

    /// Returns the host's name: `scheduler`, `replica/0`.
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    pub(crate) fn is_optional(&self) -> bool {
        self.plan.is_optional
    }

    /// Whether it starts on request only, not with the cluster.
    pub(crate) fn is_on_request(&self) -> bool {
        self.plan.is_on_request
    }

    /// The state of the process, and its id while it runs.
    pub fn state(&self) -> (Process, Option<u32>) {
        self.slot.state()
    }

    /// Returns the entry in the cluster's status.
    pub fn status(&self) -> ProcessStatus {
        let ((process, pid), (restarts, last_exit)) = (self.slot.state(), self.slot.restarts());
        ProcessStatus {
            name: self.name().to_owned(),
            process,
            pid,
            restarts,
            last_exit,
        }
    }

    /// Calls `start` if the process ended by itself and its back-off is over.
    pub(crate) fn restart_if_due(&self, start: impl FnOnce() -> Result<()>) {
        self.slot.restart_if_due(self.name(), &self.log, start);
    }

    /// Starts the process, replacing a running one. `is_first`: the whole cluster is being started.
    pub(crate) fn start(&self, is_first: bool) -> Result<()> {
        if let Some(socket) = &self.plan.socket {
            let _ = fs::remove_file(socket);
        }
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let mut spec = ProcessSpec::new(&self.plan.program).args(self.plan.args.iter().cloned());
        if is_first {
            spec = spec.args(self.plan.first_args.iter().cloned());
        }
        let log = log.with_context(|| format!("cannot open {}", self.log.display()))?;
        let len = log.metadata().map_or(0, |log| log.len());
        self.log_before.store(len, Ordering::Relaxed);
        spec.log = Some(log);
        let listeners = self.plan.listeners.iter();
        spec.listeners = listeners.map(|(fd, what)| (fd.as_fd(), *what)).collect();
        let started = self.open_listeners().and_then(|()| {
            self.slot.start(&spec, self.namespace.as_deref())?;
            Ok(())
        });
        started.inspect_err(|_| self.close_listeners())
    }

    fn open_listeners(&self) -> Result<()> {
        let mut closed = lock(&self.closed);
        // All of them, also after an error.
        let opened = closed.drain(..).map(Closed::open);
        let all = opened.fold(Ok(()), io::Result::and);
        all.context("cannot listen again")
    }

    /// Refuses clients until the next start.
    fn close_listeners(&self) {
        let mut closed = lock(&self.closed);
        closed.clear();
        for (listener, _) in &self.plan.listeners {
            match Closed::new(listener) {
                Ok(own) => closed.push(own),
                Err(error) => tracing::warn!("{}: clients are not refused: {error}", self.name()),
            }
        }
    }

    /// Returns whether a pause left its link held.
    pub(crate) fn is_held(&self) -> bool {
        self.slot.is_held()
    }

    /// Marks the process as paused. Without a link of its own, it is stopped.
    pub(crate) fn pause(&self) {
        let has_link = self.namespace.is_some();
        self.slot.pause(has_link, !has_link);
    }

    pub(crate) fn resume(&self) {
        self.slot.resume();
    }

    /// Kills the process at once. Returns false if it is not running and no restart was scheduled.
    pub(crate) fn kill(&self) -> bool {
        let runs = self.slot.kill();
        self.close_listeners();
        runs
    }

    /// Asks the process to end.
    pub(crate) fn tell_to_end(&self) {
        self.slot.tell_to_end();
    }

    /// Waits this long for the process to end, then kills it.
    pub(crate) fn wait_for_end(&self, limit: Duration) {
        self.slot.wait_for_end(limit);
    }

    /// Returns the end of what it has logged since its last start, for an error message.
    pub fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let before = self.log_before.load(Ordering::Relaxed) as usize;
        let text = String::from_utf8_lossy(log.get(before..).unwrap_or(&log));
        let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join(" | ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listeners;

    fn sleeper(program: &str, dir: &Path) -> HostProcess {
        HostProcess::new(HostPlan::new("sleeper", program).args(["600"]), dir, None)
    }

    #[test]
    fn what_cannot_be_started_again_does_not_run() {
        let dir = tempfile::tempdir().expect("a directory");
        let sleep = sleeper("sleep", dir.path());
        assert_eq!(sleep.state(), (Process::Killed, None));
        sleep.start(false).expect("it starts");
        assert!(matches!(sleep.state(), (Process::Running, Some(_))));
        assert!(sleep.kill());
        assert!(!sleep.kill());
        sleep.start(false).expect("it starts");
        sleep.tell_to_end();
        sleep.wait_for_end(Duration::from_secs(20));
        assert_eq!(sleep.state(), (Process::Ended, None));
        let missing = sleeper("/no/such/program", dir.path());
        assert!(missing.start(false).is_err());
        assert_eq!(missing.state(), (Process::Killed, None));
    }

    #[test]
    fn an_error_quotes_nothing_of_an_earlier_start() {
        let dir = tempfile::tempdir().expect("a directory");
        let plan = HostPlan::new("shell", "sh").args(["-c", "echo now"]);
        let shell = HostProcess::new(plan, dir.path(), None);
        fs::write(&shell.log, "before\n").expect("written");
        shell.start(false).expect("it starts");
        shell.wait_for_end(Duration::from_secs(20));
        assert_eq!(shell.log_tail(), "now");
    }

    #[test]
    fn clients_of_a_host_that_cannot_be_started_again_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = listeners::bind(([127, 0, 0, 1], 0).into(), "--resp").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let mut host = sleeper("sleep", dir.path());
        host.plan.listeners = vec![(Arc::new(listener), "resp")];
        let connects = || std::net::TcpStream::connect(address).is_ok();
        host.start(false).expect("it starts");
        assert!(connects());
        assert!(host.kill());
        assert!(!host.kill());
        host.plan.program = "/no/such/program".into();
        assert!(host.start(false).is_err());
        assert!(!connects());
        host.plan.program = "sleep".into();
        host.start(false).expect("it starts");
        assert!(connects());
        host.kill();
    }

    #[test]
    fn a_paused_process_is_stopped_until_it_is_resumed_and_ends_when_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let sleep = sleeper("sleep", dir.path());
        sleep.start(false).expect("it starts");
        let state_letter = || {
            let (_, pid) = sleep.state();
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.expect("a process")));
            let stat = stat.expect("it is there");
            stat.rsplit(')')
                .next()
                .and_then(|rest| rest.trim().chars().next())
        };
        let becomes = |letter| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while state_letter() != Some(letter) {
                assert!(Instant::now() < deadline, "it is {:?}", state_letter());
            }
        };
        sleep.pause();
        assert_eq!(sleep.state().0, Process::Paused);
        becomes('T');
        sleep.resume();
        assert_eq!(sleep.state().0, Process::Running);
        becomes('S');
        sleep.pause();
        becomes('T');
        let began = Instant::now();
        sleep.tell_to_end();
        sleep.wait_for_end(Duration::from_secs(20));
        assert_eq!(sleep.state(), (Process::Ended, None));
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}
