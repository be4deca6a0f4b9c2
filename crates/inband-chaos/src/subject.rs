//! What a kind of cluster must offer so that faults can be injected into it.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use anyhow::{ensure, Result};
use inband_cluster::host_process::{Process, ProcessStatus};
use inband_lab::Lab;

use super::fault_kind::FaultKind;
use super::links::ActiveFaults;
use super::nemesis::Lane;
use super::workload::{Client, Shared};

/// A running cluster; everything of it ends when it is dropped.
pub trait Subject: Sized + Send + Sync + 'static {
    /// What it is, in a line.
    fn describe(&self) -> String;

    /// From now on let clients get a stale value now and then: by a proxy in front of each of its listeners for Redis
    /// clients, or in the client where there is no such listener.
    fn answer_with_stale_values(&self) -> Result<()>;

    /// A client, by its number.
    fn client(self: &Arc<Self>, number: usize, shared: &Shared, seed: u64) -> Result<Client>;

    /// Do something with its network. Nothing without a lab, or while everything is off.
    fn with_lab(&self, act: &mut dyn FnMut(&Lab) -> Result<()>) -> Result<()>;

    /// The faults of links. Change them, then [`apply`](Self::apply).
    fn faults(&self) -> MutexGuard<'_, ActiveFaults>;

    /// Make the links what the faults say.
    fn apply(&self, faults: &ActiveFaults) -> Result<()> {
        self.with_lab(&mut |lab| Ok(faults.apply(lab)?))
    }

    /// Hosts whose links get more faults than others', at the moment.
    fn important_hosts(&self) -> Vec<String>;

    /// A fault of hosts, from its beginning to its end. What was done, if anything could be.
    fn strike(lane: &mut Lane<Self>, kind: FaultKind) -> Result<Option<String>>;

    /// After a fault that did not go as planned: what is dead lives, and what is lost is replaced. An
    /// error is for good, and ends the run.
    fn put_right(&self) -> Result<()>;

    /// All faults have ended: put everything right and wait until it serves. How long that took.
    fn heal(&self) -> Result<Duration>;

    /// Read all keys there ever were, in every way, as the client of this number.
    fn read_everything(self: &Arc<Self>, shared: &Shared, number: usize) -> Result<()>;

    /// All clients have ended. Do replicas agree?
    fn into_agreed(self) -> Result<()>;
}

/// No process may end by itself, even if the supervisor has started it again.
pub fn check_alive(processes: &[ProcessStatus]) -> Result<()> {
    for process in processes {
        ensure!(
            process.process != Process::Ended && process.restarts == 0,
            "{} ended by itself ({}); its log says why",
            process.name,
            process.last_exit.as_deref().unwrap_or("unknown")
        );
    }
    Ok(())
}
