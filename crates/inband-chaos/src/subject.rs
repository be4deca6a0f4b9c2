//! The interface of a cluster that faults can be injected into.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use anyhow::{ensure, Result};
use inband_cluster::host_process::{Process, ProcessStatus};
use inband_lab::Lab;

use super::fault_kind::FaultKind;
use super::links::ActiveFaults;
use super::nemesis::FaultThread;
use super::workload::{Client, Shared};

/// A running cluster. Dropping it stops all of its processes.
pub trait Subject: Sized + Send + Sync + 'static {
    /// Returns a one-line description for the report.
    fn describe(&self) -> String;

    /// From now on, sometimes gives clients a stale value: by a proxy in front of each RESP listener, or inside the
    /// client where there is no such listener.
    fn answer_with_stale_values(&self) -> Result<()>;

    fn client(self: &Arc<Self>, number: usize, shared: &Shared, seed: u64) -> Result<Client>;

    /// Clients besides those of the workload, which check something of their own.
    fn companions(&self, _shared: &Shared, _seed: u64) -> Vec<Client> {
        Vec::new()
    }

    /// Calls `act` with the lab. Does nothing if there is no lab or while everything is off.
    fn with_lab(&self, act: &mut dyn FnMut(&Lab) -> Result<()>) -> Result<()>;

    /// Returns the active link faults. Changes take effect with [`apply`](Self::apply).
    fn faults(&self) -> MutexGuard<'_, ActiveFaults>;

    /// Configures the links according to the faults.
    fn apply(&self, faults: &ActiveFaults) -> Result<()> {
        self.with_lab(&mut |lab| Ok(faults.apply(lab)?))
    }

    /// Hosts whose links should currently get more faults than others.
    fn important_hosts(&self) -> Vec<String>;

    /// Injects a host fault and returns when it is over. Returns what was done, or `None` if nothing could be.
    fn strike(thread: &mut FaultThread<Self>, kind: FaultKind) -> Result<Option<String>>;

    /// Restarts hosts that are down and replaces hosts that are lost, after a fault that failed midway. An error is
    /// fatal and ends the run.
    fn put_right(&self) -> Result<()>;

    /// After all faults have ended, repairs the cluster and waits until it serves. Returns how long that took.
    fn heal(&self) -> Result<Duration>;

    /// Reads all keys that were ever used, on every path, as client `number`.
    fn read_everything(self: &Arc<Self>, shared: &Shared, number: usize) -> Result<()>;

    /// Checks that the replicas agree. All clients have stopped.
    fn into_agreed(self) -> Result<()>;
}

/// Checks that no process has exited by itself, even if the supervisor has restarted it.
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
