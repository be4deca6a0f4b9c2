//! Clients of any kind of cluster: each does one operation at a time and records the outcome.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{anyhow, Result};
use inband_sim::Rng;

use super::history::{Clock, Command, Operation, Outcome, Recorder};
use super::subject::Subject;

/// How long a client waits for an answer. After that the outcome is unknown and the client continues. Where the
/// cluster's own deadline is longer, the run also covers late effects.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// How long a client that cannot connect waits before it retries.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two operations of clients that are not counted among those of the workload.
const COMPANION_PAUSE_US_MAX: u64 = 50_000;
/// More than there are clients.
pub const CLIENTS_MAX: u64 = 1_000;

/// What all clients share.
#[derive(Debug, Clone)]
pub struct Shared {
    pub recorder: Recorder,
    pub next_id: Arc<AtomicU64>,
    pub stop: Arc<AtomicBool>,
}

/// A client of any kind.
pub trait Operate: Send {
    /// Performs one operation. Returns false if it cannot connect.
    fn operate(&mut self) -> bool;
}

pub type Client = Box<dyn Operate>;

/// How an operation ended.
pub enum End {
    Ok(Vec<Option<String>>),
    Failed(String),
    Unknown(String),
}

/// What a client requested, and from which replica.
pub struct Asked {
    /// Operations of different groups have no key in common.
    pub group: String,
    pub call_ns: u64,
    pub commands: Vec<Command>,
    /// The replica that was asked, and the read mode of the connection.
    pub replica: String,
    pub reads: &'static str,
}

/// Records the operations of one client.
#[derive(Debug)]
pub struct Scribe {
    number: usize,
    process: u64,
    shared: Shared,
}

impl Scribe {
    pub fn new(number: usize, shared: Shared) -> Scribe {
        Scribe {
            number,
            process: number as u64,
            shared,
        }
    }

    pub fn now_ns(&self) -> u64 {
        self.clock().now_ns()
    }

    pub fn clock(&self) -> Clock {
        self.shared.recorder.clock
    }

    /// Records an operation that has just ended.
    pub fn write_down(&mut self, asked: Asked, end: &End) -> Outcome {
        let return_ns = self.now_ns();
        let (outcome, replies, error) = match end {
            End::Ok(replies) => (Outcome::Ok, replies.clone(), None),
            End::Failed(why) => (Outcome::Failed, Vec::new(), Some(why.clone())),
            End::Unknown(why) => (Outcome::Unknown, Vec::new(), Some(why.clone())),
        };
        self.shared.recorder.operation(Operation {
            id: self.shared.next_id.fetch_add(1, Ordering::Relaxed),
            process: self.process,
            client: self.number,
            group: asked.group,
            call_ns: asked.call_ns,
            return_ns,
            outcome,
            commands: asked.commands,
            replies,
            replica: asked.replica,
            reads: asked.reads,
            error,
        });
        if outcome == Outcome::Unknown {
            self.process += CLIENTS_MAX;
        }
        outcome
    }
}

#[derive(Debug)]
pub struct Workload {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workload {
    /// Starts `clients` clients that together send about `operations_per_s` operations per second.
    pub fn start<S: Subject>(
        cluster: &Arc<S>,
        shared: &Shared,
        clients: usize,
        operations_per_s: u64,
        seed: u64,
    ) -> Result<Workload> {
        let pause_us_max = 2_000_000 * clients as u64 / operations_per_s.max(1);
        let mut threads = Vec::new();
        for number in 0..clients {
            let client = cluster.client(number, shared, seed)?;
            let stop = Arc::clone(&shared.stop);
            let rng = Rng::new(seed, 100_000 + number as u64);
            threads.push(thread::spawn(move || run(client, &stop, rng, pause_us_max)));
        }
        Ok(Workload {
            stop: Arc::clone(&shared.stop),
            threads,
        })
    }

    /// Starts further clients, which use the cluster less.
    pub fn add(&mut self, clients: Vec<Client>, seed: u64) {
        for (number, client) in clients.into_iter().enumerate() {
            let stop = Arc::clone(&self.stop);
            let rng = Rng::new(seed, 300_000 + number as u64);
            let run = move || run(client, &stop, rng, COMPANION_PAUSE_US_MAX);
            self.threads.push(thread::spawn(run));
        }
    }

    /// Stops the clients after their current operations.
    pub fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads {
            thread.join().map_err(|_| anyhow!("a client panicked"))?;
        }
        Ok(())
    }
}

fn run(mut client: Client, stop: &AtomicBool, mut rng: Rng, pause_us_max: u64) {
    while !stop.load(Ordering::Acquire) {
        if !client.operate() {
            thread::sleep(CONNECT_PAUSE);
        }
        thread::sleep(Duration::from_micros(rng.below(pause_us_max.max(1))));
    }
}
