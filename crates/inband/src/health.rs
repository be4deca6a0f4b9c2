//! Whether a host should be restarted (`/live`) and whether it should get work (`/ready`).

use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Result};

use crate::published;
use crate::serve::HostView;

/// A node's thread that has not come around for this long hangs. Far above what a slow disk, a busy machine or a slow
/// script explains: a script is executed by all replicas at the same time, so all would be restarted together.
pub const LIVE_WITHIN: Duration = Duration::from_secs(60);
/// How long `/ready` waits for a majority and for the store; probes usually allow 1 s.
const READY_WITHIN: Duration = Duration::from_millis(700);
/// Polling interval while the store applies what the log has delivered.
const APPLY_STEP: Duration = Duration::from_millis(2);

/// Fails if the node's thread does not turn.
pub fn live(view: &HostView) -> Result<()> {
    let published_at = published::read(&view.state).published_at;
    let silent_for = published_at.map_or(Duration::ZERO, |at| at.elapsed());
    ensure!(
        silent_for < LIVE_WITHIN,
        "the main loop has not turned for {} s",
        silent_for.as_secs()
    );
    Ok(())
}

/// Fails while this host is in no configuration, does not vote, is behind, or reaches no majority.
pub fn ready(view: &HostView) -> Result<()> {
    live(view)?;
    ensure!(!view.is_stopping(), "the host is stopping");
    let state = published::read(&view.state);
    ensure!(
        state.epoch != 0 && state.is_member,
        "the host is in no configuration; see `inband member list`"
    );
    if let Some(why) = &state.acceptor_disk_failure {
        bail!("the acceptor's disk takes no votes: {why}");
    }
    ensure!(
        state.acceptors.iter().all(|acceptor| acceptor.voting),
        "the acceptor is recovering and does not vote yet"
    );
    let Some(replica) = &view.replica else {
        return Ok(());
    };
    let status = replica.status();
    ensure!(!status.is_draining, "the store is draining");
    ensure!(
        !status.is_loading,
        "the store is loading a checkpoint: {} of {} bytes",
        status.loading_bytes,
        status.loading_bytes_total
    );
    if let Some(why) = status.clock_refusal.or(status.write_refusal) {
        bail!("the store refuses commands: {why}");
    }
    let deadline = Instant::now() + READY_WITHIN;
    let Some(confirmed) = view.node_commands.confirm_reads(deadline) else {
        let why = state
            .key_drops
            .map_or(String::new(), |why| format!("; {why}"));
        bail!(
            "no majority has confirmed a read within {} ms{why}",
            READY_WITHIN.as_millis()
        );
    };
    loop {
        let applied = replica.status().applied_instances;
        let mut logs = applied.iter().zip(&confirmed).enumerate();
        let Some((log, (applied, confirmed))) = logs.find(|(_, (a, c))| a < c) else {
            return Ok(());
        };
        ensure!(
            Instant::now() < deadline,
            "the store is behind: log {log} is applied up to {applied}, decided up to {confirmed}"
        );
        std::thread::sleep(APPLY_STEP);
    }
}
