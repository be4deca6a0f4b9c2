//! A scheduler and executors in this process.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use inband_ground::auth::{Digest, Keys};

use crate::client_node::{self, ClientError, ClientNode};
use crate::limits::{EXECUTORS_MAX, LOCAL_EXECUTORS_MAX};
use crate::runner::Tools;
use crate::scheduler_node::{self, SchedulerError, SchedulerNode};
use crate::timing::ExecutorTiming;
use crate::worker_node::{self, WorkerError, WorkerNode};

/// Timeout for the executors to be registered.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Why a cluster could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The number of executors is out of range.
    #[error("{0} executors are not 1 to {LOCAL_EXECUTORS_MAX}")]
    Executors(usize),
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The executors were not registered in time.
    #[error(transparent)]
    Start(#[from] ClientError),
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Keys for clients. Only this process has them.
#[derive(Debug, Clone)]
pub struct Access {
    pub keys: Option<Keys>,
    /// How values are digested.
    pub digest: Digest,
}

/// A cluster in this process. Dropping it stops everything, including what runs.
pub struct LocalCluster {
    scheduler: SocketAddrV4,
    access: Access,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl LocalCluster {
    /// Starts a scheduler on loopback and this many executors, and waits until they are registered. `tools` is called
    /// for each worker, which has up to 64 executors, with the scheduler's address.
    pub fn start(
        executors: usize,
        access: Access,
        tools: impl Fn(SocketAddrV4) -> Tools,
    ) -> Result<LocalCluster, LocalError> {
        if !(1..=LOCAL_EXECUTORS_MAX).contains(&executors) {
            return Err(LocalError::Executors(executors));
        }
        let here = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        let scheduler = SchedulerNode::open(scheduler_node::Config {
            keys: access.keys,
            digest: access.digest,
            ..scheduler_node::Config::new(here)
        })?;
        let mut cluster = LocalCluster {
            scheduler: scheduler.address(),
            access,
            stop: Arc::default(),
            threads: Vec::new(),
        };
        let stop = Arc::clone(&cluster.stop);
        cluster.spawn("scheduler", move || run_scheduler(scheduler, &stop))?;
        let of_worker = usize::from(EXECUTORS_MAX);
        for first in (0..executors).step_by(of_worker) {
            let worker = WorkerNode::open(worker_node::Config {
                scheduler: cluster.scheduler,
                address: here,
                name: format!("local-{}", first / of_worker),
                executors: (executors - first).min(of_worker) as u8,
                resources: 1,
                tools: tools(cluster.scheduler),
                keys: cluster.access.keys,
                digest: cluster.access.digest,
                timing: ExecutorTiming::default(),
            })?;
            let stop = Arc::clone(&cluster.stop);
            cluster.spawn("worker", move || run_worker(worker, &stop))?;
        }
        cluster.wait_for(executors as u32)?;
        Ok(cluster)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), LocalError> {
        self.threads
            .push(Builder::new().name(name.into()).spawn(run)?);
        Ok(())
    }

    fn wait_for(&self, executors: u32) -> Result<(), LocalError> {
        let client = self.client()?;
        let until = Instant::now() + START_LIMIT;
        while client.executors(START_LIMIT)? < executors {
            if Instant::now() >= until {
                return Err(ClientError::NoScheduler(self.scheduler).into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Returns the scheduler's address.
    pub fn scheduler(&self) -> SocketAddrV4 {
        self.scheduler
    }

    /// Opens a client of this cluster.
    pub fn client(&self) -> Result<ClientNode, ClientError> {
        ClientNode::open(client_node::Config {
            keys: self.access.keys,
            digest: self.access.digest,
            ..client_node::Config::new(self.scheduler)
        })
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn run_scheduler(mut scheduler: SchedulerNode, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        if let Err(error) = scheduler.turn() {
            tracing::error!("the scheduler ends: {error}");
            return;
        }
    }
}

fn run_worker(mut worker: WorkerNode, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        if let Err(error) = worker.turn() {
            tracing::error!("a worker ends: {error}");
            return;
        }
    }
}
