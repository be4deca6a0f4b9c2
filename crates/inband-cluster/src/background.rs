//! Shared code for clusters that `up --detach` runs in the background.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{exit, Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use inband_host::file_error::FileError;
use inband_host::output;
use inband_host::signals::StopSignals;
use nix::sys::signal::{kill, Signal};
use nix::unistd::{setsid, Pid};

use crate::disk::check_disk;
use crate::wait_notice::WaitNotice;

/// How long a supervisor may take to remove its files and network.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a supervisor that is interrupted may take to start and stop its hosts.
const INTERRUPTED_TIMEOUT: Duration = Duration::from_secs(30);
/// A second signal kills it after this time: it does not leave the cluster as one that was stopped cleanly.
const PATIENCE: Duration = Duration::from_secs(10);
const END_POLL_INTERVAL: Duration = Duration::from_millis(10);
const START_POLL_INTERVAL: Duration = Duration::from_millis(10);
const SHOW_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// As every command that fails.
const EXIT_FAILURE: i32 = 1;

/// Why a supervisor did not start in the background.
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    #[error(transparent)]
    File(#[from] FileError),
    /// It ended; the last line of its output.
    #[error("{0}")]
    Ended(String),
    /// The user pressed Ctrl-C, or the like.
    #[error("interrupted: the cluster that was being started was stopped")]
    Interrupted,
    /// It did so again, or waited in vain.
    #[error(
        "interrupted: the cluster that was being started was killed. What is left of it ends within seconds; it counts as not \
         stopped cleanly"
    )]
    Killed,
    #[error(transparent)]
    Signals(#[from] io::Error),
}

/// This command with the same options, as the background process.
pub fn this_command() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(std::env::args_os().skip(1).filter(|a| a != "--detach"))
        .arg("--detached");
    Ok(command)
}

/// A supervisor that was told to end still runs.
#[derive(Debug, thiserror::Error)]
#[error("the cluster in {data} was told to stop {} s ago, and its supervisor (process {pid}) still runs; wait for it, or end it: kill -9 {pid}. Its output is in {data}/up.log if it runs in the background", .limit.as_secs())]
pub struct StillRuns {
    pub data: PathBuf,
    pub pid: u32,
    pub limit: Duration,
}

/// Waits until a supervisor that was told to end has released its directory: until `is_free`.
pub fn wait_for_end(data: &Path, pid: u32, is_free: impl Fn() -> bool) -> Result<(), StillRuns> {
    wait_until_free(data, pid, END_TIMEOUT, is_free)
}

fn wait_until_free(
    data: &Path,
    pid: u32,
    limit: Duration,
    mut is_free: impl FnMut() -> bool,
) -> Result<(), StillRuns> {
    let deadline = Instant::now() + limit;
    while !is_free() {
        if Instant::now() >= deadline {
            return Err(StillRuns {
                data: data.to_owned(),
                pid,
                limit,
            });
        }
        thread::sleep(END_POLL_INTERVAL);
    }
    Ok(())
}

/// A supervisor that runs in the background, and its first answer.
#[derive(Debug)]
pub struct Started<T> {
    pub answer: T,
    supervisor: Child,
    data: PathBuf,
    signals: StopSignals,
}

impl<T> Started<T> {
    /// Checks and shows it, as the last thing that a command does. If this fails, or what it prints is lost, stops it: a
    /// command that fails leaves nothing running. For the same reason a signal that comes meanwhile stops it, and ends this
    /// process.
    pub fn show(self, show: impl FnOnce(&T) -> Result<()>) -> Result<()> {
        let pid = self.supervisor.id();
        let supervisor = Arc::new(Mutex::new(Some(self.supervisor)));
        end_at_signal(self.signals, Arc::clone(&supervisor))?;
        let shown = show(&self.answer).and_then(|()| {
            ensure!(output::is_complete(), "its output was not written");
            Ok(())
        });
        // Waits as long as a signal's thread stops it: that thread then ends the process.
        let mut supervisor = supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        let (Err(error), Some(mut supervisor)) = (shown, supervisor.take()) else {
            return Ok(());
        };
        // It is not killed: a supervisor that refuses to stop protects its data.
        let _ = kill(Pid::from_raw(pid as i32), Signal::SIGTERM);
        let has_ended = || !matches!(supervisor.try_wait(), Ok(None));
        Err(
            match wait_until_free(&self.data, pid, INTERRUPTED_TIMEOUT, has_ended) {
                Ok(()) => error.context("the cluster was started, and stopped because of an error"),
                Err(still_runs) => error.context(still_runs),
            },
        )
    }
}

/// Starts a thread that, at a signal, ends the supervisor and this process, unless the supervisor has been taken out.
fn end_at_signal(signals: StopSignals, supervisor: Arc<Mutex<Option<Child>>>) -> io::Result<()> {
    let wait = move || loop {
        let is_interrupted = signals.wait(SHOW_POLL_INTERVAL);
        let mut supervisor = supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(supervisor) = supervisor.as_mut() else {
            return;
        };
        if is_interrupted {
            let error = interrupted(supervisor, &signals, PATIENCE);
            eprintln!("inband: {error}");
            exit(EXIT_FAILURE);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait)?;
    Ok(())
}

/// Ends a supervisor because of a signal.
fn interrupted(
    supervisor: &mut Child,
    signals: &StopSignals,
    patience: Duration,
) -> BackgroundError {
    eprintln!(
        "inband: interrupted; stopping the cluster that is being started (Ctrl-C after {} s kills it)",
        patience.as_secs()
    );
    match end(supervisor, signals, patience) {
        true => BackgroundError::Interrupted,
        false => BackgroundError::Killed,
    }
}

/// Starts a program that will call [`leave_terminal`], and waits until `answers`, which is given its process id,
/// returns an answer. Its output goes to `up.log` in `data`; if it ends instead, the last line of that file is the
/// error. A signal that would end this process ends that program, too, which nobody else would do.
pub fn spawn_until<T>(
    command: Command,
    data: &Path,
    answers: impl FnMut(u32) -> Option<T>,
) -> Result<Started<T>, BackgroundError> {
    spawn_with_patience(command, data, PATIENCE, answers)
}

fn spawn_with_patience<T>(
    mut command: Command,
    data: &Path,
    patience: Duration,
    mut answers: impl FnMut(u32) -> Option<T>,
) -> Result<Started<T>, BackgroundError> {
    let signals = StopSignals::take()?;
    let is_new = !data.exists();
    fs::create_dir_all(data).map_err(FileError::of("create", data))?;
    let log_path = data.join("up.log");
    // Use a new file: an earlier supervisor that is just ending may still write to the old one.
    match fs::remove_file(&log_path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(FileError::of("replace", log_path)(error).into());
        }
        _ => {}
    }
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log_path)
        .map_err(FileError::of("open", &log_path))?;
    let copy = log.try_clone().map_err(FileError::of("open", &log_path))?;
    let program = command.get_program().to_owned();
    let mut child: Child = command
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(copy)
        .spawn()
        .map_err(FileError::of("run", program))?;
    let mut notice = WaitNotice::new();
    loop {
        if let Some(answer) = answers(child.id()) {
            return Ok(Started {
                answer,
                supervisor: child,
                data: data.to_owned(),
                signals,
            });
        }
        if let Ok(Some(how)) = child.try_wait() {
            let text = fs::read_to_string(&log_path).unwrap_or_default();
            let last = text.lines().rfind(|l| !l.trim().is_empty());
            // What was refused leaves nothing behind. The directory stays if there is more in it.
            if is_new && fs::remove_file(&log_path).is_ok() && fs::remove_dir(data).is_err() {
                let _ = fs::write(&log_path, &text);
            }
            return Err(BackgroundError::Ended(match last {
                Some(line) => line.trim_start_matches("inband: ").to_owned(),
                // On a full disk it cannot say why.
                None => check_disk(data).map_or_else(
                    |full| full.to_string(),
                    |()| format!("the supervisor ended ({how}) and said nothing"),
                ),
            }));
        }
        notice.waits_with(&log_path);
        if signals.wait(START_POLL_INTERVAL) {
            return Err(interrupted(&mut child, &signals, patience));
        }
    }
}

/// Ends a supervisor that may still be starting. It is killed after a time limit, or at a further signal after `patience`;
/// its hosts end with it. Returns whether it ended by itself.
fn end(supervisor: &mut Child, signals: &StopSignals, patience: Duration) -> bool {
    let _ = kill(Pid::from_raw(supervisor.id() as i32), Signal::SIGTERM);
    let began = Instant::now();
    while matches!(supervisor.try_wait(), Ok(None)) {
        let is_impatient = signals.wait(END_POLL_INTERVAL) && began.elapsed() >= patience;
        if is_impatient || began.elapsed() >= INTERRUPTED_TIMEOUT {
            let _ = supervisor.kill();
            let _ = supervisor.wait();
            return false;
        }
    }
    true
}

/// Detaches from the terminal. Call early, in a process started by [`spawn_until`].
pub fn leave_terminal() {
    // Fails only for the leader of a process group, which is already detached.
    let _ = setsid();
}

#[cfg(test)]
mod tests {
    use anyhow::bail;
    use inband_host::program::in_words;
    use nix::sys::signal::raise;

    use super::*;

    /// Interrupts a command twice while it waits for a program to start.
    fn interrupted_twice(program: &[&str], patience: Duration) -> BackgroundError {
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(program[0]);
        command.args(&program[1..]);
        let mut started = None;
        let interrupted = spawn_with_patience(command, dir.path(), patience, |pid| {
            // For this thread only.
            let _ = raise(Signal::SIGINT).and_then(|()| raise(Signal::SIGTERM));
            started = Some(pid);
            None::<()>
        });
        let process = format!("/proc/{}", started.expect("it ran"));
        assert!(!Path::new(&process).exists());
        interrupted.expect_err("it was interrupted")
    }

    #[test]
    fn what_was_being_started_ends_with_an_interrupted_command() {
        // It has inherited that signals are blocked.
        let error = interrupted_twice(&["sleep", "600"], Duration::ZERO);
        assert!(matches!(error, BackgroundError::Killed), "{error}");
    }

    #[test]
    fn a_second_signal_does_not_kill_what_is_being_stopped() {
        let error = interrupted_twice(&["sleep", "0.5"], PATIENCE);
        assert!(matches!(error, BackgroundError::Interrupted), "{error}");
    }

    #[test]
    fn what_was_refused_leaves_no_directory_behind() {
        let dir = tempfile::tempdir().expect("a directory");
        let refused = |data: &Path, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir(dir.path());
            let error = spawn_until(command, data, |_| None::<()>).expect_err("it ends");
            assert_eq!(error.to_string(), "no");
        };
        let new = dir.path().join("new");
        refused(&new, "echo inband: no");
        assert!(!new.exists());
        // What a cluster has begun to write stays, and so does what was there before.
        refused(&new, "touch new/record; echo no");
        assert!(new.join("record").exists() && new.join("up.log").exists());
        let old = dir.path().join("old");
        fs::create_dir(&old).expect("made");
        refused(&old, "echo no");
        assert!(old.join("up.log").exists());
    }

    #[test]
    fn what_was_started_ends_if_it_cannot_be_shown() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = Command::new("sleep");
        command.arg("0.5");
        let started = spawn_until(command, dir.path(), Some).expect("it runs");
        let process = format!("/proc/{}", started.answer);
        let shown = started.show(|_| bail!("self-check: no quorum"));
        assert!(!Path::new(&process).exists());
        let said = in_words(&shown.expect_err("it failed"));
        assert!(
            said.contains("stopped because of an error: self-check"),
            "{said}"
        );
    }

    #[test]
    fn what_was_started_goes_on_if_it_was_shown() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = Command::new("sleep");
        command.arg("600");
        let started = spawn_until(command, dir.path(), Some).expect("it runs");
        let pid = started.answer;
        started.show(|_| Ok(())).expect("shown");
        // It would not exist, or have ended.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it exists");
        assert!(!status.contains("zombie"), "{status}");
        kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("it runs");
    }

    #[test]
    fn a_supervisor_that_does_not_end_is_named() {
        let (data, limit) = (Path::new("somewhere"), Duration::from_millis(50));
        let error = wait_until_free(data, 4711, limit, || false).expect_err("it never ends");
        let error = error.to_string();
        for part in ["somewhere", "process 4711", "kill -9 4711"] {
            assert!(error.contains(part), "{error}");
        }
        let ends = Instant::now() + limit / 2;
        wait_until_free(data, 4711, limit * 100, || Instant::now() > ends).expect("it ends");
    }
}
