//! A worker whose executors are timers of one thread, which never sleeps: a task starts when its packet is received, and
//! wakes nobody. With it, delays are those of scheduler, network and clients alone.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddrV4;

use anyhow::{bail, Context, Result};
use inband_falcon::clock::Clock;
use inband_falcon::coalescer::Coalescer;
use inband_falcon::dataplane::Falcon;
use inband_falcon::limits::BLOBS_LEN_BYTES_MAX;
use inband_falcon::message::{Outcome, Payload};
use inband_falcon::packets::{Codec, HostMessage, Incoming};
use inband_falcon::task::{Attempt, TaskId};
use inband_falcon::timing::ExecutorTiming;
use inband_falcon::work::Call;
use inband_falcon::worker::{self, Action, Worker};
use inband_flair::clock::boot_time_ns;
use inband_ground::auth::{Digest, Gate};
use inband_ground::socket::HostSocket;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;

use super::host::{begun_and_ended, nap_us};

/// Packets handled before timers are checked.
const BATCH_PACKETS: usize = 16;

pub struct VirtualWorker {
    scheduler: SocketAddrV4,
    clock: Clock,
    worker: Worker,
    socket: HostSocket,
    codec: Codec,
    coalescer: Coalescer,
    /// When the packets of tasks came that do not run yet, on the machine's clock.
    came_ns: HashMap<TaskId, u64>,
    /// When tasks end, on the machine's clock; by executor.
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    begun_ns: Vec<u64>,
}

impl VirtualWorker {
    pub fn open(scheduler: SocketAddrV4, local: SocketAddrV4, executors: u8) -> Result<Self> {
        let clock = Clock::start();
        let config = worker::Config {
            token: rand::random(),
            name: "bench".into(),
            executors,
            resources: 1,
            results_len_bytes_max: BLOBS_LEN_BYTES_MAX,
            timing: ExecutorTiming::default(),
        };
        Ok(VirtualWorker {
            scheduler,
            worker: Worker::new(config, clock.now()),
            clock,
            socket: HostSocket::bind(local)?,
            codec: Codec::new(Gate::of::<Falcon>(None, 1), Digest::PLAIN),
            coalescer: Coalescer::default(),
            came_ns: HashMap::new(),
            ends: BinaryHeap::new(),
            begun_ns: vec![0; usize::from(executors)],
        })
    }

    /// Handles received packets and tasks that end. Never waits.
    pub fn turn(&mut self) -> Result<()> {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        for _ in 0..BATCH_PACKETS {
            let Some((len_bytes, from)) = self.socket.receive(&mut buffer)? else {
                break;
            };
            for incoming in self.codec.read(&buffer[..len_bytes]) {
                if let Incoming::Given(given) = &incoming {
                    let id = given.entry.attempt.id;
                    self.came_ns.entry(id).or_insert_with(boot_time_ns);
                }
                let now = self.clock.now();
                self.worker.on_incoming(now, from, incoming);
                self.act()?;
            }
        }
        while let Some(executor) = self.next_ended() {
            let output = begun_and_ended(self.begun_ns[executor], boot_time_ns());
            let outcome = Outcome::Output(Payload::Inline(output));
            self.worker.finished(self.clock.now(), executor, outcome);
            self.act()?;
        }
        self.worker.tick(self.clock.now());
        self.act()?;
        self.coalescer.flush(&mut self.codec, &self.socket);
        Ok(())
    }

    fn next_ended(&mut self) -> Option<usize> {
        let Reverse((end_ns, executor)) = *self.ends.peek()?;
        (end_ns <= boot_time_ns()).then(|| self.ends.pop())?;
        Some(executor)
    }

    fn act(&mut self) -> Result<()> {
        for action in self.worker.actions() {
            match action {
                Action::Register(register) => {
                    let packet = self.codec.host(0, &HostMessage::Register(register));
                    self.socket.send(packet, self.scheduler);
                }
                Action::Pull(pull) => {
                    let packet = self.codec.pull(
                        pull.scheduler,
                        pull.executor,
                        pull.worker_incarnation,
                        pull.pull_seq,
                    );
                    self.socket.send(packet, self.scheduler);
                }
                Action::Tell {
                    client,
                    executor,
                    message,
                } => {
                    let message = HostMessage::ToClient(message);
                    self.coalescer
                        .send(&mut self.codec, &self.socket, client, executor, &message);
                }
                Action::Run {
                    executor,
                    attempt,
                    work,
                } => self.begin(executor, attempt, &work)?,
                // A nap ends by itself.
                Action::Stop { .. } | Action::Forget(_) => {}
                Action::Store(_) => bail!("a result that is longer than a packet"),
                Action::GiveUp(refusal) => return Err(refusal.into()),
            }
        }
        Ok(())
    }

    fn begin(&mut self, executor: usize, attempt: Attempt, work: &Payload) -> Result<()> {
        let Payload::Inline(work) = work else {
            bail!("work that is longer than a packet");
        };
        let Call::Function { argument, .. } = Call::decode(work)? else {
            bail!("work that is no nap");
        };
        let us = nap_us(&argument).map_err(anyhow::Error::msg)?;
        let came_ns = self.came_ns.remove(&attempt.id).context("no packet")?;
        self.begun_ns[executor] = came_ns;
        self.ends.push(Reverse((came_ns + us * 1000, executor)));
        Ok(())
    }
}
