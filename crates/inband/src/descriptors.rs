//! How many files and sockets this process may have open, and what that leaves for clients.
//!
//! A replica whose store cannot open a file ends. So descriptors are kept back for everything but
//! clients, and a flood of those cannot take them.

use anyhow::{ensure, Context, Result};
use inband_paxos::config::Config;
use nix::sys::resource::{getrlimit, setrlimit, Resource};

/// Kept back for the control plane's connections (256), checkpoints, exports, metrics, the control
/// socket and the host's own.
const RESERVED: u64 = 512;
/// Kept back for the store of each log.
const RESERVED_PER_LOG: u64 = 128;
/// With fewer clients a replica is of no use.
const CLIENTS_MIN: u64 = 16;

/// How many clients may come: as many as the configuration says, or as the system allows.
pub fn clients_max(config: &Config) -> Result<usize> {
    let wanted = u64::from(config.host.limits.max_clients);
    let reserved = RESERVED + RESERVED_PER_LOG * config.logs() as u64;
    room_for(wanted, reserved)
}

/// So many clients, or as many as the system allows beside what is kept back.
pub fn room_for(wanted: u64, reserved: u64) -> Result<usize> {
    let allowed = allow(wanted + reserved)?;
    let room = allowed.saturating_sub(reserved);
    ensure!(
        room >= CLIENTS_MIN,
        "this process may have {allowed} files open and keeps {reserved} for itself; raise the limit \
         (LimitNOFILE= in the unit, or ulimit -n) to at least {}",
        reserved + wanted
    );
    if room < wanted {
        tracing::warn!(
            "{wanted} clients may come, but with {allowed} files open at most there is room \
             for {room}; raise the limit (LimitNOFILE= in the unit, or ulimit -n) to {}",
            reserved + wanted
        );
    }
    Ok(room.min(wanted) as usize)
}

/// Raise the soft limit of open files as far as it is wanted and goes; what it is then.
fn allow(wanted: u64) -> Result<u64> {
    let kind = Resource::RLIMIT_NOFILE;
    let (soft, hard) = getrlimit(kind).context("limit of open files")?;
    let raised = wanted.clamp(soft, hard.max(soft));
    setrlimit(kind, raised, hard).context("raising the limit of open files")?;
    Ok(raised)
}
