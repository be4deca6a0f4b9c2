//! In-memory logs: new peers, snapshots, early commits, confirmations.

use std::cell::Cell;
use std::collections::BTreeMap;

use inband_raft::{node_of, NodeId, OnePart, RaftMessage, RaftNode, StateMachine, Tuning};

const NODES: [NodeId; 3] = [0, 1, 2];
const TUNING: Tuning = Tuning {
    heartbeat_ticks: 2,
    election_ticks: 10,
    append_bytes_max: 1 << 16,
    appends_max: 64,
    batch_appends: true,
    quiet_commits: false,
    caught_up_entries: 16,
    compact_entries: 64,
    slice_bytes: 1 << 20,
    keep_entries: 64,
    snapshot_wait_ticks: 20,
};

/// Numbers, in the order in which they were applied.
#[derive(Debug, Default, Clone)]
struct Numbers {
    all: Vec<u64>,
    written: Cell<usize>,
}

impl StateMachine for Numbers {
    type Command<'a> = u64;
    type Output = u64;
    type Frozen = OnePart;

    fn apply(&mut self, _index: u64, command: &[u8]) -> Option<u64> {
        let number = postcard::from_bytes(command).ok()?;
        self.all.push(number);
        Some(number)
    }

    fn freeze(&self) -> OnePart {
        self.written.set(self.written.get() + 1);
        OnePart::new(postcard::to_stdvec(&self.all).expect("it is written"))
    }

    fn restore_part(&mut self, part: &[u8]) -> bool {
        let all = postcard::from_bytes(part).ok();
        all.map(|all| self.all = all).is_some()
    }
}

struct Group {
    rafts: BTreeMap<NodeId, RaftNode<Numbers>>,
    network: Vec<RaftMessage>,
    /// Nodes that are cut off in both directions.
    cut: Vec<NodeId>,
    confirmed: Vec<(NodeId, u64)>,
    lives: u64,
}

impl Group {
    fn new() -> Group {
        let mut group = Group {
            rafts: BTreeMap::new(),
            network: Vec::new(),
            cut: Vec::new(),
            confirmed: Vec::new(),
            lives: 0,
        };
        NODES.iter().for_each(|node| group.start(*node));
        let founder = group.rafts.remove(&0).expect("it is up");
        group.rafts.insert(0, founder.found().expect("it is empty"));
        group.run(200);
        assert_eq!(group.raft(0).peers().0.len(), 3, "all vote");
        group
    }

    fn start(&mut self, node: NodeId) {
        self.lives += 1;
        let raft = RaftNode::in_memory(node, self.lives << 8, TUNING).expect("it begins");
        self.rafts.insert(node, raft);
    }

    fn raft(&mut self, node: NodeId) -> &mut RaftNode<Numbers> {
        self.rafts.get_mut(&node).expect("it is up")
    }

    fn leader(&mut self) -> NodeId {
        let leads = |(node, raft): (&NodeId, &RaftNode<Numbers>)| {
            (raft.is_up_to_date() && !self.cut.contains(node)).then_some(*node)
        };
        self.rafts.iter().find_map(leads).expect("one leads")
    }

    fn advance(&mut self, node: NodeId) {
        let outcome = self.raft(node).advance().expect("there is no disk");
        let confirmed = outcome.confirmed.into_iter().map(|number| (node, number));
        self.confirmed.extend(confirmed);
        self.network.extend(outcome.messages);
    }

    fn deliver(&mut self) {
        while !self.network.is_empty() {
            for message in std::mem::take(&mut self.network) {
                let (from, to) = (node_of(message.from), node_of(message.to));
                if !self.cut.contains(&from) && !self.cut.contains(&to) {
                    self.raft(to).on_message(message);
                    self.advance(to);
                }
            }
        }
    }

    fn run(&mut self, ticks: usize) {
        for _ in 0..ticks {
            let wanted: Vec<u64> = self.rafts.values().map(RaftNode::id).collect();
            for node in NODES {
                self.raft(node).tick();
                self.raft(node).steer_voters(&wanted);
                self.advance(node);
            }
            self.deliver();
        }
    }

    fn propose(&mut self, numbers: std::ops::Range<u64>) {
        let leader = self.leader();
        for number in numbers {
            assert!(self.raft(leader).propose(number, &number));
        }
        self.advance(leader);
    }
}

#[test]
fn a_restarted_host_is_a_stranger_and_gets_everything() {
    let mut group = Group::new();
    group.propose(0..500);
    group.run(10);
    let old = group.raft(2).id();
    group.start(2);
    assert_ne!(group.raft(2).id(), old);
    group.run(200);
    for node in NODES {
        let (voters, learners) = group.raft(node).peers();
        assert!(voters.len() == 3 && learners.is_empty() && !voters.contains(&old));
        let numbers: Vec<u64> = (0..500).collect();
        assert_eq!(group.raft(node).state().all, numbers, "node {node}");
    }
}

#[test]
fn shortening_the_log_writes_no_state() {
    let mut group = Group::new();
    let written = |group: &mut Group| NODES.map(|node| group.raft(node).state().written.get());
    let before = written(&mut group);
    for turn in 0..100 {
        group.propose(turn * 100..(turn + 1) * 100);
        group.deliver();
    }
    let leader = group.leader();
    let last = group.raft(leader).last_index();
    assert!(
        group.raft(leader).term_at(last - 200).is_none(),
        "it is short"
    );
    assert!(group.raft(leader).term_at(last - 60).is_some());
    assert_eq!(written(&mut group), before);
    // A node that was away for long needs it, once.
    group.cut = vec![(leader + 1) % 3];
    for turn in 0..10 {
        group.propose(turn * 100..(turn + 1) * 100);
        group.deliver();
    }
    group.cut.clear();
    group.run(30);
    let after = written(&mut group);
    assert_eq!(after[usize::from(leader)], before[usize::from(leader)] + 1);
    let late = (leader + 1) % 3;
    assert_eq!(group.raft(late).state().all.len(), 11_000);
}

#[test]
fn a_lost_snapshot_is_sent_again_but_not_at_once() {
    let mut group = Group::new();
    let leader = group.leader();
    let late = (leader + 1) % 3;
    group.cut = vec![late];
    for turn in 0..10 {
        group.propose(turn * 100..(turn + 1) * 100);
        group.deliver();
    }
    group.cut.clear();
    let mut lost_at = None;
    for tick in 0..200 {
        for node in NODES {
            group.raft(node).tick();
            group.advance(node);
        }
        while !group.network.is_empty() {
            for message in std::mem::take(&mut group.network) {
                if lost_at.is_none() && message.has_snapshot() {
                    lost_at = Some(tick);
                    continue;
                }
                let to = node_of(message.to);
                // The parts that followed it are useless on their own.
                let again = message.has_snapshot() && Some(tick) > lost_at;
                assert!(!again || Some(tick) >= lost_at.map(|at| at + 9), "at once");
                group.raft(to).on_message(message);
                group.advance(to);
            }
        }
    }
    assert!(lost_at.is_some());
    assert_eq!(group.raft(late).state().all.len(), 1000);
}

#[test]
fn a_follower_commits_what_the_leader_vouches_for_and_nothing_else() {
    let mut group = Group::new();
    let leader = group.leader();
    let follower = (leader + 1) % 3;
    group.propose(7..8);
    let (index, term) = {
        let raft = group.raft(leader);
        (raft.last_index(), raft.term())
    };
    assert_eq!(group.raft(follower).term_at(index), None);
    assert!(!group.raft(follower).commit_to(index, term), "it lacks it");
    let appends: Vec<RaftMessage> = std::mem::take(&mut group.network);
    for message in appends.into_iter().filter(|m| node_of(m.to) == follower) {
        group.raft(follower).on_message(message);
    }
    group.advance(follower);
    assert!(group.raft(follower).state().all.is_empty());
    assert!(
        !group.raft(follower).commit_to(index, term + 1),
        "another term"
    );
    assert!(group.raft(follower).commit_to(index, term));
    group.advance(follower);
    assert_eq!(group.raft(follower).state().all, [7]);
    assert_eq!(group.raft(follower).applied(), index);
}

#[test]
fn only_a_majority_confirms_a_leader() {
    let mut group = Group::new();
    let leader = group.leader();
    group.raft(leader).confirm(1);
    group.advance(leader);
    assert!(group.confirmed.is_empty(), "nobody has answered");
    group.deliver();
    assert_eq!(group.confirmed, [(leader, 1)]);
    group.cut = vec![leader];
    group.raft(leader).confirm(2);
    group.advance(leader);
    group.run(60);
    assert_ne!(group.leader(), leader);
    group.cut.clear();
    group.run(60);
    assert_eq!(group.confirmed, [(leader, 1)]);
    assert_eq!(group.raft(leader).matched(3), None, "it does not lead");
}
