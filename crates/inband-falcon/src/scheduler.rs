//! A scheduler's process next to its role: it registers workers, reports the cluster's properties, and wakes executors
//! that wait although there are tasks.

use std::net::SocketAddrV4;

use crate::dataplane::wire::{self, flag, Header, Type};
use crate::dataplane::{FalconConfig, FalconRegisters, Policy};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;

use crate::packets::{ClusterInfo, HostMessage};
use crate::registry::{self, Change, Registry};
use crate::resources::ResourceNames;
use crate::timing::{Nanos, MS};

/// The scheduler's node id in packets. Clients and executors use 0.
pub const NODE: u8 = 1;
/// The only set of its role.
pub const SET: usize = crate::packets::SET as usize;
/// Maximum executors woken after a packet, besides its own; the others pull again soon.
const WAKES_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Sizes and policy of the role.
    pub falcon: FalconConfig,
    /// Drawn at its start; unique.
    pub incarnation: u64,
    /// A worker that is silent for this long is removed.
    pub worker_lease_ns: Nanos,
    pub resource_names: ResourceNames,
}

/// The registers passed to its methods are its role's, which may be handling packets meanwhile.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    registry: Registry<SocketAddrV4>,
}

impl Scheduler {
    /// Creates a scheduler without workers.
    pub fn new(config: Config) -> Scheduler {
        let pull_ms = match config.falcon.policy {
            Policy::Locality => config.falcon.locality_wait_ns.div_ceil(MS) as u32,
            _ => 0,
        };
        let workers_max = config.falcon.workers;
        Scheduler {
            registry: Registry::new(workers_max, config.worker_lease_ns, pull_ms),
            config,
        }
    }

    /// See [`Config::incarnation`].
    pub fn incarnation(&self) -> u64 {
        self.config.incarnation
    }

    /// See [`Config::resource_names`].
    pub fn resource_names(&self) -> &ResourceNames {
        &self.config.resource_names
    }

    /// Returns the workers and their numbers.
    pub fn workers(&self) -> impl Iterator<Item = (u16, &registry::Worker<SocketAddrV4>)> {
        self.registry.workers()
    }

    /// Returns when to call [`Scheduler::tick`] next.
    pub fn due(&self) -> Nanos {
        self.registry.due()
    }

    /// Handles expired timers.
    pub fn tick(&mut self, now: Nanos, registers: &FalconRegisters) {
        for change in self.registry.tick(now) {
            write(change, registers);
        }
    }

    /// Handles a message from another process. Returns the answer, if the message is for a scheduler.
    pub fn on_message(
        &mut self,
        now: Nanos,
        from: SocketAddrV4,
        message: HostMessage,
        registers: &FalconRegisters,
    ) -> Option<HostMessage> {
        match message {
            HostMessage::Register(said) => {
                let (answer, change) = self.registry.on_register(now, from, said);
                if let Some(change) = change {
                    write(change, registers);
                }
                Some(HostMessage::Registered(self.config.incarnation, answer))
            }
            HostMessage::AskStatus => {
                let executors = self.workers().map(|(_, w)| u32::from(w.said.executors));
                Some(HostMessage::Status(ClusterInfo {
                    executors: executors.sum(),
                    policy: self.config.falcon.policy.to_string(),
                    resource_names: self.config.resource_names.clone(),
                }))
            }
            _ => None,
        }
    }
}

fn write(change: Change, registers: &FalconRegisters) {
    match change {
        Change::Add {
            worker,
            incarnation,
            resources,
        } => registers.register(SET, usize::from(worker), incarnation, resources),
        Change::Remove { worker } => registers.unregister(SET, usize::from(worker)),
    }
}

/// Wakes executors that wait although a queue has tasks: acts as if the queue's client asked for each of them, without
/// its packets.
///
/// Only for a role in user space. In the kernel each packet yields only one packet, so clients do ask.
#[derive(Debug)]
pub struct Waking {
    asks: Vec<u8>,
    left: usize,
}

impl Waking {
    /// Starts waking if this answer of the role says that executors wait; removes that flag from the answer.
    pub fn of(answer: &mut [u8]) -> Option<Waking> {
        if wire::take_flags(answer, flag::PARKED) == 0 {
            return None;
        }
        let (header, _) = wire::parse(answer).ok()?;
        let asks = Header {
            queue: header.queue,
            ..Header::new(Type::Submit, SET as u16, 0)
        };
        let mut waking = Waking {
            asks: Vec::new(),
            left: WAKES_MAX,
        };
        wire::emit(&asks, &[], &mut waking.asks);
        Some(waking)
    }

    /// Puts the next packet for the role into this buffer and returns its length. If the role's result is for an
    /// executor, pass it to [`Waking::woken`]; otherwise stop.
    pub fn ask(&mut self, buffer: &mut [u8; PACKET_LEN_MAX_BYTES]) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let len_bytes = self.asks.len();
        buffer[..len_bytes].copy_from_slice(&self.asks);
        Some(len_bytes)
    }

    /// Prepares this TASK for an executor that was waiting.
    pub fn woken(&mut self, task: &mut [u8]) {
        // No client has asked, so there is none to be told.
        let flags = wire::take_flags(task, flag::PARKED | flag::ORIGIN);
        if flags & flag::PARKED == 0 {
            self.left = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::{FalconSwitch, Verdict};
    use crate::packets::{Codec, Incoming};
    use crate::registry::Register;
    use crate::task::{Attempt, Entry, TaskId};
    use inband_ground::auth::{Digest, Gate};

    const EXECUTORS: u8 = 3;

    fn address(port: u16) -> SocketAddrV4 {
        SocketAddrV4::new([10, 0, 0, 1].into(), port)
    }

    fn scheduler(falcon: FalconConfig) -> Scheduler {
        Scheduler::new(Config {
            falcon,
            incarnation: 7,
            worker_lease_ns: 100,
            resource_names: ResourceNames::default(),
        })
    }

    fn register() -> HostMessage {
        HostMessage::Register(Register {
            token: 1,
            name: "worker".into(),
            executors: EXECUTORS,
            resources: 1,
            leaves: false,
        })
    }

    #[test]
    fn workers_are_written_into_the_registers_until_they_are_silent() {
        let falcon = FalconConfig::default();
        let switch = FalconSwitch::new(NODE, falcon, 7);
        let mut scheduler = scheduler(falcon);
        let answer = scheduler.on_message(0, address(1), register(), switch.registers());
        assert!(matches!(answer, Some(HostMessage::Registered(7, _))));
        let incarnation = || switch.registers().worker(SET, 0).incarnation;
        assert_eq!(incarnation(), 1);
        let asked = HostMessage::AskStatus;
        let answer = scheduler.on_message(0, address(9), asked, switch.registers());
        let Some(HostMessage::Status(said)) = answer else {
            panic!("{answer:?} is not an answer");
        };
        assert_eq!(
            (said.executors, said.policy.as_str()),
            (EXECUTORS.into(), "fifo")
        );
        assert_eq!(scheduler.due(), 100);
        scheduler.tick(99, switch.registers());
        assert_eq!(incarnation(), 1);
        scheduler.tick(100, switch.registers());
        assert_eq!((incarnation(), scheduler.workers().count()), (0, 0));
        let answered = scheduler.on_message(100, address(9), answer_of(), switch.registers());
        assert_eq!(answered, None);
    }

    fn answer_of() -> HostMessage {
        HostMessage::Status(ClusterInfo {
            executors: 1,
            policy: "fifo".into(),
            resource_names: ResourceNames::default(),
        })
    }

    #[test]
    fn one_submit_wakes_as_many_executors_as_it_has_tasks() {
        let falcon = FalconConfig::default();
        let switch = FalconSwitch::new(NODE, falcon, 7);
        scheduler(falcon).on_message(0, address(1), register(), switch.registers());
        let mut codec = Codec::new(Gate::of::<crate::dataplane::Falcon>(None, 1), Digest::PLAIN);
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        let mut handle = |packet: &[u8], from| {
            buffer[..packet.len()].copy_from_slice(packet);
            let (verdict, _, len_bytes) = switch.handle(&mut buffer, packet.len(), from, 1);
            (verdict, buffer[..len_bytes].to_vec())
        };
        for executor in 0..EXECUTORS.into() {
            let (verdict, _) = handle(codec.pull(7, executor, 1, 1), address(1));
            assert_eq!(verdict, Verdict::Drop, "it is parked");
        }
        let entry = |task| {
            let (user, job) = (1, 1);
            Entry {
                attempt: Attempt {
                    id: TaskId { user, job, task },
                    attempt: 1,
                },
                priority: 0,
                resource: 0,
                worker: None,
                desc: vec![1],
            }
        };
        let tasks: Vec<Entry> = (0..EXECUTORS.into()).map(entry).collect();
        let (verdict, mut first) = handle(codec.submit(1, 1, 0, &tasks), address(9));
        assert_eq!(verdict, Verdict::ToExecutor(address(1)));
        let mut waking = Waking::of(&mut first).expect("others wait");
        assert!(Waking::of(&mut first).is_none(), "that is told once");
        let mut given = vec![(first, true)];
        let mut asks = [0; PACKET_LEN_MAX_BYTES];
        while let Some(len_bytes) = waking.ask(&mut asks) {
            let (verdict, mut task) = handle(&asks[..len_bytes], address(2));
            assert_eq!(verdict, Verdict::ToExecutor(address(1)));
            waking.woken(&mut task);
            given.push((task, false));
        }
        assert_eq!(given.len(), usize::from(EXECUTORS));
        for (number, (mut packet, is_of_client)) in (0..).zip(given) {
            codec.sign(&mut packet);
            let read = codec.read(&packet);
            let [Incoming::Given(given)] = &read[..] else {
                panic!("{read:?} is no TASK");
            };
            assert_eq!(given.entry.attempt.id.task, number);
            assert_eq!(given.relay.is_some(), is_of_client);
        }
    }
}
