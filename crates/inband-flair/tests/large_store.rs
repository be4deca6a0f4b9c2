//! A replica has one thread, and a switch abandons a leader that is silent for 40 ms. So a large store is written in
//! slices, to the journal and to other replicas, and no call writes more than one. The test counts bytes per call
//! instead of measuring time. With `--ignored --nocapture` it uses a larger store on a real disk and prints how long
//! the longest calls took.

use std::time::{Duration, Instant};

use inband_flair::entry::{Entry, Op};
use inband_flair::store::Store;
use inband_flair::timing::TUNING;
use inband_raft::{RaftMessage, RaftNode};
use inband_storage::{Disk, SimulatedDisk, Storage};
use nix::time::{clock_gettime, ClockId};

const DATA_BYTES: usize = 1024;
/// The longest record may follow an almost full slice, and each record has a name and a number.
const SLICE_BYTES_MAX: usize = TUNING.slice_bytes + (4 << 10);
/// Writes between two calls.
const BURST: u64 = 16;

/// Duration of calls of one kind: elapsed time and CPU time.
#[derive(Default)]
struct Times(Vec<(Duration, Duration)>);

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a thread has a clock");
    time.into()
}

impl Times {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let (begun, cpu) = (Instant::now(), cpu_time());
        let result = call();
        self.0.push((begun.elapsed(), cpu_time() - cpu));
        result
    }

    fn say(&self, what: &str) {
        let longest = self.0.iter().map(|t| t.0).max();
        let cpu = self.0.iter().map(|t| t.1).max();
        let count = self.0.len();
        println!("{what}: {count} calls, at most {longest:?}, of a CPU {cpu:?}");
    }
}

/// Replicas; the first one leads.
struct Group {
    nodes: Vec<RaftNode<Store>>,
    written: u64,
    client_id: u64,
}

fn entry(client_id: u64, number: u64, op: Op<'_>) -> Entry<'_> {
    Entry {
        client_id,
        client_seq: number,
        client_low: number,
        op,
    }
}

impl Group {
    fn new(storage: Option<Box<dyn Storage>>) -> Group {
        let node = match storage {
            Some(storage) => RaftNode::open(storage, 0, 7 << 8, TUNING).expect("it opens"),
            None => RaftNode::in_memory(0, 7 << 8, TUNING).expect("it begins"),
        };
        let mut leader = node.found().expect("it is empty");
        leader.advance().expect("it goes on");
        assert!(leader.is_up_to_date(), "it is alone");
        assert!(leader.propose(0, &entry(0, 7, Op::Open)));
        let opened = leader.advance().expect("it goes on").applied;
        Group {
            nodes: vec![leader],
            written: 0,
            client_id: opened[0].index,
        }
    }

    fn leader(&mut self) -> &mut RaftNode<Store> {
        &mut self.nodes[0]
    }

    /// Writes a burst of keys, out of `keys` in total.
    fn propose(&mut self, burst: u64, keys: u64) {
        for _ in 0..burst {
            self.written += 1;
            let key = (self.written % keys).to_be_bytes();
            let op = Op::Put {
                key: &key,
                data: &[self.written as u8; DATA_BYTES],
            };
            let (number, client_id) = (self.written, self.client_id);
            assert!(self.leader().propose(number, &entry(client_id, number, op)));
        }
    }

    fn fill(&mut self, keys: u64) {
        while self.written < keys {
            self.propose(4096, keys);
            self.leader().advance().expect("it goes on");
        }
    }
}

fn len_bytes(message: &RaftMessage) -> usize {
    postcard::to_stdvec(message).expect("it is written").len()
}

/// A replica without a log is sent the whole store while clients write.
fn is_sent_in_slices(keys: u64, storage: Option<Box<dyn Storage>>) {
    let mut group = Group::new(None);
    group.fill(keys);
    let stranger = match storage {
        Some(storage) => RaftNode::open(storage, 1, 8 << 8, TUNING).expect("it opens"),
        None => RaftNode::in_memory(1, 8 << 8, TUNING).expect("it begins"),
    };
    group.nodes.push(stranger);
    let wanted = [group.nodes[0].id(), group.nodes[1].id()];
    let (mut advance, mut receive) = (Times::default(), Times::default());
    let (mut slices, mut bytes, mut turns) = (0, 0, 0u64);
    loop {
        turns += 1;
        let has_work = group.nodes.iter().any(RaftNode::has_work);
        let is_voter = group.nodes[0].peers().0.len() == 2;
        if is_voter && !has_work && group.nodes[1].applied() + 64 > group.nodes[0].applied() {
            break;
        }
        assert!(turns < 1_000_000, "it goes on");
        if turns % 8 == 0 {
            group.nodes.iter_mut().for_each(RaftNode::tick);
            group.leader().steer_voters(&wanted);
            group.propose(BURST, keys);
        }
        for at in 0..2 {
            let node = &mut group.nodes[at];
            let outcome = advance.time(|| node.advance()).expect("it goes on");
            let snapshots = outcome.messages.iter().filter(|m| m.has_snapshot());
            let sent: usize = snapshots.map(len_bytes).sum();
            assert!(sent < SLICE_BYTES_MAX, "{sent} bytes with one call");
            (slices, bytes) = (slices + u64::from(sent > 0), bytes + sent);
            for message in outcome.messages {
                let other = &mut group.nodes[1 - at];
                receive.time(|| other.on_message(message));
            }
        }
    }
    advance.say("advance");
    receive.say("messages");
    assert!(bytes > keys as usize * DATA_BYTES, "everything was sent");
    assert!(slices > keys * DATA_BYTES as u64 / TUNING.slice_bytes as u64);
    let len = group.nodes[1].state().len();
    assert_eq!(len as u64, keys);
    for turn in 0.. {
        let [leader, follower] = &mut group.nodes[..] else {
            unreachable!("there are two");
        };
        if leader.applied() == follower.applied() {
            break;
        }
        assert!(turn < 100, "nothing is written any more");
        leader.tick();
        let sent = leader.advance().expect("it goes on").messages;
        sent.into_iter().for_each(|m| follower.on_message(m));
        let sent = follower.advance().expect("it goes on").messages;
        sent.into_iter().for_each(|m| leader.on_message(m));
    }
    assert!(group.nodes[0].state() == group.nodes[1].state());
}

#[test]
fn a_large_store_is_sent_in_slices() {
    is_sent_in_slices(256 << 10, None);
}

#[test]
fn a_large_store_is_written_to_the_journal_in_slices() {
    const KEYS: u64 = 64 << 10;
    let disk = SimulatedDisk::new();
    let mut group = Group::new(Some(Box::new(disk.clone())));
    group.fill(KEYS);
    // Each entry is written once, with its block header, plus one slice.
    let burst_bytes = (BURST as usize) * (DATA_BYTES + 256);
    let (mut slices, before) = (0, group.written);
    while group.written < before + 3 * KEYS {
        group.propose(BURST, KEYS);
        let start = disk.bytes_written();
        group.leader().advance().expect("it goes on");
        let written = (disk.bytes_written() - start) as usize;
        let slack = 256 << 10; // for the file growing
        assert!(
            written < SLICE_BYTES_MAX + burst_bytes + slack,
            "{written} bytes with one call"
        );
        slices += u64::from(written > TUNING.slice_bytes);
    }
    assert!(slices > KEYS * DATA_BYTES as u64 / TUNING.slice_bytes as u64);
    while group.leader().has_work() {
        group.leader().advance().expect("it goes on");
    }
    let journal = disk.used_bytes();
    let state = KEYS * DATA_BYTES as u64;
    assert!(journal < 4 * state, "{journal} bytes for {state}");
    let state = group.leader().state().clone();
    drop(group);
    let mut again = RaftNode::<Store>::open(Box::new(disk), 0, 9 << 8, TUNING).expect("it opens");
    for _ in 0..100 {
        again.tick();
        again.advance().expect("it goes on");
    }
    assert!(*again.state() == state);
}

#[test]
fn another_nodes_store_is_written_to_the_journal_in_slices() {
    is_sent_in_slices(64 << 10, Some(Box::new(SimulatedDisk::new())));
}

#[test]
#[ignore = "takes 3 GB of memory and 2 GB on disk"]
fn a_store_of_1_gb_holds_nobody_up() {
    const KEYS: u64 = 1 << 20;
    is_sent_in_slices(KEYS, None);
    let dir = tempfile::tempdir_in(".").expect("a directory");
    let disk = Disk::open(dir.path()).expect("it opens");
    is_sent_in_slices(KEYS, Some(Box::new(disk)));
    let dir = tempfile::tempdir_in(".").expect("a directory");
    let disk = Disk::open(dir.path()).expect("it opens");
    let mut group = Group::new(Some(Box::new(disk)));
    let (mut fill, mut advance) = (Times::default(), Times::default());
    for _ in 0..2_000 {
        group.propose(BURST, KEYS);
        fill.time(|| group.leader().advance()).expect("it goes on");
    }
    group.fill(KEYS);
    while group.leader().has_work() {
        group.propose(BURST, KEYS);
        advance
            .time(|| group.leader().advance())
            .expect("it goes on");
    }
    fill.say("advance with a journal");
    advance.say("advance while it is begun anew");
}
