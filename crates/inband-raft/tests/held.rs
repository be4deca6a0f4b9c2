//! Entries kept for a peer that was sent a snapshot are bounded by their size.

use inband_raft::{node_of, OnePart, RaftMessage, RaftNode, StateMachine, Tuning};

const TUNING: Tuning = Tuning {
    heartbeat_ticks: 2,
    election_ticks: 10,
    append_bytes_max: 1 << 16,
    appends_max: 64,
    batch_appends: true,
    quiet_commits: false,
    caught_up_entries: 16,
    compact_entries: 16,
    slice_bytes: 1 << 20,
    keep_entries: 16,
    snapshot_wait_ticks: 1000,
};
const ENTRY_BYTES: usize = 1 << 20;
/// Maximum entries held for a peer.
const HELD_MAX: u64 = 256;

/// Number of applied commands.
#[derive(Default)]
struct Count(u64);

impl StateMachine for Count {
    type Command<'a> = &'a [u8];
    type Output = ();
    type Frozen = OnePart;

    fn apply(&mut self, _index: u64, _command: &[u8]) -> Option<()> {
        self.0 += 1;
        Some(())
    }

    fn freeze(&self) -> OnePart {
        OnePart::new(self.0.to_le_bytes().to_vec())
    }

    fn restore_part(&mut self, part: &[u8]) -> bool {
        let count = part.try_into().map(u64::from_le_bytes);
        count.map(|count| self.0 = count).is_ok()
    }
}

struct Group {
    nodes: Vec<RaftNode<Count>>,
    network: Vec<RaftMessage>,
}

impl Group {
    /// One round: all nodes tick and receive what was sent to them in the previous round, except the last node unless
    /// it hears.
    fn round(&mut self, last_hears: bool) {
        let wanted: Vec<u64> = self.nodes.iter().map(RaftNode::id).collect();
        let count = if last_hears { 3 } else { 2 };
        for message in std::mem::take(&mut self.network) {
            let to = usize::from(node_of(message.to));
            if to < count {
                self.nodes[to].on_message(message);
            }
        }
        for node in self.nodes.iter_mut().take(count) {
            node.tick();
            node.steer_voters(&wanted);
            let outcome = node.advance().expect("there is no disk");
            self.network.extend(outcome.messages);
        }
    }

    fn propose(&mut self, command: &[u8]) {
        assert!(self.nodes[0].propose(1, &command));
        (0..2).for_each(|_| self.round(false));
    }

    fn has(&self, index: u64) -> bool {
        self.nodes[0].term_at(index).is_some()
    }
}

#[test]
fn entries_kept_for_a_peer_are_bounded_by_their_bytes() {
    let start = |node: u8| {
        let random = u64::from(node + 1) << 8;
        RaftNode::<Count>::in_memory(node, random, TUNING).expect("it begins")
    };
    let mut nodes: Vec<_> = (0..3).map(start).collect();
    let founder = nodes.remove(0).found().expect("it is empty");
    nodes.insert(0, founder);
    let network = Vec::new();
    let mut group = Group { nodes, network };
    (0..200).for_each(|_| group.round(true));
    assert_eq!(group.nodes[0].peers().0.len(), 3, "all vote");
    (0..100).for_each(|_| group.propose(b"small"));
    let sent = group.nodes[0].last_index();
    assert!(
        !group.has(sent - 50),
        "it is not kept for a peer that was sent nothing"
    );
    // It restarts, and is suspended while it is sent a snapshot.
    while !group.network.iter().any(RaftMessage::has_snapshot) {
        group.round(true);
    }
    let command = vec![0; ENTRY_BYTES];
    (0..HELD_MAX / 2).for_each(|_| group.propose(&command));
    assert!(group.has(sent + 1), "all that follows the snapshot is kept");
    (0..HELD_MAX).for_each(|_| group.propose(&command));
    let last = group.nodes[0].last_index();
    let held = (0..=last).filter(|index| group.has(*index)).count() as u64;
    assert!(held <= HELD_MAX, "{held} entries of 1 MiB are kept");
}
