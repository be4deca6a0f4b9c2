//! `inband falcon scheduler`: the process of a scheduler.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::net::{SocketAddrV4, TcpListener};
use std::path::PathBuf;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use clap::Args;
use inband_falcon::dataplane::{FalconConfig, Policy, SLOTS_DEFAULT};
use inband_falcon::resources::ResourceNames;
use inband_falcon::scheduler_node::{self, SchedulerNode};
use inband_host::key_file::KeyFile;
use inband_host::key_file::KeyStatus;
use inband_host::line_json::Server;
use inband_paxos::config::Dataplane;
use mio::Waker;

use super::metrics;
use super::reach::{address, must_be_safe, opened};
use super::signals::Told;
use super::status::{SchedulerReply, SchedulerRequest, SchedulerStatus};
use super::DEFAULT_ADDRESS;

/// How long the scheduler's thread may take to say how it is.
const STATUS_LIMIT: Duration = Duration::from_secs(1);
/// Between two looks at what was given, for the rate.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Looks that are kept: those of a second.
const SAMPLES: usize = 11;

const BUSY: &str = "the scheduler is busy; ask again";

/// What a scheduler is made of, wherever it runs.
#[derive(Debug, Clone, Args)]
pub struct SchedulerOptions {
    /// Which task goes to whom: fifo (first come, first served), priority (0 to 7, 0 first), resources (to who has what
    /// the task needs), fair (users take turns) or locality (to the preferred worker, after a while to any).
    #[arg(long, default_value_t)]
    policy: Policy,
    /// Tasks that the queues hold together: a power of two.
    #[arg(long, default_value_t = SLOTS_DEFAULT)]
    slots: usize,
    /// Of these, a user may have so many. By default half of a queue: fifo has one queue, priority 8, the others 64.
    #[arg(long, value_name = "N")]
    user_tasks_max: Option<u32>,
    /// Workers that may join, 1 to 1024.
    #[arg(long, default_value_t = 64, value_name = "N")]
    workers: usize,
    /// With --policy locality: how long a task waits for the worker that it prefers.
    #[arg(long, default_value_t = 5, value_name = "MS")]
    locality_wait_ms: u64,
    /// With --policy resources: names for the resources 1, 2, ..., which workers have and tasks need.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    resource_names: Vec<String>,
    /// Serve /metrics for Prometheus here: numbers only, to whoever asks.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    metrics: Option<SocketAddrV4>,
}

impl SchedulerOptions {
    /// Sizes and rules, if they go together.
    pub fn config(&self) -> Result<FalconConfig> {
        let queues = self.policy.queues();
        let half = (self.slots / queues / 2).max(1) as u32;
        let config = FalconConfig {
            slots: self.slots,
            workers: self.workers,
            user_tasks_max: self.user_tasks_max.unwrap_or(half),
            locality_wait_ns: self.locality_wait_ms * 1_000_000,
            ..FalconConfig::of(self.policy)
        };
        config.validate().map_err(|message| anyhow!(message))?;
        ensure!(
            config.user_tasks_max as usize <= config.slots,
            "--user-tasks-max {} is more than the --slots {} of all queues; a user can have no more than these",
            config.user_tasks_max,
            config.slots
        );
        ensure!(
            self.resource_names.is_empty() || self.policy == Policy::Resources,
            "--resource-names are for --policy resources; {} does not look at them",
            self.policy
        );
        ResourceNames::new(self.resource_names.clone()).context("--resource-names")?;
        Ok(config)
    }

    /// The same options for another process.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args = vec![
            format!("--policy={}", self.policy),
            format!("--slots={}", self.slots),
            format!("--workers={}", self.workers),
            format!("--locality-wait-ms={}", self.locality_wait_ms),
        ];
        if let Some(tasks) = self.user_tasks_max {
            args.push(format!("--user-tasks-max={tasks}"));
        }
        if let Some(address) = self.metrics {
            args.push(format!("--metrics={address}"));
        }
        if !self.resource_names.is_empty() {
            args.push(format!(
                "--resource-names={}",
                self.resource_names.join(",")
            ));
        }
        args.into_iter().map(OsString::from).collect()
    }

    /// What resources are called.
    pub fn resource_names(&self) -> &[String] {
        &self.resource_names
    }
}

/// Options of `inband falcon scheduler`.
#[derive(Debug, Args)]
pub struct SchedulerArgs {
    /// Where it listens.
    #[arg(long, default_value_t = DEFAULT_ADDRESS, value_name = "ADDR:PORT", value_parser = address)]
    listen: SocketAddrV4,
    /// The cluster's key file (`inband key new` makes one).
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Listen beyond loopback without a key: whoever can send packets to the scheduler can run commands on its workers.
    #[arg(long, conflicts_with = "key_file")]
    no_key: bool,
    /// Where its role runs: udp (in this process), xdp, xdp-generic or auto.
    #[arg(long, visible_alias = "backend", default_value_t = Dataplane::Udp)]
    dataplane: Dataplane,
    /// The interface that has the address; xdp and xdp-generic attach to it.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Answer `inband up falcon` at this socket.
    #[arg(long, value_name = "PATH", hide = true)]
    socket: Option<PathBuf>,
    #[command(flatten)]
    options: SchedulerOptions,
}

/// Run until told to stop.
pub fn scheduler(args: &SchedulerArgs) -> Result<()> {
    let falcon = args.options.config()?;
    let told = Told::listen()?;
    let key_file = args.key_file.as_deref().map(KeyFile::load).transpose()?;
    let (keys, digest) = opened(key_file.as_ref());
    let listen = [*args.listen.ip()];
    must_be_safe("scheduler", keys.as_ref(), args.no_key, &listen)?;
    let mut node = SchedulerNode::open(scheduler_node::Config {
        falcon,
        dataplane: args.dataplane,
        interface: args.interface.clone(),
        resource_names: args.options.resource_names.clone(),
        keys,
        digest,
        ..scheduler_node::Config::new(args.listen)
    })?;
    let mut desk = Desk::new(key_file.as_ref());
    if let Some(address) = args.options.metrics {
        let failed = || format!("--metrics: cannot listen at {address}");
        let listener = TcpListener::bind(address).with_context(failed)?;
        let ask = desk.asker(node.waker());
        let encode = move || metrics::encode(&ask().context(BUSY)?);
        crate::metrics::serve(listener, || false, encode)?;
    }
    let _control = match &args.socket {
        Some(path) => Some(
            desk.serve(path, node.waker())
                .with_context(|| format!("--socket: cannot listen at {}", path.display()))?,
        ),
        None => None,
    };
    tracing::info!("scheduler: listens at {}", node.address());
    while !told.drains() && !told.stops() {
        node.turn()?;
        desk.answer(&node);
    }
    tracing::info!("scheduler: stopped");
    Ok(())
}

/// Where others ask the scheduler's thread how it is.
struct Desk {
    keys: Option<KeyStatus>,
    asks: Sender<Sender<SchedulerStatus>>,
    asked: Receiver<Sender<SchedulerStatus>>,
    /// When so many tasks had been given.
    samples: VecDeque<(Instant, u64)>,
}

impl Desk {
    fn new(key_file: Option<&KeyFile>) -> Desk {
        let (asks, asked) = channel();
        let status = |file: &KeyFile| KeyStatus {
            active: file.active(),
            accepted: file.ids(),
        };
        Desk {
            keys: key_file.map(status),
            asks,
            asked,
            samples: VecDeque::new(),
        }
    }

    fn serve(&self, path: &std::path::Path, waker: Arc<Waker>) -> std::io::Result<Server> {
        let ask = self.asker(waker);
        let handle = move |SchedulerRequest::Status| match ask() {
            Some(status) => SchedulerReply::Status(Box::new(status)),
            None => SchedulerReply::Error {
                message: BUSY.into(),
            },
        };
        Server::start(path, handle, |message| SchedulerReply::Error { message })
    }

    /// Asks the scheduler's thread how it is, from any thread. `None`: it does not answer in time.
    fn asker(&self, waker: Arc<Waker>) -> impl Fn() -> Option<SchedulerStatus> + Send + Sync {
        let asks = Mutex::new(self.asks.clone());
        move || {
            let (answer, answered) = channel();
            let asks = asks.lock().unwrap_or_else(PoisonError::into_inner).clone();
            asks.send(answer).ok()?;
            waker.wake().ok()?;
            answered.recv_timeout(STATUS_LIMIT).ok()
        }
    }

    /// Keep count, and answer who has asked.
    fn answer(&mut self, node: &SchedulerNode) {
        let is_time = |(at, _): &(Instant, u64)| at.elapsed() >= SAMPLE_INTERVAL;
        if self.samples.back().is_none_or(is_time) {
            if self.samples.len() == SAMPLES {
                self.samples.pop_front();
            }
            self.samples.push_back((Instant::now(), node.given()));
        }
        while let Ok(asker) = self.asked.try_recv() {
            let status = node.status();
            let rate = self.given_per_s(status.given);
            let keys = self.keys.clone();
            // It may have given up.
            let _ = asker.send(SchedulerStatus::of(status, node.address(), rate, keys));
        }
    }

    fn given_per_s(&self, given: u64) -> f64 {
        let Some((at, before)) = self.samples.front() else {
            return 0.0;
        };
        let elapsed_s = at.elapsed().as_secs_f64();
        if elapsed_s < SAMPLE_INTERVAL.as_secs_f64() / 2.0 {
            return 0.0;
        }
        given.saturating_sub(*before) as f64 / elapsed_s
    }
}
