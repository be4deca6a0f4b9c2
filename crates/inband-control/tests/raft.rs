//! Controllers' logs in simulated time, with lost messages and power failures at any operation of any disk.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{catch_unwind, AssertUnwindSafe};

use inband_control::configuration::{Beginning, Configuration, Identity, Member, NodeId, Parts};
use inband_control::raft_node::{self, node_of, Outcome, RaftMessage, RaftNode};
use inband_control::state::{Command, State};
use inband_paxos::host::spread_leaders;
use inband_storage::{Cut, SimulatedDisk};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const NODES: [NodeId; 3] = [11, 12, 13];

struct Host {
    disk: SimulatedDisk,
    raft: Option<RaftNode>,
}

struct Group {
    hosts: BTreeMap<NodeId, Host>,
    network: VecDeque<RaftMessage>,
    random: SmallRng,
    loss_percent: u32,
    /// What was applied at each index of the log, on any host.
    applied: BTreeMap<u64, (u64, Command)>,
    tickets: u64,
    cuts: u32,
}

fn configuration() -> Configuration {
    let member = |node: NodeId| Member {
        node,
        name: format!("node/{node}"),
        data: "10.0.0.1:7400".parse().expect("an address"),
        control: "10.0.0.1:7500".parse().expect("an address"),
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
        leaders: spread_leaders(&NODES, 4),
        beginning: Beginning::Fresh(vec![1; 4]),
    }
}

impl Group {
    /// All hosts are up; the first one has founded the group.
    fn new(seed: u64) -> Group {
        let mut group = Group {
            hosts: BTreeMap::new(),
            network: VecDeque::new(),
            random: SmallRng::seed_from_u64(seed),
            loss_percent: 0,
            applied: BTreeMap::new(),
            tickets: 0,
            cuts: 0,
        };
        for node in NODES {
            let disk = SimulatedDisk::default();
            let host = Host { disk, raft: None };
            group.hosts.insert(node, host);
            group.start(node);
        }
        let founder = group.host(NODES[0]).raft.take().expect("it is up");
        let founder = founder.found().expect("its disk is empty");
        group.host(NODES[0]).raft = Some(founder);
        group
    }

    fn host(&mut self, node: NodeId) -> &mut Host {
        self.hosts.get_mut(&node).expect("a host")
    }

    fn start(&mut self, node: NodeId) {
        let random = self.random.gen();
        let host = self.host(node);
        let storage = Box::new(host.disk.clone());
        host.raft = Some(raft_node::open(storage, node, random).expect("what was synced is there"));
    }

    /// Power fails and returns.
    fn power_cut(&mut self, node: NodeId) {
        self.cuts += 1;
        let cut = match self.random.gen_range(0..3) {
            0 => Cut::Unsynced,
            1 => Cut::Torn,
            _ => Cut::Scattered,
        };
        let disk = self.host(node).disk.clone();
        let random = &mut self.random;
        disk.power_cut(cut, &mut |below| random.gen_range(0..below));
        self.start(node);
    }

    fn wanted(&self) -> Vec<u64> {
        let rafts = self.hosts.values().filter_map(|h| h.raft.as_ref());
        rafts.map(RaftNode::id).collect()
    }

    fn take(&mut self, node: NodeId, outcome: Outcome) {
        for message in outcome.messages {
            if self.random.gen_range(0..100) >= self.loss_percent {
                self.network.push_back(message);
            }
        }
        for applied in outcome.applied {
            let here = (applied.ticket, applied.output.command);
            let there = self.applied.entry(applied.index).or_insert(here.clone());
            assert_eq!(*there, here, "node {node}, entry {}", applied.index);
        }
    }

    fn advance(&mut self, node: NodeId) {
        let Some(raft) = &mut self.host(node).raft else {
            return;
        };
        match raft.advance() {
            Ok(outcome) => self.take(node, outcome),
            Err(_) => self.host(node).raft = None, // its power is off
        }
    }

    /// Some messages arrive, time passes, and the leader proposes.
    fn step(&mut self) {
        for _ in 0..self.random.gen_range(0..40) {
            if self.loss_percent > 0 && self.random.gen_range(0..4) == 0 {
                self.network.rotate_left(self.network.len().min(1));
            }
            let Some(message) = self.network.pop_front() else {
                break;
            };
            let to = node_of(message.to);
            if let Some(raft) = &mut self.host(to).raft {
                raft.on_message(message);
            }
            self.advance(to);
        }
        let wanted = self.wanted();
        for node in NODES {
            self.tickets += 1;
            let ticket = self.tickets;
            let proposes = self.random.gen_range(0..3) == 0;
            let Some(raft) = &mut self.host(node).raft else {
                continue;
            };
            raft.tick();
            if wanted.len() == NODES.len() {
                raft.steer_voters(&wanted);
            }
            if proposes {
                let to = NODES[ticket as usize % NODES.len()];
                let partition = Some(ticket as u32 % 4);
                raft.propose(ticket, &Command::MoveLeader { partition, to });
            }
            self.advance(node);
        }
    }

    fn run(&mut self, steps: u32) {
        (0..steps).for_each(|_| self.step());
    }

    fn leader(&self) -> Option<NodeId> {
        let mut leaders = self.hosts.iter().filter(|(_, host)| {
            let raft = host.raft.as_ref();
            raft.is_some_and(RaftNode::is_up_to_date)
        });
        leaders.next_back().map(|(node, _)| *node)
    }

    /// Runs until all are voters and there is a leader.
    fn settle(&mut self) {
        let settled = |group: &Group| {
            let rafts = || group.hosts.values().filter_map(|h| h.raft.as_ref());
            let voters = |raft: &RaftNode| raft.peers().0.len() == NODES.len();
            rafts().count() == NODES.len() && rafts().all(voters) && group.leader().is_some()
        };
        for _ in 0..2000 {
            if settled(self) {
                return;
            }
            self.step();
        }
        panic!("no leader of all three");
    }

    fn found_cluster(&mut self) {
        self.settle();
        let leader = self.leader().expect("settled");
        let raft = self.host(leader).raft.as_mut().expect("it leads");
        assert!(raft.propose(u64::MAX, &Command::Found(configuration())));
        self.advance(leader);
    }

    /// Stops proposing; all hosts reach the same state.
    fn state(&mut self) -> State {
        self.loss_percent = 0;
        self.settle();
        self.run(300);
        for node in NODES {
            assert!(self.host(node).raft.is_some());
        }
        let last = *self.applied.keys().next_back().expect("something was");
        for _ in 0..300 {
            let wanted = self.wanted();
            assert_eq!(wanted.len(), NODES.len());
            for node in NODES {
                self.host(node).raft.as_mut().expect("it is up").tick();
                self.advance(node);
            }
            while let Some(message) = self.network.pop_front() {
                let to = node_of(message.to);
                let raft = self.host(to).raft.as_mut().expect("it is up");
                raft.on_message(message);
                self.advance(to);
            }
        }
        let rafts: Vec<&RaftNode> = self
            .hosts
            .values()
            .filter_map(|h| h.raft.as_ref())
            .collect();
        assert!(
            rafts.iter().all(|raft| raft.applied() >= last),
            "nothing is lost"
        );
        assert!(rafts.iter().all(|raft| raft.state() == rafts[0].state()));
        rafts[0].state().clone()
    }
}

/// Power failures of any host at any operation of its disk, with lost and reordered messages.
fn run_with_faults(seed: u64, lies: bool) -> u32 {
    let mut group = Group::new(seed);
    group.found_cluster();
    for node in NODES {
        group.host(node).disk.lie_about_sync(lies);
    }
    group.loss_percent = 10;
    for _ in 0..20 {
        let steps = group.random.gen_range(1..60);
        group.run(steps);
        let node = NODES[group.random.gen_range(0..NODES.len())];
        let disk = group.host(node).disk.clone();
        disk.power_off_at(disk.operations() + group.random.gen_range(0..12));
        let steps = group.random.gen_range(1..100);
        group.run(steps);
        group.power_cut(node);
        if group.random.gen_range(0..5) == 0 {
            NODES.iter().for_each(|node| group.power_cut(*node));
        }
    }
    let state = group.state();
    assert!(state.opened.is_some());
    assert!(group.applied.len() > 50, "something was done");
    group.cuts
}

#[test]
fn nothing_that_was_applied_is_lost_by_power_cuts() {
    let cuts: u32 = (0..40).map(|seed| run_with_faults(seed, false)).sum();
    println!("{cuts} power cuts");
}

/// A control: with disks that lie about syncs, the same test must fail.
#[test]
fn a_disk_that_lies_is_noticed() {
    std::panic::set_hook(Box::new(|_| ())); // they are expected
    let fails =
        |seed: &u64| catch_unwind(AssertUnwindSafe(|| run_with_faults(*seed, true))).is_err();
    let caught = (0..20).filter(fails).count();
    let _ = std::panic::take_hook();
    assert!(caught > 10, "{caught} of 20");
}

/// A lost log does not vote again under its id; its host is added again with a new one.
#[test]
fn a_lost_log_comes_back_under_another_id() {
    let mut group = Group::new(5);
    group.found_cluster();
    group.run(50);
    let lost = NODES[1];
    let old = group.host(lost).raft.as_ref().expect("up").id();
    group.host(lost).disk = SimulatedDisk::default();
    group.start(lost);
    let raft = group.host(lost).raft.as_mut().expect("up");
    assert_ne!(raft.id(), old);
    assert!(!raft.is_in_group());
    // It has not been added yet: it neither starts elections nor votes.
    for node in NODES {
        for _ in 0..200 {
            let raft = group.host(node).raft.as_mut().expect("up");
            if node == lost {
                raft.tick();
            }
            group.advance(node);
        }
    }
    let raft = group.host(lost).raft.as_mut().expect("up");
    assert_eq!((raft.term(), raft.is_leader()), (0, false));
    group.settle();
    group.run(100);
    for node in NODES {
        let raft = group.host(node).raft.as_ref().expect("up");
        let (voters, learners) = raft.peers();
        assert!(!voters.contains(&old) && !learners.contains(&old));
        assert_eq!((voters.len(), learners.len()), (3, 0));
    }
    group.state();
}

#[test]
fn the_log_is_kept_short_and_a_late_host_gets_the_state() {
    let mut group = Group::new(6);
    group.found_cluster();
    let late = NODES[2];
    group.host(late).raft = None;
    for _ in 0..4000 {
        group.step();
    }
    assert!(group.applied.len() > 1000);
    let used = group.host(NODES[0]).disk.used_bytes();
    assert!(used < 2 << 20, "{used} bytes for a small state");
    group.start(late);
    group.state();
}

#[test]
fn a_leader_that_is_to_leave_hands_over_first() {
    let mut group = Group::new(7);
    group.found_cluster();
    group.run(50);
    let leaver = group.leader().expect("one leads");
    let mut wanted = group.wanted();
    wanted.retain(|id| node_of(*id) != leaver);
    for _ in 0..500 {
        for node in NODES {
            let raft = group.host(node).raft.as_mut().expect("up");
            raft.tick();
            raft.steer_voters(&wanted);
            group.advance(node);
        }
        while let Some(message) = group.network.pop_front() {
            let to = node_of(message.to);
            group
                .host(to)
                .raft
                .as_mut()
                .expect("up")
                .on_message(message);
            group.advance(to);
        }
    }
    let leader = group.leader().expect("one leads");
    assert_ne!(leader, leaver);
    let raft = group.host(leader).raft.as_ref().expect("up");
    assert_eq!(raft.peers().0.len(), 2);
}

#[test]
fn a_full_disk_stops_a_controller_and_loses_nothing() {
    let mut group = Group::new(8);
    group.found_cluster();
    group.run(20);
    let leader = group.leader().expect("one leads");
    let host = group.host(leader);
    host.disk.set_free_bytes(Some(0));
    let raft = host.raft.as_mut().expect("up");
    let before = raft.applied();
    let mut ticket = 1 << 40;
    while !raft.is_stalled() {
        ticket += 1;
        let to = NODES[0];
        raft.propose(
            ticket,
            &Command::MoveLeader {
                partition: None,
                to,
            },
        );
        let _ = raft.advance();
        assert!(ticket < (1 << 40) + 100_000, "the disk is never full");
    }
    assert!(raft.advance().is_err());
    assert!(!raft.propose(1, &Command::Open { epoch: 1 }));
    host.disk.set_free_bytes(None);
    let raft = group.host(leader).raft.as_mut().expect("up");
    let outcome = raft.advance().expect("there is room again");
    group.take(leader, outcome);
    let state = group.state();
    assert!(state.revision > before.min(1));
}

type Entry = (u8, u64, u64, Vec<u8>, Vec<u8>);
type Snapshot = (u64, u64, (Vec<u64>, Vec<u64>), Vec<u8>);

/// A message as encoded on the wire.
#[derive(Default)]
struct Lie {
    kind: u8,
    term: u64,
    log_term: u64,
    index: u64,
    entries: Vec<Entry>,
    commit: u64,
    snapshot: Option<Snapshot>,
    part: u64,
    is_last_part: bool,
}

impl Lie {
    fn to(self, to: u64) -> RaftMessage {
        let from = (to & !0xff) | 99;
        let start = (self.kind, to, from, self.term, self.log_term, self.index);
        let middle = (self.entries, self.commit, 0u64, self.snapshot);
        let part = (0u64, self.part, self.is_last_part);
        let end = (0u64, false, 0u64, Vec::<u8>::new(), 0i64);
        let bytes = postcard::to_stdvec(&(start, middle, part, end)).expect("it is written");
        postcard::from_bytes(&bytes).expect("it is a message")
    }
}

/// Messages that no peer with an intact log sends: the library would end the process on each of them.
#[test]
fn a_peer_that_talks_nonsense_ends_nobody() {
    const PROPOSE: u8 = 0;
    const APPEND: u8 = 1;
    const SNAPSHOT: u8 = 5;
    const HEARTBEAT: u8 = 6;
    const READ_INDEX: u8 = 11;
    const PARTS_TAKEN: u8 = 15;
    const FAR: u64 = u64::MAX - 1;
    let disk = SimulatedDisk::default();
    let raft = raft_node::open(Box::new(disk), NODES[0], 7 << 8).expect("an empty disk");
    let mut raft = raft.found().expect("an empty disk");
    raft.advance().expect("its disk works");
    let (id, term, last) = (raft.id(), raft.term() + 1, raft.applied());
    let entry = |index| (0u8, term, index, vec![], vec![]);
    let snapshot = |peers, data| Some((last + 5, term, (peers, vec![]), data));
    let lies = [
        Lie {
            kind: PROPOSE,
            ..Lie::default()
        },
        Lie {
            kind: READ_INDEX,
            ..Lie::default()
        },
        Lie {
            kind: HEARTBEAT,
            term,
            commit: last + 50,
            ..Lie::default()
        },
        Lie {
            kind: HEARTBEAT,
            term: FAR,
            ..Lie::default()
        },
        Lie {
            kind: APPEND,
            term,
            index: last,
            log_term: term - 1,
            entries: vec![entry(last)],
            ..Lie::default()
        },
        Lie {
            kind: APPEND,
            term,
            index: last,
            log_term: term - 1,
            entries: vec![entry(last + 9)],
            ..Lie::default()
        },
        Lie {
            kind: APPEND,
            term,
            index: FAR,
            entries: vec![entry(0)],
            ..Lie::default()
        },
        Lie {
            kind: SNAPSHOT,
            term,
            ..Lie::default()
        },
        Lie {
            kind: SNAPSHOT,
            term,
            snapshot: snapshot(vec![id], b"garbage".to_vec()),
            ..Lie::default()
        },
        Lie {
            kind: SNAPSHOT,
            term,
            snapshot: snapshot(vec![id, id], vec![]),
            ..Lie::default()
        },
        Lie {
            kind: SNAPSHOT,
            term,
            snapshot: snapshot(vec![id], vec![]),
            part: FAR,
            is_last_part: true,
            ..Lie::default()
        },
        Lie {
            kind: PARTS_TAKEN,
            term,
            index: last,
            part: FAR,
            ..Lie::default()
        },
        Lie {
            kind: 200,
            term,
            ..Lie::default()
        },
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        raft.on_message(lie.to(id));
        raft.advance().expect("its disk works");
        assert_eq!(raft.applied(), last, "lie {number}");
        assert!(raft.is_leader(), "lie {number}");
    }
    assert!(raft.propose(1, &Command::Found(configuration())));
    let applied = raft.advance().expect("its disk works").applied;
    assert_eq!(applied.len(), 1, "it goes on");
}
