//! The controllers' Raft: a group of three. The fuzzer controls their messages and forges others. Nothing panics; and
//! without forgeries, all apply the same.

use std::collections::BTreeMap;

use inband_control::configuration::NodeId;
use inband_control::raft_node::{self, node_of, Outcome, RaftMessage, RaftNode};
use inband_control::state::Command;
use inband_storage::SimulatedDisk;

use crate::input::Input;

const NODES: [NodeId; 3] = [11, 12, 13];
const UNDER_WAY_MAX: usize = 64;

struct Group {
    disks: Vec<SimulatedDisk>,
    rafts: Vec<RaftNode>,
    under_way: Vec<RaftMessage>,
    applied: BTreeMap<u64, (u64, Command)>,
    tickets: u64,
    has_lies: bool,
}

/// First byte: what is possible. Then steps.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let may_lie = input.byte() % 2 == 1;
    let mut group = Group::new();
    while !input.is_empty() {
        group.step(&mut input, may_lie);
    }
}

fn open(disk: &SimulatedDisk, node: NodeId) -> RaftNode {
    raft_node::open(Box::new(disk.clone()), node, 0x1000).expect("its disk is whole")
}

impl Group {
    fn new() -> Group {
        let disks = vec![(); NODES.len()]
            .into_iter()
            .map(|()| SimulatedDisk::new());
        let disks: Vec<SimulatedDisk> = disks.collect();
        let mut rafts: Vec<RaftNode> = disks
            .iter()
            .zip(NODES)
            .map(|(disk, node)| open(disk, node))
            .collect();
        let founder = rafts.remove(0).found().expect("its disk is empty");
        rafts.insert(0, founder);
        Group {
            disks,
            rafts,
            under_way: Vec::new(),
            applied: BTreeMap::new(),
            tickets: 0,
            has_lies: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>, may_lie: bool) {
        let at = input.below(NODES.len());
        match input.byte() % 12 {
            0..=2 => self.deliver(input),
            3 => {
                for message in std::mem::take(&mut self.under_way) {
                    self.hear(message);
                }
            }
            4 | 5 => {
                for _ in 0..input.below(32) {
                    self.rafts[at].tick();
                    self.advance(at);
                }
            }
            6 => {
                let wanted: Vec<u64> = self.rafts.iter().map(RaftNode::id).collect();
                self.rafts[at].steer_voters(&wanted[..1 + input.below(NODES.len())]);
                self.advance(at);
            }
            7 => {
                self.tickets += 1;
                let to = NODES[input.below(NODES.len())];
                let partition = Some(u32::from(input.byte()));
                let command = Command::MoveLeader { partition, to };
                self.rafts[at].propose(self.tickets, &command);
                self.advance(at);
            }
            8 => {
                self.rafts[at] = open(&self.disks[at], NODES[at]);
                self.advance(at);
            }
            9 => {
                let to = self.rafts[input.below(NODES.len())].id();
                self.rafts[at].hand_over(to);
                self.advance(at);
            }
            _ if may_lie => self.lie(input),
            _ => self.under_way.truncate(input.below(UNDER_WAY_MAX)),
        }
    }

    fn deliver(&mut self, input: &mut Input<'_>) {
        if !self.under_way.is_empty() {
            let which = input.below(256) % self.under_way.len();
            let message = self.under_way.remove(which);
            self.hear(message);
        }
    }

    fn hear(&mut self, message: RaftMessage) {
        let to = node_of(message.to);
        if let Some(at) = NODES.iter().position(|node| *node == to) {
            self.rafts[at].on_message(message);
            self.advance(at);
        }
    }

    fn lie(&mut self, input: &mut Input<'_>) {
        let (from, to) = (input.below(NODES.len()), input.below(NODES.len()));
        let len_bytes = input.below(256);
        if let Ok(mut message) = postcard::from_bytes::<RaftMessage>(input.piece(len_bytes)) {
            self.has_lies = true;
            (message.from, message.to) = (self.rafts[from].id(), self.rafts[to].id());
            self.hear(message);
        }
    }

    fn advance(&mut self, at: usize) {
        let outcome: Outcome = self.rafts[at].advance().expect("its disk works");
        self.under_way.extend(outcome.messages);
        self.under_way.truncate(UNDER_WAY_MAX);
        for applied in outcome.applied {
            let here = (applied.ticket, applied.output.command);
            let there = self.applied.entry(applied.index).or_insert(here.clone());
            assert!(self.has_lies || *there == here, "entry {}", applied.index);
        }
    }
}
