//! Shared code for clusters that `up --detach` runs in the background.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use inband_host::state_dir::StateLock;
use nix::unistd::setsid;

use crate::file_error::FileError;

/// How long a supervisor may take to remove its files and network.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const END_POLL_INTERVAL: Duration = Duration::from_millis(10);
const START_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Why a supervisor did not start in the background.
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    #[error(transparent)]
    File(#[from] FileError),
    /// It ended; the last line of its output.
    #[error("{0}")]
    Ended(String),
}

/// This command with the same options, as the background process.
pub fn this_command() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(std::env::args_os().skip(1).filter(|a| a != "--detach"))
        .arg("--detached");
    Ok(command)
}

/// Waits until a supervisor that was told to end, and listens at `socket`, has released its directory.
pub fn wait_for_end(data: &Path, socket: &Path) {
    let deadline = Instant::now() + END_TIMEOUT;
    // The lock goes last: once it is free the next `up` can begin.
    let has_ended = || !socket.exists() && StateLock::take(data).is_ok();
    while !has_ended() && Instant::now() < deadline {
        thread::sleep(END_POLL_INTERVAL);
    }
}

/// Starts a program that will call [`leave_terminal`], and waits until `answers`, which is given its process id,
/// returns an answer. Its output goes to `up.log` in `data`; if it ends instead, the last line of that file is the
/// error.
pub fn spawn_until<T>(
    mut command: Command,
    data: &Path,
    mut answers: impl FnMut(u32) -> Option<T>,
) -> Result<T, BackgroundError> {
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
    loop {
        if let Some(answer) = answers(child.id()) {
            return Ok(answer);
        }
        if let Ok(Some(how)) = child.try_wait() {
            let text = fs::read_to_string(&log_path).unwrap_or_default();
            let last = text.lines().rfind(|l| !l.trim().is_empty());
            return Err(BackgroundError::Ended(match last {
                Some(line) => line.trim_start_matches("inband: ").to_owned(),
                None => format!("the supervisor ended ({how}) and said nothing"),
            }));
        }
        thread::sleep(START_POLL_INTERVAL);
    }
}

/// Detaches from the terminal. Call early, in a process started by [`spawn_until`].
pub fn leave_terminal() {
    // Fails only for the leader of a process group, which is already detached.
    let _ = setsid();
}
