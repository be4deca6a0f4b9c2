//! The control plane's messages: a member and a coordinator that receive arbitrary messages, and a replicated state to
//! which arbitrary commands are applied.

use std::net::SocketAddr;
use std::rc::Rc;

use inband_control::configuration::{
    Beginning, Configuration, Identity, Member as Node, NodeId, Parts,
};
use inband_control::coordinator::Coordinator;
use inband_control::member::{Fences, MemberAgent, MemberConfig, NoteError, Notes};
use inband_control::message::{Message, Order};
use inband_control::outbox::Outbox;
use inband_control::registers::RegisterState;
use inband_control::service::{Request, Response};
use inband_control::state::{Command, State};
use inband_control::timing::{Micros, Timing};
use inband_paxos::dataplane::soft::{Geometry, Registers, Roles};
use inband_paxos::host::spread_leaders;
use serde::{de::DeserializeOwned, Serialize};

use crate::input::Input;

const GEOMETRY: Geometry = Geometry {
    partitions: 2,
    ring_slots: 64,
};
const NODES: [NodeId; 3] = [1, 2, 3];

#[derive(Default)]
struct Paper(Fences);

impl Notes for Paper {
    fn fences(&self) -> Fences {
        self.0
    }

    fn note(&mut self, fences: Fences) -> Result<(), NoteError> {
        self.0 = fences;
        Ok(())
    }
}

struct Bench {
    now: Micros,
    state: State,
    coordinator: Coordinator,
    members: Vec<MemberAgent<RegisterState<Rc<Registers>>, Paper>>,
    out: Outbox,
    under_way: Vec<(NodeId, Message)>,
}

/// A sequence of steps.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut bench = Bench {
        now: 1,
        state: State::default(),
        coordinator: Coordinator::new(Timing::default()),
        members: NODES.into_iter().map(member).collect(),
        out: Outbox::new(),
        under_way: Vec::new(),
    };
    bench.apply(&Command::Found(configuration()));
    while !input.is_empty() {
        bench.step(&mut input);
    }
}

fn address(node: NodeId) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, node], 7500))
}

fn configuration() -> Configuration {
    let member = |node: NodeId| Node {
        node,
        name: format!("node/{node}"),
        data: "10.0.0.1:7400".parse().expect("an address"),
        control: address(node),
        parts: Parts {
            acceptor: true,
            replica: true,
            leader: true,
            controller: true,
        },
        identity: Some(Identity(u64::from(node))),
    };
    Configuration {
        epoch: 1,
        revision: 0,
        members: NODES.map(|n| (n, member(n))).into(),
        leaders: spread_leaders(&NODES, GEOMETRY.partitions),
        beginning: Beginning::Fresh(vec![1; GEOMETRY.partitions]),
    }
}

fn member(node: NodeId) -> MemberAgent<RegisterState<Rc<Registers>>, Paper> {
    let roles = Roles {
        acceptor: true,
        ..Roles::default()
    };
    let config = MemberConfig {
        node,
        identity: Identity(u64::from(node)),
        life: 1,
        control: address(node),
        controllers: NODES.map(|n| (n, address(n))).to_vec(),
        settings: String::new(),
        timing: Timing::default(),
    };
    let registers = Rc::new(Registers::new(GEOMETRY, roles));
    let acceptor = RegisterState::new(registers, GEOMETRY);
    MemberAgent::new(config, Some(acceptor), Paper::default())
}

/// Decodes something; whatever decodes must encode to something that decodes to the same.
fn read<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(
    input: &mut Input<'_>,
) -> Option<T> {
    let len_bytes = input.below(1 << 16);
    let read: T = postcard::from_bytes(input.piece(len_bytes)).ok()?;
    let written = postcard::to_stdvec(&read).expect("it can be written");
    assert_eq!(postcard::from_bytes::<T>(&written).as_ref(), Ok(&read));
    Some(read)
}

impl Bench {
    fn step(&mut self, input: &mut Input<'_>) {
        let at = input.below(NODES.len());
        match input.byte() % 8 {
            0 | 1 => {
                if let Some(message) = read::<Message>(input) {
                    self.hear(at, NODES[input.below(NODES.len())], message);
                }
            }
            2 => {
                if let Some(command) = read::<Command>(input) {
                    self.apply(&command);
                }
            }
            3 => {
                let _ = (read::<Request>(input), read::<Response>(input));
            }
            4 => {
                self.now += [1_000, 100_000, 1_000_000, 60_000_000][input.below(4)];
                self.tick();
            }
            5 | 6 if !self.under_way.is_empty() => {
                let which = input.below(256) % self.under_way.len();
                let (from, message) = self.under_way.swap_remove(which);
                self.hear(at, from, message);
            }
            _ => {
                for (from, message) in std::mem::take(&mut self.under_way) {
                    for at in 0..NODES.len() {
                        self.hear(at, from, message.clone());
                    }
                }
            }
        }
    }

    fn apply(&mut self, command: &Command) {
        let before = self.state.clone();
        match self.state.apply(command) {
            Ok(()) => {
                assert!(
                    self.state.highest_epoch >= before.highest_epoch,
                    "epochs only rise"
                );
                let opened = |state: &State| state.opened.as_ref().map_or(0, |c| c.epoch);
                assert!(opened(&self.state) >= opened(&before));
                self.coordinator.on_applied();
            }
            Err(refusal) => {
                assert!(!refusal.to_string().is_empty());
                assert_eq!(self.state, before, "what is refused changes nothing");
            }
        }
    }

    fn tick(&mut self) {
        for (at, node) in NODES.into_iter().enumerate() {
            self.members[at].on_tick(self.now, &mut self.out);
            self.take(node);
        }
        let command = self
            .coordinator
            .on_tick(self.now, &self.state, &mut self.out);
        self.take(NODES[0]);
        if let Some(command) = command {
            self.apply(&command);
        }
    }

    fn take(&mut self, from: NodeId) {
        let messages = self.out.drain().map(|(_, message)| (from, message));
        self.under_way.extend(messages);
        self.under_way.truncate(64);
    }

    fn hear(&mut self, at: usize, from: NodeId, message: Message) {
        let (now, member) = (self.now, &mut self.members[at]);
        match message {
            Message::Report(report) => {
                let command = self
                    .coordinator
                    .on_report(now, report, &self.state, &mut self.out);
                if let Some(command) = command {
                    self.apply(&command);
                }
            }
            Message::Order(order) => {
                let is_enter = matches!(order, Order::Enter(_));
                member.on_order(now, order, &mut self.out);
                assert!(is_enter || member.configuration().is_none_or(|c| c.epoch > 0));
            }
            Message::Pull(pull) => member.on_pull(pull, &mut self.out),
            Message::Pulled { pull, whole, piece } => {
                member.on_pulled(now, from, pull, whole, &piece, &mut self.out);
            }
        }
        self.take(NODES[at]);
    }
}
