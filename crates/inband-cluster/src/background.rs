//! What the clusters that `up --detach` leaves in the background have in common.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use inband_host::state_dir::StateLock;

/// How long a supervisor may take to remove what it made.
const END_LIMIT: Duration = Duration::from_secs(10);
const END_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// This command with the same options, but as the background process.
pub fn this_command() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(std::env::args_os().skip(1).filter(|a| a != "--detach"))
        .arg("--detached");
    Ok(command)
}

/// Wait until a supervisor that was told to end, and listens at `socket`, has left its directory.
pub fn wait_for_end(data: &Path, socket: &Path) {
    let deadline = Instant::now() + END_LIMIT;
    // The lock goes last: with it the next `up` can begin.
    let has_ended = || !socket.exists() && StateLock::take(data).is_ok();
    while !has_ended() && Instant::now() < deadline {
        std::thread::sleep(END_POLL_INTERVAL);
    }
}
