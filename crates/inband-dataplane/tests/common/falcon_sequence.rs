//! A sequence of packets to a Falcon scheduler, derived from bytes of a generator or a fuzzer. The fuzzer includes this
//! file, so that its findings can be replayed on the kernel.
//!
//! A record of 16 bytes defines a packet. Most are packets as clients and executors send them; a few have wild values
//! or are damaged.

use std::net::{Ipv4Addr, SocketAddrV4};

use inband_falcon::dataplane::wire::{emit, flag, Description, Header, Task, Type, TASKS_MAX};
use inband_falcon::dataplane::{FalconConfig, FalconRegisters, Policy};
use inband_ground::auth::Digest;
use inband_paxos::dataplane::wire::{HEADER_LEN_BYTES, PACKET_LEN_MAX_BYTES};

/// Bytes per step.
pub const RECORD_LEN_BYTES: usize = 16;
/// The bytes that define a step.
pub type Record = [u8; RECORD_LEN_BYTES];

/// The scheduler's node id.
pub const NODE: u8 = 2;
pub const INCARNATION: u64 = 77;
/// Workers that pull, and their executors.
const WORKERS: [usize; 3] = [0, 1, 69];
/// Phases with many tasks alternate with phases with few; this is the length of each.
const PHASE_STEPS: u64 = 200;
const EXECUTORS: [u32; 6] = [0, 1, 63, 64, 69 * 64 + 3, 69 * 64 + 63];

/// Sizes of the scheduler under test.
pub fn config(policy: Policy) -> FalconConfig {
    FalconConfig {
        sets: 2,
        slots: 8 * policy.queues(),
        workers: 70,
        policy,
        user_tasks_max: 7,
        locality_wait_ns: 40,
    }
}

/// A packet with its arrival data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Step {
    /// A worker to register before the packet arrives: set, worker, incarnation, resources.
    pub register: Option<(usize, usize, u32, u64)>,
    pub packet: Vec<u8>,
    pub from: SocketAddrV4,
    pub now_ns: u64,
}

impl Step {
    /// Registers the worker, as the scheduler's process does.
    pub fn register_at(&self, registers: &FalconRegisters) {
        match self.register {
            Some((set, worker, 0, _)) => registers.unregister(set, worker),
            Some((set, worker, incarnation, resources)) => {
                registers.register(set, worker, incarnation, resources);
            }
            None => {}
        }
    }
}

/// The state of a sequence.
#[derive(Default)]
pub struct Sequence {
    now_ns: u64,
    steps: u64,
    tasks: u32,
    /// The registered incarnation of each worker; 0: not registered.
    registered: [u32; WORKERS.len()],
    last_incarnation: u32,
    pull_seq: [u64; EXECUTORS.len()],
}

impl Sequence {
    /// Decodes a record.
    pub fn step(&mut self, record: &Record) -> Step {
        self.now_ns += u64::from(record[3] / 16);
        self.steps += 1;
        // Queues fill up in one phase, and executors wait in the next.
        let submits = if self.steps / PHASE_STEPS % 2 == 0 {
            150
        } else {
            10
        };
        let register = self.register(record);
        let mut packet = match record[0] {
            byte if byte < submits => self.submit(record),
            ..250 => self.pull(record),
            byte => {
                let kind = Type::ALL[usize::from(byte) % Type::ALL.len()];
                bytes(&Header::new(kind, u16::from(record[2] % 2), 9), &[])
            }
        };
        damage(record, &mut packet);
        let port = 1000 + u16::from(record[10] % 4);
        Step {
            register,
            packet,
            from: SocketAddrV4::new(Ipv4Addr::new(10, 9, 8, 9 + record[10] % 3), port),
            now_ns: self.now_ns,
        }
    }

    /// Set 0 only: no executor pulls from the other one.
    fn register(&mut self, record: &Record) -> Option<(usize, usize, u32, u64)> {
        let at = usize::from(record[11]) % WORKERS.len();
        let new = self.registered[at] == 0 && record[12] < 100;
        if !new && record[12] < 253 {
            return None;
        }
        self.last_incarnation += 1;
        let incarnation = if record[12] == 255 {
            0
        } else {
            self.last_incarnation
        };
        self.registered[at] = incarnation;
        Some((0, WORKERS[at], incarnation, u64::from(record[14] % 8)))
    }

    fn pull(&mut self, record: &Record) -> Vec<u8> {
        let at = usize::from(record[1]) % EXECUTORS.len();
        let worker = WORKERS
            .iter()
            .position(|w| *w == EXECUTORS[at] as usize / 64);
        let mut header = Header::new(Type::Pull, u16::from(record[4] == 3), 0);
        header.executor = EXECUTORS[at];
        header.worker_incarnation = self.registered[worker.expect("a worker")];
        header.incarnation = INCARNATION;
        self.pull_seq[at] += u64::from(record[2] < 150);
        header.pull_seq = match record[2] {
            0..240 => self.pull_seq[at],
            _ => self.pull_seq[at].wrapping_sub(u64::from(record[5] % 4)),
        };
        if record[6] < 170 {
            header.flags = flag::PARK;
        }
        match record[4] {
            0 => header.incarnation += 1,
            1 => header.worker_incarnation += 1,
            2 => header.executor = u32::from_le_bytes([record[5], record[7], record[8], 0]),
            _ => {}
        }
        bytes(&header, &[])
    }

    fn submit(&mut self, record: &Record) -> Vec<u8> {
        let count = match record[2] {
            0..60 => 0,
            byte @ 60..240 => 1 + usize::from(byte) % 4,
            _ => TASKS_MAX,
        };
        let mut header = Header::new(Type::Submit, u16::from(record[4] < 8), 0);
        // With FAIR, some of these users share a queue.
        header.user = u32::from(record[5] % 6) + 64 * u32::from(record[5] / 128);
        header.job = u32::from(record[6]);
        (header.queue, header.submit_seq) = (record[7], u64::from(record[8]));
        let tasks: Vec<Task> = (0..count)
            .map(|n| {
                self.tasks += 1;
                let turned = |at: usize| record[(at + n) % RECORD_LEN_BYTES];
                let desc = [turned(9); 64];
                let desc = Description::new(&desc[..usize::from(turned(1) % 65)]).expect("short");
                let task = Task {
                    priority: turned(7) % 8 + u8::from(record[9] == 0),
                    resource: turned(8) % 4 + 63 * u8::from(record[9] == 1),
                    worker: [None, Some(0), Some(1), Some(69), Some(u16::from(turned(6)))]
                        [usize::from(turned(10)) % 5],
                    ..Task::new(header.user, header.job, self.tasks, desc)
                };
                task.sealed(&Digest::PLAIN)
            })
            .collect();
        bytes(&header, &tasks)
    }
}

fn bytes(header: &Header, tasks: &[Task]) -> Vec<u8> {
    let mut packet = Vec::new();
    emit(header, tasks, &mut packet);
    packet
}

/// Damages some packets.
fn damage(record: &Record, packet: &mut Vec<u8>) {
    let (how, at) = (record[13], usize::from(record[15]));
    match how {
        0..240 => {}
        240..243 => packet.truncate(at),
        243..246 => packet.truncate(packet.len() - 1),
        246..249 => packet.resize((packet.len() + 1 + at).min(PACKET_LEN_MAX_BYTES), 0xaa),
        _ => packet[at % HEADER_LEN_BYTES] ^= 1 << (how % 8),
    }
}
