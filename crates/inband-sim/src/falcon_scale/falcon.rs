//! Falcon with the real role. Clients and executors do what the real ones do when nothing is lost.

use std::net::{Ipv4Addr, SocketAddrV4};

use inband_falcon::dataplane::wire::{self, flag, Description, Header, Task, Type};
use inband_falcon::dataplane::{FalconConfig, FalconSwitch, Verdict, EXECUTORS, WORKERS_MAX};
use inband_ground::auth::Digest;
use inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES;

use super::world::{Job, Scheduler, World};
use super::{Nanos, Options, MS};

/// Queue size of a scheduler, large enough never to be full.
const SLOTS: usize = 1 << 20;
/// The values of [`inband_falcon::timing`]: when a client retries after a full queue, and when an executor pulls again
/// after NO_TASK.
const RETRY_NS: Nanos = 10 * MS;
const PULL_AGAIN_NS: Nanos = 5 * MS;
const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 255, 255, 1), 4000);
const WORKER_INCARNATION: u32 = 1;

/// A packet to a scheduler.
#[derive(Debug, Clone, Copy)]
pub enum ToScheduler {
    Submit { user: u32, job: u32, task: u32 },
    Wake { user: u32 },
    Pull { executor: usize },
}

#[derive(Debug)]
pub enum Event {
    /// A packet reaches this scheduler.
    Packet(usize, ToScheduler),
    /// A task reaches an executor, in answer to the PULL of this number.
    Given(usize, u64, u32),
    /// The PULL of this number gets no task.
    NoTask(usize, u64),
    /// A client is told that executors wait although there are tasks.
    Parked(usize, u32),
    Done(usize),
}

struct Executor {
    pull_seq: u64,
    is_idle: bool,
}

struct Switch {
    role: FalconSwitch,
    /// When each core becomes idle.
    busy_until: Vec<Nanos>,
}

pub struct Falcon {
    switches: Vec<Switch>,
    executors: Vec<Executor>,
    executors_of_node: usize,
    packet_ns: Nanos,
    desc: Description,
    buffer: [u8; PACKET_LEN_MAX_BYTES],
    bytes: Vec<u8>,
}

impl Falcon {
    pub fn new(options: &Options, schedulers: usize, cores: usize, packet_ns: Nanos) -> Falcon {
        let workers = options.nodes.div_ceil(schedulers);
        assert!(workers <= WORKERS_MAX && options.executors <= EXECUTORS);
        let config = FalconConfig {
            slots: SLOTS,
            workers,
            // Users are counted, but the limit is never reached.
            user_tasks_max: SLOTS as u32 - 1,
            ..FalconConfig::default()
        };
        let switch = |number: usize| {
            let role = FalconSwitch::new(1, config, 1 + number as u64);
            for worker in 0..workers {
                role.registers().register(0, worker, WORKER_INCARNATION, 1);
            }
            Switch {
                role,
                busy_until: vec![0; cores],
            }
        };
        let executor = || Executor {
            pull_seq: 1,
            is_idle: true,
        };
        Falcon {
            switches: (0..schedulers).map(switch).collect(),
            executors: std::iter::repeat_with(executor)
                .take(options.executors_in_all())
                .collect(),
            executors_of_node: options.executors,
            packet_ns,
            desc: Description::new(b"10 ms").expect("it is short"),
            buffer: [0; PACKET_LEN_MAX_BYTES],
            bytes: Vec::new(),
        }
    }

    /// Returns the scheduler of an executor, and the executor's number there.
    fn place(&self, executor: usize) -> (usize, u32) {
        let (node, own) = (
            executor / self.executors_of_node,
            executor % self.executors_of_node,
        );
        let worker = node / self.switches.len();
        (
            node % self.switches.len(),
            (worker * EXECUTORS + own) as u32,
        )
    }

    fn executor_of(&self, scheduler: usize, number: u32) -> usize {
        let (worker, own) = (number as usize / EXECUTORS, number as usize % EXECUTORS);
        (worker * self.switches.len() + scheduler) * self.executors_of_node + own
    }

    fn scheduler_of(&self, user: u32) -> usize {
        user as usize % self.switches.len()
    }

    fn pull(&self, now: Nanos, executor: usize, world: &mut World<Event>) {
        let (scheduler, _) = self.place(executor);
        let packet = ToScheduler::Pull { executor };
        world.plan(
            now + world.delays.to_scheduler_ns,
            Event::Packet(scheduler, packet),
        );
    }

    /// Encodes the packet into the buffer and returns its source address.
    fn emit(&mut self, scheduler: usize, packet: ToScheduler) -> SocketAddrV4 {
        self.bytes.clear();
        let header = Header::new(Type::Submit, 0, 0);
        match packet {
            ToScheduler::Submit { user, job, task } => {
                let header = Header {
                    user,
                    job,
                    ..header
                };
                let task = Task::new(user, job, task, self.desc).sealed(&Digest::PLAIN);
                wire::emit(&header, &[task], &mut self.bytes);
                CLIENT
            }
            ToScheduler::Wake { user } => {
                wire::emit(&Header { user, ..header }, &[], &mut self.bytes);
                CLIENT
            }
            ToScheduler::Pull { executor } => {
                let (_, number) = self.place(executor);
                let header = Header {
                    flags: flag::PARK,
                    incarnation: self.switches[scheduler].role.incarnation(),
                    executor: number,
                    worker_incarnation: WORKER_INCARNATION,
                    pull_seq: self.executors[executor].pull_seq,
                    ..Header::new(Type::Pull, 0, 0)
                };
                wire::emit(&header, &[], &mut self.bytes);
                let node = (executor / self.executors_of_node) as u32;
                SocketAddrV4::new(Ipv4Addr::from(0x0a00_0000 + node), 5000)
            }
        }
    }

    fn on_packet(&mut self, now: Nanos, at: usize, packet: ToScheduler, world: &mut World<Event>) {
        let from = self.emit(at, packet);
        let len_bytes = self.bytes.len();
        self.buffer[..len_bytes].copy_from_slice(&self.bytes);
        let switch = &mut self.switches[at];
        let core = switch.busy_until.iter_mut().min();
        let busy_until = core.expect("a scheduler has a core");
        *busy_until = now.max(*busy_until) + self.packet_ns;
        let leaves_at = *busy_until;
        let (verdict, _, len_bytes) = switch.role.handle(&mut self.buffer, len_bytes, from, now);
        if verdict == Verdict::Drop {
            return; // it waits
        }
        let (header, tasks) =
            wire::parse(&self.buffer[..len_bytes]).expect("the role makes good packets");
        let arrives_at = leaves_at + world.delays.to_scheduler_ns;
        let given = tasks.iter().next().map(|task| task.task);
        let executor = self.executor_of(at, header.executor);
        let mut heard_at = arrives_at;
        match (header.kind, packet) {
            (Type::Task, _) => {
                let given = given.expect("a TASK carries one");
                world.plan(arrives_at, Event::Given(executor, header.pull_seq, given));
                // The executor tells the client.
                heard_at += world.delays.to_host_ns;
            }
            (Type::NoTask, _) => world.plan(arrives_at, Event::NoTask(executor, header.pull_seq)),
            (Type::SubmitReply, ToScheduler::Submit { .. }) if header.taken == 0 => {
                world.plan(leaves_at + RETRY_NS, Event::Packet(at, packet));
            }
            (Type::SubmitReply, _) => {}
            (kind, _) => unreachable!("{kind:?} was asked for by nobody"),
        }
        if let (ToScheduler::Submit { user, .. }, true) = (packet, header.has(flag::PARKED)) {
            world.plan(heard_at, Event::Parked(at, user));
        }
    }

    fn on_given(
        &mut self,
        now: Nanos,
        of: usize,
        pull_seq: u64,
        task: u32,
        world: &mut World<Event>,
    ) {
        let executor = &mut self.executors[of];
        assert!(
            executor.is_idle && executor.pull_seq == pull_seq,
            "it has one"
        );
        executor.is_idle = false;
        let done_at = world.begin_task(now, task);
        world.plan(done_at, Event::Done(of));
    }
}

impl Scheduler for Falcon {
    type Event = Event;

    fn begin(&mut self, world: &mut World<Event>) {
        for executor in 0..self.executors.len() {
            self.pull(0, executor, world);
        }
    }

    fn submit(&mut self, now: Nanos, job: &Job, world: &mut World<Event>) {
        let (user, scheduler) = (job.user, self.scheduler_of(job.user));
        for task in job.tasks.clone() {
            let job = job.number;
            let packet = ToScheduler::Submit { user, job, task };
            world.plan(
                now + world.delays.to_scheduler_ns,
                Event::Packet(scheduler, packet),
            );
        }
    }

    fn on(&mut self, now: Nanos, event: Event, world: &mut World<Event>) {
        match event {
            Event::Packet(at, packet) => self.on_packet(now, at, packet, world),
            Event::Given(executor, pull_seq, task) => {
                self.on_given(now, executor, pull_seq, task, world);
            }
            Event::NoTask(executor, pull_seq) => {
                if self.executors[executor].is_idle && self.executors[executor].pull_seq == pull_seq
                {
                    self.pull(now + PULL_AGAIN_NS, executor, world);
                }
            }
            Event::Parked(at, user) => {
                let packet = Event::Packet(at, ToScheduler::Wake { user });
                world.plan(now + world.delays.to_scheduler_ns, packet);
            }
            Event::Done(executor) => {
                self.executors[executor].is_idle = true;
                self.executors[executor].pull_seq += 1;
                self.pull(now, executor, world);
            }
        }
    }
}
