//! Encodes and decodes the packets of clients and executors.

use std::net::SocketAddrV4;

use crate::dataplane::wire::{self, flag, Description, Header, Task, Type};
use inband_ground::auth::{Digest, Gate, Keys};
use serde::{Deserialize, Serialize};

use crate::message::{SubmitReply, ToClient, ToExecutor};
use crate::registry::{Register, Registered};
use crate::resources::ResourceNames;
use crate::task::{Attempt, Entry, TaskId};

/// The only set of a scheduler with this configuration.
pub(crate) const SET: u16 = 0;

/// An executor of the worker at this address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The worker's address.
    pub address: SocketAddrV4,
    /// The executor's number within the worker, from 0.
    pub executor: u32,
}

/// Messages between hosts that do not involve the scheduler's role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostMessage {
    /// From a worker to the scheduler's process.
    Register(Register),
    /// From the scheduler's process to a worker.
    Registered(u64, Registered),
    /// A client asks the scheduler's process for the cluster's properties.
    AskStatus,
    /// The answer to [`HostMessage::AskStatus`].
    Status(ClusterInfo),
    /// From an executor to a client.
    ToClient(ToClient),
    /// From a client to an executor.
    ToExecutor(ToExecutor),
}

/// A cluster's properties, as the scheduler's process reports them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// Of all workers.
    pub executors: u32,
    pub policy: String,
    /// Resource names, from number 1 on.
    pub resource_names: ResourceNames,
}

/// A task given by the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    pub executor: u32,
    /// The PULL that this answers.
    pub pull_seq: u64,
    /// The task's client.
    pub client: SocketAddrV4,
    pub entry: Entry,
    /// A reply for the client of the SUBMIT whose packet was used for this TASK; the executor must relay it.
    pub relay: Option<(SocketAddrV4, SubmitReply)>,
}

/// The content of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// To a client.
    Reply(SubmitReply),
    /// To an executor.
    Given(Given),
    /// To an executor: a task with a wrong digest.
    Damaged {
        executor: u32,
        /// The PULL that this answers.
        pull_seq: u64,
        /// The scheduler sent it again, so its own copy is damaged.
        is_repeated: bool,
    },
    /// To an executor: there is no task.
    NoTask {
        executor: u32,
        /// The PULL that this answers.
        pull_seq: u64,
    },
    /// To an executor: its registration is not valid.
    NotRegistered {
        /// The executor, as in its PULL.
        executor: u32,
        /// The registration's incarnation, as in its PULL.
        worker_incarnation: u32,
    },
    /// From another host's process, with the executor that sends it, or that it is for. A packet may contain several.
    Host(u32, HostMessage),
}

/// Encodes and decodes packets.
#[derive(Debug)]
pub struct Codec {
    gate: Gate,
    digest: Digest,
    bytes: Vec<u8>,
}

impl Codec {
    /// `gate` has the cluster's keys, if any.
    pub fn new(gate: Gate, digest: Digest) -> Codec {
        let bytes = Vec::new();
        Codec {
            gate,
            digest,
            bytes,
        }
    }

    pub fn set_keys(&mut self, keys: Keys) {
        self.gate.set_keys(keys);
    }

    /// Returns whether a packet may be handled. See [`Gate::admits`].
    pub fn admits(&mut self, packet: &[u8]) -> bool {
        self.gate.admits(packet)
    }

    /// Dropped packets, by reason.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.gate.counters().into_iter()
    }

    /// Signs a packet that was not made by this codec.
    pub fn sign(&self, packet: &mut [u8]) {
        self.gate.sign(packet);
    }

    /// Returns a SUBMIT; without entries it asks for the position of a queue.
    pub fn submit(&mut self, user: u32, submit_seq: u64, queue: u8, entries: &[Entry]) -> &[u8] {
        let header = Header {
            user,
            job: entries.first().map_or(0, |entry| entry.attempt.id.job),
            submit_seq,
            queue,
            ..Header::new(Type::Submit, SET, 0)
        };
        let tasks = entries
            .iter()
            .map(|entry| task_of(entry).sealed(&self.digest));
        let tasks: Vec<Task> = tasks.collect();
        self.emit(&header, &tasks)
    }

    pub fn pull(
        &mut self,
        incarnation: u64,
        executor: u32,
        worker_incarnation: u32,
        pull_seq: u64,
    ) -> &[u8] {
        let header = Header {
            flags: flag::PARK,
            incarnation,
            executor,
            worker_incarnation,
            pull_seq,
            ..Header::new(Type::Pull, SET, 0)
        };
        self.emit(&header, &[])
    }

    /// Returns a single message between hosts. `executor`: the executor that sends it, or that it is for.
    pub fn host(&mut self, executor: u32, message: &HostMessage) -> &[u8] {
        let mut messages = Vec::new();
        Codec::append(executor, message, &mut messages);
        self.together(&messages)
    }

    /// Appends a message between hosts to others, for [`Codec::together`].
    pub fn append(executor: u32, message: &HostMessage, messages: &mut Vec<u8>) {
        let encoded = postcard::to_io(&(executor, message), messages);
        encoded.expect("it has no shape that cannot be encoded, and memory takes it");
    }

    /// Makes a packet of messages between hosts.
    ///
    /// # Panics
    /// If they are longer than a packet.
    pub fn together(&mut self, messages: &[u8]) -> &[u8] {
        self.bytes.clear();
        let digest = self.digest.of(messages);
        wire::emit_host(SET, 0, messages, digest, &mut self.bytes);
        self.gate.sign(&mut self.bytes);
        &self.bytes
    }

    fn emit(&mut self, header: &Header, tasks: &[Task]) -> &[u8] {
        self.bytes.clear();
        wire::emit(header, tasks, &mut self.bytes);
        self.gate.sign(&mut self.bytes);
        &self.bytes
    }

    /// Checks and decodes a packet. Returns its content in order; empty if it is invalid.
    pub fn read(&mut self, packet: &[u8]) -> Vec<Incoming> {
        if !self.gate.admits(packet) {
            return Vec::new();
        }
        self.read_admitted(packet)
    }

    /// Decodes a packet that was already admitted.
    pub fn read_admitted(&self, packet: &[u8]) -> Vec<Incoming> {
        match wire::parse_host(packet) {
            Some((messages, digest)) if self.digest.of(messages) == digest => {
                read_messages(messages)
            }
            Some(_) => Vec::new(),
            None => self.read_of_role(packet).into_iter().collect(),
        }
    }

    fn read_of_role(&self, packet: &[u8]) -> Option<Incoming> {
        let (header, tasks) = wire::parse(packet).ok()?;
        let (executor, pull_seq) = (header.executor, header.pull_seq);
        match header.kind {
            Type::SubmitReply => Some(Incoming::Reply(reply_of(&header))),
            Type::NoTask => Some(Incoming::NoTask { executor, pull_seq }),
            Type::Nack => Some(Incoming::NotRegistered {
                executor,
                worker_incarnation: header.worker_incarnation,
            }),
            Type::Task => {
                let task = tasks.first()?;
                if !task.is_whole(&self.digest) {
                    return Some(Incoming::Damaged {
                        executor,
                        pull_seq,
                        is_repeated: header.has(flag::REPEATED),
                    });
                }
                let is_of_submit = header.has(flag::ORIGIN);
                Some(Incoming::Given(Given {
                    executor,
                    pull_seq,
                    client: task.client,
                    entry: entry_of(&task),
                    relay: is_of_submit.then(|| (header.client, reply_of(&header))),
                }))
            }
            Type::Submit | Type::Pull | Type::Host => None,
        }
    }
}

/// Decodes concatenated messages between hosts, up to the first invalid one.
fn read_messages(mut messages: &[u8]) -> Vec<Incoming> {
    let mut read = Vec::new();
    while !messages.is_empty() {
        let Ok(((executor, message), others)) = postcard::take_from_bytes(messages) else {
            break;
        };
        read.push(Incoming::Host(executor, message));
        messages = others;
    }
    read
}

fn reply_of(header: &Header) -> SubmitReply {
    SubmitReply {
        incarnation: header.incarnation,
        submit_seq: header.submit_seq,
        taken: header.taken,
        queue: header.queue,
        tail: header.tail,
        head: header.head,
        parked: header.has(flag::PARKED),
    }
}

fn task_of(entry: &Entry) -> Task {
    let Attempt { id, attempt } = entry.attempt;
    let desc = Description::new(&entry.desc).expect("the client checks its length");
    Task {
        priority: entry.priority,
        resource: entry.resource,
        worker: entry.worker,
        attempt,
        ..Task::new(id.user, id.job, id.task, desc)
    }
}

fn entry_of(task: &Task) -> Entry {
    let id = TaskId {
        user: task.user,
        job: task.job,
        task: task.task,
    };
    let attempt = task.attempt;
    Entry {
        attempt: Attempt { id, attempt },
        priority: task.priority,
        resource: task.resource,
        worker: task.worker,
        desc: task.desc.as_bytes().to_vec(),
    }
}
