//! Packets of clients and executors, and what they say.

use std::net::SocketAddrV4;

use crate::dataplane::wire::{self, flag, Description, Header, Task, Type};
use inband_ground::auth::{Digest, Gate};
use serde::{Deserialize, Serialize};

use crate::message::{SubmitReply, ToClient, ToExecutor};
use crate::registry::{Register, Registered};
use crate::resources::ResourceNames;
use crate::task::{Attempt, Entry, TaskId};

/// The scheduler of this configuration is number 0.
pub(crate) const SET: u16 = 0;

/// An executor of a worker at this address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The worker's.
    pub address: SocketAddrV4,
    /// The executor's number there, from 0.
    pub executor: u32,
}

/// What hosts say to each other without the scheduler's role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostMessage {
    /// A worker to the scheduler's process.
    Register(Register),
    /// The scheduler's process to a worker.
    Registered(u64, Registered),
    /// A client asks the scheduler's process what there is.
    AskStatus,
    /// The answer.
    Status(ClusterInfo),
    /// An executor to a client.
    ToClient(ToClient),
    /// A client to an executor.
    ToExecutor(ToExecutor),
}

/// What a scheduler's process tells clients of its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// Of all workers.
    pub executors: u32,
    /// Which task goes to whom, by the policy's name.
    pub policy: String,
    /// From number 1 on.
    pub resource_names: ResourceNames,
}

/// A task that a scheduler gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// To which executor,
    pub executor: u32,
    /// for which of its PULLs.
    pub pull_seq: u64,
    /// Of this client.
    pub client: SocketAddrV4,
    /// Which one.
    pub entry: Entry,
    /// The SUBMIT that brought it was spent: its client is to be told.
    pub relay: Option<(SocketAddrV4, SubmitReply)>,
}

/// What a packet says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// To a client.
    Reply(SubmitReply),
    /// To an executor.
    Given(Given),
    /// To an executor: a task that is not as its client made it.
    Damaged {
        /// Its number.
        executor: u32,
        /// For which of its PULLs.
        pull_seq: u64,
        /// It comes again: that is how the scheduler has it.
        is_repeated: bool,
    },
    /// To an executor: there is none.
    NoTask {
        /// Its number.
        executor: u32,
        /// For which of its PULLs.
        pull_seq: u64,
    },
    /// To an executor: it is not registered so.
    NotRegistered {
        /// Its number, and
        executor: u32,
        /// the number's turn, as its PULL had them.
        worker_incarnation: u32,
    },
    /// Of another host's process. The executor that it comes from, or is for. A packet may say several.
    Host(u32, HostMessage),
}

/// Makes packets, and reads them.
#[derive(Debug)]
pub struct Codec {
    gate: Gate,
    digest: Digest,
    bytes: Vec<u8>,
}

impl Codec {
    /// With the cluster's keys, if it has any.
    pub fn new(gate: Gate, digest: Digest) -> Codec {
        let bytes = Vec::new();
        Codec {
            gate,
            digest,
            bytes,
        }
    }

    /// May a packet be handled? See [`Gate::admits`].
    pub fn admits(&mut self, packet: &[u8]) -> bool {
        self.gate.admits(packet)
    }

    /// Packets that were not let in, by why.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.gate.counters().into_iter()
    }

    /// Make a packet that was not made here ready to leave.
    pub fn sign(&self, packet: &mut [u8]) {
        self.gate.sign(packet);
    }

    /// A SUBMIT; without entries it asks how far a queue is.
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

    /// A PULL.
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

    /// A message between hosts, alone. `executor`: that it comes from, or is for.
    pub fn host(&mut self, executor: u32, message: &HostMessage) -> &[u8] {
        let mut messages = Vec::new();
        Codec::append(executor, message, &mut messages);
        self.together(&messages)
    }

    /// Put a message between hosts behind others, for [`Codec::together`].
    pub fn append(executor: u32, message: &HostMessage, messages: &mut Vec<u8>) {
        let encoded = postcard::to_io(&(executor, message), messages);
        encoded.expect("it has no shape that cannot be encoded, and memory takes it");
    }

    /// Messages between hosts in one packet.
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

    /// What this packet says, in order; nothing: it is no good.
    pub fn read(&mut self, packet: &[u8]) -> Vec<Incoming> {
        if !self.gate.admits(packet) {
            return Vec::new();
        }
        self.read_admitted(packet)
    }

    /// The same of one that was let in before.
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

/// Messages between hosts that lie one behind the other, up to the first that is none.
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
