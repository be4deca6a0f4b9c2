//! Child processes that end with the process that started them.
//!
//! A child's standard input is a pipe from its supervisor: end of file means that the supervisor has exited, for
//! whatever reason. A child that sees [`SUPERVISED_ENV`] must watch for that.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use inband_host::signals::{LISTEN_FDS_ENV, SUPERVISED_ENV};
use nix::fcntl::{fcntl, FcntlArg, FdFlag};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use crate::network::{LabError, Netns};

/// Held while sockets are inheritable, so that no other child started by this crate inherits them too.
static INHERITING: Mutex<()> = Mutex::new(());

const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The specification of a process to start.
#[derive(Debug)]
pub struct ProcessSpec<'a> {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Added to the environment.
    pub env: Vec<(String, String)>,
    /// Receives standard output and error; `None` shares this process's.
    pub log: Option<File>,
    /// Listening sockets to inherit, with their use.
    pub listeners: Vec<(BorrowedFd<'a>, &'static str)>,
}

impl ProcessSpec<'_> {
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            log: None,
            listeners: Vec::new(),
        }
    }

    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }
}

/// A running child. Killed on drop.
#[derive(Debug)]
pub struct SupervisedChild {
    child: Child,
}

impl SupervisedChild {
    /// Starts a process, optionally in a namespace.
    pub fn spawn(spec: &ProcessSpec<'_>, namespace: Option<&Netns>) -> Result<Self, LabError> {
        let start = || {
            let _guard = INHERITING.lock().unwrap_or_else(PoisonError::into_inner);
            set_inheritable(&spec.listeners, true)?;
            let started = command(spec).and_then(|mut command| {
                command
                    .spawn()
                    .map_err(LabError::system(format!("run {}", spec.program.display())))
            });
            set_inheritable(&spec.listeners, false)?;
            started
        };
        let child = match namespace {
            Some(namespace) => namespace.run(start)?,
            None => start()?,
        };
        Ok(Self { child })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its exit status, or `None` while it runs.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits up to `limit` until it has ended. Returns whether it has.
    pub fn wait_for_exit(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.exit_status().is_none() {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(EXIT_POLL_INTERVAL);
        }
        true
    }

    /// Sends a signal, unless it has ended: its process id could have been reused.
    pub fn signal(&mut self, signal: Signal) {
        if self.exit_status().is_none() {
            let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
        }
    }

    /// Kills it and waits until it has ended.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for SupervisedChild {
    fn drop(&mut self) {
        self.kill();
    }
}

fn command(spec: &ProcessSpec<'_>) -> Result<Command, LabError> {
    let mut command = Command::new(&spec.program);
    command
        .args(&spec.args)
        .envs(spec.env.iter().cloned())
        .env(SUPERVISED_ENV, "1")
        .stdin(Stdio::piped())
        // A Ctrl-C at the terminal is for the supervisor; children stop when it tells them to.
        .process_group(0);
    if spec.listeners.is_empty() {
        command.env_remove(LISTEN_FDS_ENV);
    } else {
        let list: Vec<String> = spec
            .listeners
            .iter()
            .map(|(fd, what)| format!("{}:{what}", fd.as_raw_fd()))
            .collect();
        command.env(LISTEN_FDS_ENV, list.join(","));
    }
    if let Some(log) = &spec.log {
        let copy = || {
            log.try_clone()
                .map_err(LabError::system("copy a log's handle"))
        };
        command.stdout(copy()?).stderr(copy()?);
    }
    Ok(command)
}

fn set_inheritable(
    listeners: &[(BorrowedFd<'_>, &'static str)],
    inheritable: bool,
) -> Result<(), LabError> {
    let flag = if inheritable {
        FdFlag::empty()
    } else {
        FdFlag::FD_CLOEXEC
    };
    for (fd, what) in listeners {
        fcntl(fd, FcntlArg::F_SETFD(flag))
            .map_err(LabError::system(format!("hand down the {what} socket")))?;
    }
    Ok(())
}
