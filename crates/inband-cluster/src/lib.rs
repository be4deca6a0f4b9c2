//! Clusters on this machine: their hosts' processes, and a supervisor that watches over them and listens in the cluster's
//! directory.

pub mod background;
pub mod client;
pub mod flair;
pub mod host_process;
pub mod kv;
pub mod scratch;
pub mod socket;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use inband_host::state_dir::StateLock;
use inband_lab::{preflight, Lab, LabError, LabSpec};
use inband_paxos::config::Dataplane;

use host_process::{HostProcess, Process};

/// How long the hosts of a cluster may take until it does its work.
const READY_LIMIT: Duration = Duration::from_secs(20);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What such a cluster is for.
pub struct Service {
    /// For people.
    pub name: &'static str,
    /// Its clusters are those of `inband up COMMAND`.
    pub command: &'static str,
}

impl Service {
    /// Make a cluster's directory, unless there is one, and keep other supervisors out. Its absolute path.
    pub fn take_directory(&self, data: &Path) -> Result<(PathBuf, StateLock)> {
        let shown = data.display();
        fs::create_dir_all(data).with_context(|| format!("--data: cannot create {shown}"))?;
        let data = fs::canonicalize(data)?;
        let lock = StateLock::take(&data).with_context(|| {
            let (command, data) = (self.command, data.display());
            format!("does another `inband up {command}` run in {data}?")
        })?;
        Ok((data, lock))
    }

    /// The name of the network of the cluster in a directory: another one for each.
    pub fn network_name(&self, data: &Path) -> String {
        let digest = inband_paxos::dataplane::wire::digest(data.as_os_str().as_encoded_bytes());
        format!("{}-{:08x}", self.command, digest as u32)
    }

    /// A network with a namespace for each host, in which the role of the first can run in the kernel. The inner error
    /// says why there is none, and that role runs in user space.
    pub fn network(
        &self,
        data: &Path,
        dataplane: Dataplane,
        hosts: &[String],
    ) -> Result<Result<Lab, LabError>> {
        let make = || -> Result<Lab, LabError> {
            preflight::check_lab()?;
            let lab = Lab::create(&LabSpec {
                name: self.network_name(data),
                hosts: hosts.to_vec(),
                seed: 1,
            })?;
            // The way in which the role will attach its program.
            drop(lab.hosts()[0].attach_pass()?);
            Ok(lab)
        };
        match make() {
            Err(error @ (LabError::InUse { .. } | LabError::BadLayout(_))) => Err(error.into()),
            Err(error) if dataplane != Dataplane::Auto => Err(error.into()),
            made => Ok(made),
        }
    }
}

/// Where a host of the cluster in a directory keeps its files.
pub fn host_dir(data: &Path, name: &str) -> PathBuf {
    data.join("hosts").join(name.replace('/', "-"))
}

/// Wait until a cluster `is_ready`, none of these processes having ended. `lateness` says what it lacks.
pub fn wait_until_ready<'a>(
    data: &Path,
    processes: impl Iterator<Item = &'a HostProcess> + Clone,
    lateness: &str,
    is_ready: impl Fn() -> bool,
) -> Result<()> {
    let deadline = Instant::now() + READY_LIMIT;
    while !is_ready() {
        for process in processes.clone() {
            ensure!(
                process.state().0 != Process::Ended,
                "{} ended: {}",
                process.name(),
                process.log_tail()
            );
        }
        ensure!(
            Instant::now() < deadline,
            "{lateness} after {} s; logs are in {}",
            READY_LIMIT.as_secs(),
            data.join("hosts").display()
        );
        thread::sleep(READY_POLL_INTERVAL);
    }
    Ok(())
}

/// The end that `down` brings.
#[derive(Debug, Default)]
pub struct End {
    has_come: Mutex<bool>,
    comes: Condvar,
}

impl End {
    /// It is here.
    pub fn come(&self) {
        *lock(&self.has_come) = true;
        self.comes.notify_all();
    }

    /// Wait so long for it. Has it come?
    pub fn wait(&self, limit: Duration) -> bool {
        let has_come = lock(&self.has_come);
        let waited = self.comes.wait_timeout_while(has_come, limit, |c| !*c);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// A lock whose holder may have panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
