//! Processes that live and die with the one that started them.
//!
//! A child's standard input is a pipe from its supervisor: its end of file means that the
//! supervisor is gone, however it went. A child that sees [`SUPERVISED_ENV`] must watch for that.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{fcntl, FcntlArg, FdFlag};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

pub use inband_host::signals::SUPERVISED_ENV;

use crate::error::LabError;
use crate::netns::Netns;

/// Inherited listening sockets: comma-separated `NUMBER:USE`, `USE` being `resp` or `metrics`.
///
/// systemd's own `LISTEN_FDS` names the receiving process, whose id is not known before it runs.
pub const LISTEN_FDS_ENV: &str = "INBAND_LISTEN_FDS";

/// Held from making sockets inheritable until they are private again, so that no other child
/// started by this crate gets them too.
static INHERITING: Mutex<()> = Mutex::new(());

const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// What to start.
#[derive(Debug)]
pub struct ProcessSpec<'a> {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Added to the environment.
    pub env: Vec<(String, String)>,
    /// Receives standard output and error; `None` leaves them where ours go.
    pub log: Option<File>,
    /// Listening sockets to inherit, with their use.
    pub listeners: Vec<(BorrowedFd<'a>, &'static str)>,
}

impl ProcessSpec<'_> {
    /// A program without arguments.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            log: None,
            listeners: Vec::new(),
        }
    }

    /// Add arguments.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }
}

/// A started child. Killed when dropped.
#[derive(Debug)]
pub struct SupervisedChild {
    child: Child,
}

impl SupervisedChild {
    /// Start a process, in a namespace if one is given.
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

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, or `None` while it runs.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Wait until it has ended, but not longer than `limit`. True if it has.
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

    /// Send a signal, unless it has ended: its id might be somebody else's by then.
    pub fn signal(&mut self, signal: Signal) {
        if self.exit_status().is_none() {
            let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
        }
    }

    /// Kill it and wait for its end.
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
        // A Ctrl-C at the terminal is for the supervisor; children stop when it says so.
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
