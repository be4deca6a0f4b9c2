//! `inband falcon scheduler`: the process of a scheduler.

use std::collections::VecDeque;
use std::net::{SocketAddrV4, TcpListener};
use std::path::PathBuf;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use inband_cluster::falcon::status::{SchedulerReply, SchedulerRequest, SchedulerStatus};
use inband_cluster::falcon::{parse_address, SchedulerOptions, DEFAULT_ADDRESS};
use inband_falcon::scheduler_node::{self, SchedulerNode};
use inband_host::config::Dataplane;
use inband_host::key_file::KeyFile;
use inband_host::line_json::Server;
use inband_host::live_keys::LiveKeys;
use inband_host::notify::Notifier;
use inband_host::reload::Reload;
use inband_host::signals::{Interrupt, StopRequest};
use mio::Waker;

use super::metrics;
use super::reach::{must_be_safe, opened};

/// Time limit for the scheduler's thread to report its status.
const STATUS_LIMIT: Duration = Duration::from_secs(1);
/// Interval between samples for the rate.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Number of samples kept: one second.
const SAMPLES: usize = 11;

const BUSY: &str = "the scheduler is busy; ask again";

/// Options of `inband falcon scheduler`.
#[derive(Debug, Args)]
pub struct SchedulerArgs {
    /// Address to listen on.
    #[arg(long, default_value_t = DEFAULT_ADDRESS, value_name = "ADDR:PORT", value_parser = parse_address)]
    listen: SocketAddrV4,
    /// The cluster's key file (`inband key new` creates one).
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Listen beyond loopback without a key: anyone who can send packets to the scheduler can run commands on its workers.
    #[arg(long, conflicts_with = "key_file")]
    no_key: bool,
    /// Where its role runs: udp (in this process), xdp, xdp-generic or auto.
    #[arg(long, visible_alias = "backend", default_value_t = Dataplane::Udp)]
    dataplane: Dataplane,
    /// The interface with this address; xdp and xdp-generic attach to it.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Answer `inband up falcon` at this socket.
    #[arg(long, value_name = "PATH", hide = true)]
    socket: Option<PathBuf>,
    #[command(flatten)]
    options: SchedulerOptions,
}

/// Runs until told to stop.
pub fn scheduler(args: &SchedulerArgs) -> Result<()> {
    let falcon = args.options.config()?;
    let stop = StopRequest::listen(Arc::default(), Interrupt::Drains)?;
    let key_file = args.key_file.as_deref().map(KeyFile::load).transpose()?;
    let (keys, digest) = opened(key_file.as_ref());
    let listen = [*args.listen.ip()];
    must_be_safe("scheduler", keys.as_ref(), args.no_key, &listen)?;
    let mut node = SchedulerNode::open(scheduler_node::Config {
        falcon,
        dataplane: args.dataplane,
        interface: args.interface.clone(),
        resource_names: args.options.resource_names().to_vec(),
        keys,
        digest,
        ..scheduler_node::Config::new(args.listen)
    })?;
    let live = LiveKeys::load(args.key_file.as_deref())?;
    let mut desk = Desk::new(live.clone());
    if let Some(address) = args.options.metrics {
        let failed = || format!("--metrics: cannot listen at {address}");
        let listener = TcpListener::bind(address).with_context(failed)?;
        let ask = desk.asker(node.waker());
        let encode = move || metrics::encode(&ask().context(BUSY)?);
        inband_metrics::serve(listener, || false, encode)?;
    }
    let _control = match &args.socket {
        Some(path) => Some(
            desk.serve(path, node.waker())
                .with_context(|| format!("--socket: cannot listen at {}", path.display()))?,
        ),
        None => None,
    };
    tracing::info!("scheduler: listens at {}", node.address());
    let is_over = {
        let stop = stop.clone();
        move || stop.drains() || stop.stops()
    };
    let mut notifier = Notifier::from_environment();
    let for_reload = live.clone();
    Reload::new()
        .with("packet keys", move || for_reload.reload_in_words())
        .start(stop.clone(), notifier.clone(), is_over.clone())?;
    notifier.ready("answers");
    while !is_over() {
        node.turn()?;
        notifier.turned(Instant::now());
        desk.answer(&node);
        if let Some(keys) = live.take() {
            node.set_keys(keys)?;
        }
    }
    notifier.stopping();
    tracing::info!("scheduler: stopped");
    Ok(())
}

/// Where other threads request the scheduler's status.
struct Desk {
    keys: LiveKeys,
    asks: Sender<Sender<SchedulerStatus>>,
    asked: Receiver<Sender<SchedulerStatus>>,
    /// Times and numbers of tasks assigned.
    samples: VecDeque<(Instant, u64)>,
}

impl Desk {
    fn new(keys: LiveKeys) -> Desk {
        let (asks, asked) = channel();
        Desk {
            keys,
            asks,
            asked,
            samples: VecDeque::new(),
        }
    }

    fn serve(&self, path: &std::path::Path, waker: Arc<Waker>) -> std::io::Result<Server> {
        let ask = self.asker(waker);
        let keys = self.keys.clone();
        let handle = move |request| match request {
            SchedulerRequest::ReloadKeys => SchedulerReply::to_reload(&keys),
            SchedulerRequest::Status => match ask() {
                Some(status) => SchedulerReply::Status(Box::new(status)),
                None => SchedulerReply::Error {
                    message: BUSY.into(),
                },
            },
        };
        Server::start(path, handle, |message| SchedulerReply::Error { message })
    }

    /// A function that requests the scheduler's status from any thread. It returns `None` on timeout.
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

    /// Takes a sample, and answers pending requests.
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
            let keys = self.keys.status();
            // The requester may have timed out.
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
