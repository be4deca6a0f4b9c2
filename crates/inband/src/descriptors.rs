//! How many files and sockets this process may open, and how many that leaves for clients.
//!
//! A replica exits if its store cannot open a file. So descriptors are reserved for everything but clients, and a flood
//! of clients cannot use them up.

use anyhow::{ensure, Context, Result};
use inband_paxos::config::Config;
use nix::sys::resource::{getrlimit, setrlimit, Resource};

/// Reserved for the control plane's connections (256), checkpoints, exports, metrics, the control socket and the host
/// itself.
const RESERVED: u64 = 512;
/// Reserved for the store of each log.
const RESERVED_PER_LOG: u64 = 128;
/// With fewer clients a replica is useless.
const CLIENTS_MIN: u64 = 16;

/// Returns the maximum number of clients: the configured number, or what the system allows.
pub fn clients_max(config: &Config) -> Result<usize> {
    let wanted = u64::from(config.host.limits.max_clients);
    let reserved = RESERVED + RESERVED_PER_LOG * config.logs() as u64;
    room_for(wanted, reserved)
}

/// `wanted` clients, or as many as the system allows after the reservation.
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

/// Raises the soft limit on open files to what is wanted, as far as possible. Returns the new limit.
fn allow(wanted: u64) -> Result<u64> {
    let kind = Resource::RLIMIT_NOFILE;
    let (soft, hard) = getrlimit(kind).context("limit of open files")?;
    let raised = wanted.clamp(soft, hard.max(soft));
    setrlimit(kind, raised, hard).context("raising the limit of open files")?;
    Ok(raised)
}
