//! The simulation's proposers: small, but with the rules of the real ones. They lead a partition (promise, scan, then
//! new values), recover a single instance, or only query (LEARN).

use std::collections::{BTreeMap, BTreeSet};

use inband_paxos::dataplane::round;
use inband_paxos::dataplane::wire::{self, flag, Header, Type};

use crate::configuration::{majority, Configuration, Epoch, NodeId};

/// New values that a leader proposes after what it found.
const NEW_VALUES: u64 = 3;

/// A proposer; its node id is part of its rounds.
pub(super) struct Proposer {
    pub node: NodeId,
    incarnation: u64,
    highest_seen: u64,
    values: u64,
    task: Option<Task>,
}

struct Task {
    epoch: Epoch,
    acceptors: Vec<NodeId>,
    partition: u16,
    round: u64,
    /// For the partition's promise; `None`: recovering a single instance.
    promise: Option<Promise>,
    scan: BTreeMap<u64, Scan>,
}

#[derive(Default)]
struct Promise {
    nodes: BTreeSet<u16>,
    floor: u64,
    highest: u64,
    done: bool,
}

#[derive(Default)]
struct Scan {
    nodes: BTreeSet<u16>,
    best: Option<(u64, Vec<u8>)>,
    done: bool,
}

pub(super) type Packets = Vec<(NodeId, Vec<u8>)>;

impl Proposer {
    pub fn new(node: NodeId) -> Proposer {
        Proposer {
            node,
            incarnation: 1,
            highest_seen: 0,
            values: 0,
            task: None,
        }
    }

    /// A restarted process never uses a round of an earlier one.
    pub fn restart(&mut self) {
        self.incarnation += 1;
        self.highest_seen = 0;
        self.task = None;
    }

    fn header(&self, task: &Task, kind: Type) -> Header {
        let mut header = Header::new(kind, u16::from(self.node), task.epoch);
        header.partition = task.partition;
        header.round = task.round;
        header
    }

    fn to_all(&self, task: &Task, header: &Header, value: &[u8]) -> Packets {
        let mut packet = Vec::new();
        wire::emit(header, value, &mut packet);
        let send = |node: &NodeId| (*node, packet.clone());
        task.acceptors.iter().map(send).collect()
    }

    fn begin(&mut self, configuration: &Configuration, partition: u16) -> Task {
        let round = round::next_above(self.highest_seen, self.incarnation, self.node);
        self.highest_seen = round.expect("few rounds");
        Task {
            epoch: configuration.epoch,
            acceptors: configuration.acceptors(),
            partition,
            round: self.highest_seen,
            promise: None,
            scan: BTreeMap::new(),
        }
    }

    /// Takes over a partition.
    pub fn lead(&mut self, configuration: &Configuration, partition: u16) -> Packets {
        let mut task = self.begin(configuration, partition);
        task.promise = Some(Promise::default());
        let packets = self.to_all(&task, &self.header(&task, Type::Phase1A), &[]);
        self.task = Some(task);
        packets
    }

    pub fn recover(&mut self, configuration: &Configuration, at: (u16, u64)) -> Packets {
        let mut task = self.begin(configuration, at.0);
        task.scan.insert(at.1, Scan::default());
        let packets = self.ask(&task, at.1);
        self.task = Some(task);
        packets
    }

    fn ask(&self, task: &Task, instance: u64) -> Packets {
        let mut header = self.header(task, Type::Phase1A);
        header.flags = flag::SLOT;
        header.instance = instance;
        self.to_all(task, &header, &[])
    }

    fn propose(&self, task: &Task, instance: u64, value: &[u8]) -> Packets {
        let mut header = self.header(task, Type::Phase2A);
        header.flags = flag::RECOVERY;
        header.instance = instance;
        header.digest = wire::digest(value);
        self.to_all(task, &header, value)
    }

    /// Returns a value that no other proposer uses; lengths vary.
    fn new_value(&mut self) -> Vec<u8> {
        self.values += 1;
        let mut value = vec![self.node, self.incarnation as u8];
        value.extend(self.values.to_be_bytes());
        value.resize(10 + (self.values % 5) as usize * 7, 0xaa);
        value
    }

    /// Processes an acceptor's answer.
    pub fn on_packet(&mut self, header: &Header, value: &[u8]) -> Packets {
        if header.kind == Type::Nack {
            self.highest_seen = self.highest_seen.max(header.round);
        }
        let Some(mut task) = self.task.take() else {
            return Packets::new();
        };
        let fits = header.kind == Type::Phase1B
            && (header.epoch, header.round) == (task.epoch, task.round)
            && header.partition == task.partition;
        let packets = match fits {
            true if header.has(flag::SLOT) => self.on_slot(&mut task, header, value),
            true => self.on_promise(&mut task, header),
            false => Packets::new(),
        };
        self.task = Some(task);
        packets
    }

    fn on_promise(&mut self, task: &mut Task, header: &Header) -> Packets {
        let needed = majority(task.acceptors.len());
        let Some(promise) = task.promise.as_mut().filter(|p| !p.done) else {
            return Packets::new();
        };
        promise.nodes.insert(header.node);
        promise.floor = promise.floor.max(header.floor);
        promise.highest = promise.highest.max(header.instance);
        if promise.nodes.len() < needed {
            return Packets::new();
        }
        promise.done = true;
        let (floor, highest) = (promise.floor.max(1), promise.highest);
        let mut packets = Packets::new();
        for instance in floor..=highest {
            task.scan.insert(instance, Scan::default());
            packets.extend(self.ask(task, instance));
        }
        let first_new = (highest + 1).max(floor);
        for instance in first_new..first_new + NEW_VALUES {
            let value = self.new_value();
            packets.extend(self.propose(task, instance, &value));
        }
        packets
    }

    fn on_slot(&mut self, task: &mut Task, header: &Header, value: &[u8]) -> Packets {
        let needed = majority(task.acceptors.len());
        let Some(scan) = task.scan.get_mut(&header.instance).filter(|s| !s.done) else {
            return Packets::new();
        };
        scan.nodes.insert(header.node);
        let is_best = |best: &(u64, Vec<u8>)| best.0 < header.vround;
        if header.has(flag::VOTE) && scan.best.as_ref().is_none_or(is_best) {
            scan.best = Some((header.vround, value.to_vec()));
        }
        if scan.nodes.len() < needed {
            return Packets::new();
        }
        scan.done = true;
        let best = scan.best.take().map(|(_, value)| value);
        let value = best.unwrap_or_else(|| self.new_value());
        self.propose(task, header.instance, &value)
    }

    /// Asks for stored votes.
    pub fn learn(&self, configuration: &Configuration, at: (u16, u64)) -> Packets {
        let mut header = Header::new(Type::Learn, u16::from(self.node), configuration.epoch);
        header.partition = at.0;
        header.instance = at.1;
        let mut packet = Vec::new();
        wire::emit(&header, &[], &mut packet);
        let acceptors = configuration.acceptors();
        acceptors.iter().map(|n| (*n, packet.clone())).collect()
    }
}
