//! Snapshots in many parts, over a network that delays and reorders messages, and for some time loses them.

use inband_raft::{Frozen, RaftMessage, RaftNode, StateMachine, Tuning};

const TUNING: Tuning = Tuning {
    heartbeat_ticks: 2,
    election_ticks: 10,
    append_bytes_max: 256 << 10,
    appends_max: 1,
    batch_appends: true,
    quiet_commits: true,
    caught_up_entries: 256,
    compact_entries: 16,
    slice_bytes: 20,
    keep_entries: 16,
    snapshot_wait_ticks: 200,
};
const NODES: u8 = 5;
const LOSSY_TICKS: u64 = 100;
/// No node waits for long once messages are no longer lost.
const TICKS: u64 = 350;

/// Numbers, in the order in which they were applied: of the last ones as many as make several parts.
#[derive(Debug, Default, Clone, PartialEq)]
struct Numbers(Vec<u64>);

struct Rest(Vec<u64>);

impl StateMachine for Numbers {
    type Command<'a> = u64;
    type Output = u64;
    type Frozen = Rest;

    fn apply(&mut self, _index: u64, command: &[u8]) -> Option<u64> {
        let number = postcard::from_bytes(command).ok()?;
        self.0.push(number);
        let old = self.0.len().saturating_sub(40);
        self.0.drain(..old);
        Some(number)
    }

    fn freeze(&self) -> Rest {
        Rest(self.0.clone())
    }

    fn restore_part(&mut self, part: &[u8]) -> bool {
        let numbers = part.chunks_exact(8);
        self.0
            .extend(numbers.map(|n| u64::from_le_bytes(n.try_into().expect("8 bytes"))));
        part.len() % 8 == 0
    }
}

impl Frozen for Rest {
    fn next_part(&mut self, len_bytes: usize) -> Option<Vec<u8>> {
        let count = (len_bytes / 8).max(1).min(self.0.len());
        let part: Vec<u8> = self.0.drain(..count).flat_map(u64::to_le_bytes).collect();
        (!part.is_empty()).then_some(part)
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// All nodes are added while the leader is written to; the last ones also when they come back with different logs.
fn play(seed: u64) {
    let mut random = Random(seed * 0x9e37_79b9_7f4a_7c15 + 1);
    let mut network: Vec<(u64, RaftMessage)> = Vec::new();
    let mut lives = 0;
    let mut start = |node| {
        lives += 1;
        RaftNode::<Numbers>::in_memory(node, lives << 8, TUNING).expect("it begins")
    };
    let mut nodes: Vec<_> = (0..NODES).map(&mut start).collect();
    let founder = nodes.remove(0).found().expect("it is empty");
    nodes.insert(0, founder);
    let is_busy = random.below(2) == 0;
    for now in 0..TICKS * 10 {
        let is_lossy = now < LOSSY_TICKS * 10;
        if is_lossy && random.below(300) == 0 {
            // Only nodes whose loss the group survives.
            let node = NODES - 1 - random.below(2) as u8;
            nodes[usize::from(node)] = start(node);
        }
        let wanted: Vec<u64> = nodes.iter().map(RaftNode::id).collect();
        for node in &mut nodes {
            if now % 10 == 0 {
                node.tick();
                node.steer_voters(&wanted);
            }
            if node.is_leader() && (is_busy || now < 500) && random.below(3) == 0 {
                node.propose(now, &now);
            }
        }
        let (due, later): (Vec<_>, Vec<_>) = network.into_iter().partition(|(at, _)| *at <= now);
        network = later;
        for (_, message) in due {
            let to = usize::from(inband_raft::node_of(message.to));
            nodes[to].on_message(message);
        }
        for node in &mut nodes {
            for message in node.advance().expect("there is no disk").messages {
                if !(is_lossy && random.below(10) == 0) {
                    network.push((now + 1 + random.below(3), message));
                }
            }
        }
    }
    for node in &nodes {
        let (voters, learners) = node.peers();
        assert!(
            voters.len() == usize::from(NODES) && learners.is_empty(),
            "seed {seed}: {voters:?}, {learners:?} as {} sees it at {}",
            node.id() & 0xff,
            node.applied()
        );
    }
}

#[test]
fn all_are_taken_in_over_a_bad_network() {
    (1..200).for_each(play);
}

/// Five nodes; suspended ones neither receive nor tick.
struct Standing {
    nodes: Vec<RaftNode<Numbers>>,
    standing: Vec<u8>,
    network: Vec<RaftMessage>,
}

impl Standing {
    /// One round: all running nodes tick and receive what was sent to them in the previous round. `hears` decides what
    /// arrives.
    fn round(&mut self, hears: &mut dyn FnMut(&RaftMessage) -> bool) {
        let wanted: Vec<u64> = self.nodes.iter().map(RaftNode::id).collect();
        for message in std::mem::take(&mut self.network) {
            let to = inband_raft::node_of(message.to);
            if !self.standing.contains(&to) && hears(&message) {
                self.nodes[usize::from(to)].on_message(message);
            }
        }
        for (number, node) in self.nodes.iter_mut().enumerate() {
            if !self.standing.contains(&(number as u8)) {
                node.tick();
                node.steer_voters(&wanted);
                let outcome = node.advance().expect("there is no disk");
                self.network.extend(outcome.messages);
            }
        }
    }

    fn rounds(&mut self, count: usize) {
        (0..count).for_each(|_| self.round(&mut |_| true));
    }
}

/// Two peers are sent a snapshot at once. One is suspended after some parts, its transfer is abandoned, and it is later
/// sent the same snapshot alone, in parts of different lengths.
fn stand_still_in_a_transfer(slow: u8) {
    let start = |node: u8| {
        let random = u64::from(node + 1) << 8;
        RaftNode::<Numbers>::in_memory(node, random, TUNING).expect("it begins")
    };
    let mut nodes: Vec<_> = (0..NODES).map(start).collect();
    let founder = nodes.remove(0).found().expect("it is empty");
    nodes.insert(0, founder);
    let mut group = Standing {
        nodes,
        standing: Vec::new(),
        network: Vec::new(),
    };
    group.rounds(300);
    assert_eq!(group.nodes[0].peers().0.len(), usize::from(NODES));
    group.standing = vec![1, 2];
    for number in 0..100 {
        assert!(group.nodes[0].propose(number, &number));
        group.rounds(1);
    }
    group.rounds(10);
    assert_eq!(group.nodes[0].applied(), group.nodes[0].last_index());
    group.standing.clear();
    let mut parts = 0;
    while parts < 3 {
        group.round(&mut |message| {
            let is_part = message.has_snapshot() && inband_raft::node_of(message.to) == slow;
            parts += usize::from(is_part);
            !is_part || parts <= 3
        });
    }
    group.standing = vec![slow];
    group.rounds(2 * TUNING.snapshot_wait_ticks);
    let last = group.nodes[0].last_index();
    assert_eq!(group.nodes[usize::from(3 - slow)].applied(), last);
    group.standing.clear();
    group.rounds(2 * TUNING.snapshot_wait_ticks);
    let (leader, late) = (&group.nodes[0], &group.nodes[usize::from(slow)]);
    assert!(leader.is_leader() && leader.last_index() == last, "idle");
    assert_eq!((late.applied(), late.state()), (last, leader.state()));
}

#[test]
fn parts_of_two_transfers_of_one_snapshot_are_not_mixed() {
    stand_still_in_a_transfer(1);
    stand_still_in_a_transfer(2);
}
