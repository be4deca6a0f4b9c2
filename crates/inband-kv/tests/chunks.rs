//! What a machine makes of the chunks of large commands.

use inband_host::log::{Origin, Ticket, ValueKind};
use inband_host::session::SESSIONS_MAX;
use inband_kv::limits::{TRANSFERS_MAX, TRANSFER_AGE_MS_MAX};
use inband_kv::machine::Machine;
use inband_kv::store::{ChunkFate, Outcomes};
use inband_kv::value::Chunk;
use inband_resp::reply::Reply;
use proptest::prelude::*;

use crate::common::{self, encode, open, scratch};

/// What happens to the logs in the model.
#[derive(Debug, Clone)]
enum Step {
    /// Begin a command of this many bytes in this many chunks, in one of the sessions.
    Begin(u8, u16, u8),
    /// Another chunk of one of the started commands.
    Chunk(u8, u8),
    /// The same chunk again, decided in another instance.
    Repeat(u8),
    /// A chunk of a command that was never started.
    Stray(u8),
    /// Abandon a command.
    GiveUp(u8),
    /// A small command.
    Small,
    /// Expire all sessions and open new ones.
    Expire,
    /// Nothing happens for so long that incomplete commands are dropped.
    Wait,
    /// Close and open the machine.
    Reopen,
    /// A second machine starts from a checkpoint of the first.
    Checkpoint,
}

fn any_step() -> impl Strategy<Value = Step> {
    let b = any::<u8>;
    prop_oneof![
        8 => (b(), 1..3000u16, 1..9u8).prop_map(|(s, len, n)| Step::Begin(s, len, n)),
        60 => (b(), b()).prop_map(|(t, i)| Step::Chunk(t, i)),
        6 => b().prop_map(Step::Repeat),
        2 => b().prop_map(Step::Stray),
        2 => b().prop_map(Step::GiveUp),
        4 => Just(Step::Small),
        1 => Just(Step::Expire),
        1 => Just(Step::Wait),
        2 => Just(Step::Reopen),
        2 => Just(Step::Checkpoint),
    ]
}

/// A command of the model.
struct Sent {
    session: u64,
    transfer: u64,
    item: String,
    chunks: Vec<Vec<u8>>,
    /// Chunks not decided yet.
    left: Vec<u16>,
    is_dead: bool,
}

struct Model {
    values: Vec<(Origin, Vec<u8>)>,
    sessions: [u64; 2],
    next_seq: u64,
    now_ms: u64,
    sent: Vec<Sent>,
    /// The list that the log must produce.
    list: String,
}

impl Model {
    fn new() -> Self {
        let mut model = Self {
            values: Vec::new(),
            sessions: [0; 2],
            next_seq: 1,
            now_ms: 1,
            sent: Vec::new(),
            list: String::new(),
        };
        model.open_sessions();
        model
    }

    fn open(&mut self) -> u64 {
        let origin = Origin {
            client_id: 77,
            client_seq: 0,
            client_low: 0,
            kind: ValueKind::OpenSession,
        };
        self.values.push((origin, Vec::new()));
        self.values.len() as u64
    }

    fn open_sessions(&mut self) {
        self.sessions = [self.open(), self.open()];
    }

    fn decide(&mut self, session: u64, bytes: Vec<u8>) {
        let origin = Origin {
            client_id: session,
            client_seq: self.next_seq,
            client_low: 1,
            kind: ValueKind::Command,
        };
        self.next_seq += 1;
        self.values.push((origin, bytes));
    }

    fn decide_chunk(&mut self, at: usize, index: u16) {
        let sent = &mut self.sent[at];
        sent.left.retain(|left| *left != index);
        let chunk = Chunk {
            version: 1,
            time_ms: self.now_ms,
            transfer: sent.transfer,
            index,
            count: sent.chunks.len() as u16,
            bytes: &sent.chunks[usize::from(index)],
        };
        let mut value = Vec::new();
        chunk.write(&mut value);
        if sent.left.is_empty() && !sent.is_dead {
            self.list += &sent.item;
            sent.is_dead = true;
        }
        let session = sent.session;
        self.decide(session, value);
    }

    fn begin(&mut self, session: u64, len: usize, count: usize) {
        let transfer = self.sent.len() as u64 + 1;
        let item = format!("{transfer}:{},", "x".repeat(len));
        let line = format!("APPEND list {item}");
        let command = encode(&common::words(&line), None).expect("parses");
        let chunk_len = command.len().div_ceil(count);
        let chunks: Vec<Vec<u8>> = command.chunks(chunk_len).map(<[u8]>::to_vec).collect();
        let is_alive = |sent: &&mut Sent| !sent.is_dead;
        let alive: Vec<&mut Sent> = self.sent.iter_mut().filter(is_alive).collect();
        if alive.len() >= TRANSFERS_MAX {
            if let Some(oldest) = alive.into_iter().next() {
                oldest.is_dead = true;
            }
        }
        self.sent.push(Sent {
            session,
            transfer,
            item,
            left: (0..chunks.len() as u16).collect(),
            chunks,
            is_dead: false,
        });
        self.decide_chunk(self.sent.len() - 1, 0);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Begin(session, len, count) => {
                let session = self.sessions[usize::from(*session) % 2];
                self.begin(session, usize::from(*len), usize::from(*count));
            }
            Step::Chunk(which, index) => {
                let is_open = |at: &usize| !self.sent[*at].left.is_empty();
                let open: Vec<usize> = (0..self.sent.len()).filter(is_open).collect();
                if !open.is_empty() {
                    let at = open[usize::from(*which) % open.len()];
                    let left = &self.sent[at].left;
                    let index = left[usize::from(*index) % left.len()];
                    self.decide_chunk(at, index);
                }
            }
            Step::Repeat(which) => {
                let again = self.values[usize::from(*which) % self.values.len()].clone();
                if again.0.kind == ValueKind::Command {
                    self.values.push(again);
                }
            }
            Step::Stray(which) => {
                let chunk = Chunk {
                    version: 1,
                    time_ms: self.now_ms,
                    transfer: 1 << 40 | u64::from(*which),
                    index: 1,
                    count: 2,
                    bytes: b"stray",
                };
                let mut value = Vec::new();
                chunk.write(&mut value);
                self.decide(self.sessions[0], value);
            }
            Step::GiveUp(which) => {
                let count = self.sent.len();
                if count == 0 {
                    return;
                }
                let sent = &mut self.sent[usize::from(*which) % count];
                // A complete command is not abandoned; its proposer knows it is complete.
                if sent.is_dead {
                    return;
                }
                sent.is_dead = true;
                let chunk = Chunk {
                    version: 1,
                    time_ms: self.now_ms,
                    transfer: sent.transfer,
                    index: 0,
                    count: 0,
                    bytes: &[],
                };
                let mut value = Vec::new();
                chunk.write(&mut value);
                let session = sent.session;
                self.decide(session, value);
            }
            Step::Small => {
                let item = format!("s{},", self.next_seq);
                let line = format!("APPEND list {item}");
                let command = encode(&common::words(&line), None).expect("parses");
                let mut writer = inband_kv::value::ValueWriter::new();
                writer.push(&command);
                let value = writer.finish(self.now_ms).to_vec();
                self.decide(self.sessions[1], value);
                self.list += &item;
            }
            Step::Expire => {
                (0..SESSIONS_MAX).for_each(|_| {
                    self.open();
                });
                self.sent.iter_mut().for_each(|sent| sent.is_dead = true);
                self.open_sessions();
            }
            Step::Wait => {
                self.now_ms += TRANSFER_AGE_MS_MAX + 1;
                self.sent.iter_mut().for_each(|sent| sent.is_dead = true);
            }
            Step::Reopen | Step::Checkpoint => {}
        }
    }
}

fn apply(machine: &mut Machine, values: &[(Origin, Vec<u8>)], burst_len: usize) -> Vec<ChunkFate> {
    let mut fates = Vec::new();
    let from = machine.store(0).applied() as usize;
    let missing: Vec<_> = values.iter().enumerate().skip(from).collect();
    for burst in missing.chunks(burst_len) {
        for (at, (origin, bytes)) in burst {
            let (instance, ticket) = (*at as u64 + 1, Ticket(*at as u64));
            machine.bursts()[0].push(instance, *origin, Some(ticket), bytes);
        }
        let mut outcomes = Outcomes::default();
        machine.run(&mut outcomes).expect("applies");
        fates.extend(outcomes.values.iter().filter_map(|outcome| outcome.chunk));
        for outcome in &outcomes.values {
            let is_complete = outcome.chunk == Some(ChunkFate::Complete);
            assert!(outcome.chunk.is_none() || outcome.reply_count == usize::from(is_complete));
        }
    }
    fates
}

/// A machine that writes only on request.
fn deferring(dir: &std::path::Path) -> Machine {
    let mut machine = open(dir);
    machine.defer_writes();
    machine
}

fn list_of(machine: &mut Machine) -> String {
    let get = encode(&[b"GET", b"list"], None).expect("parses");
    match machine.reader(0, 0).unwrap().read(&get).unwrap() {
        Some(Reply::Bulk(bytes)) => String::from_utf8(bytes).unwrap(),
        Some(Reply::Nil) => String::new(),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(common::cases(12))]

    /// Whatever the chunking, the order and the repetitions, whichever sessions expire and wherever a machine starts
    /// from: a chunked command is applied once, with its last chunk, or not at all.
    #[test]
    fn whole_or_not_at_all(
        steps in prop::collection::vec(any_step(), 10..250),
        burst_len in 1..9usize,
    ) {
        let mut model = Model::new();
        let dirs = [scratch(), scratch(), scratch()];
        let mut one = deferring(dirs[0].path());
        let mut two: Option<Machine> = None;
        for step in &steps {
            model.step(step);
            match step {
                Step::Reopen => {
                    apply(&mut one, &model.values, burst_len);
                    // The directory is locked while it is open. Unwritten data is lost.
                    one = open(dirs[2].path());
                    one = { drop(one); deferring(dirs[0].path()) };
                }
                Step::Checkpoint => {
                    apply(&mut one, &model.values, burst_len);
                    let mut machine = two.take().unwrap_or_else(|| open(dirs[1].path()));
                    one.flush().unwrap();
                    let incoming = machine.incoming();
                    if one.store(0).applied() > machine.store(0).applied() {
                        one.shared().checkpoint(&incoming).unwrap();
                        machine.install().unwrap();
                    }
                    two = Some(machine);
                }
                _ => {}
            }
        }
        let mut two = two.unwrap_or_else(|| open(dirs[1].path()));
        apply(&mut one, &model.values, burst_len);
        one.flush().unwrap();
        apply(&mut two, &model.values, 1);
        prop_assert_eq!(list_of(&mut one), model.list.clone());
        prop_assert_eq!(list_of(&mut two), model.list);
        prop_assert_eq!(one.digest().unwrap(), two.digest().unwrap());
    }
}

#[test]
fn too_many_at_once_drop_the_oldest() {
    let mut model = Model::new();
    let dir = scratch();
    let mut machine = open(dir.path());
    for _ in 0..=TRANSFERS_MAX {
        model.begin(model.sessions[0], 100, 2);
    }
    model.decide_chunk(0, 1);
    model.decide_chunk(1, 1);
    let fates = apply(&mut machine, &model.values, 5);
    let (begun, ended) = fates.split_at(TRANSFERS_MAX + 1);
    assert!(begun.iter().all(|fate| *fate == ChunkFate::Stored));
    assert_eq!(ended, [ChunkFate::Dropped, ChunkFate::Complete]);
    assert_eq!(list_of(&mut machine), model.list);
}

#[test]
fn what_stays_incomplete_is_dropped() {
    let mut model = Model::new();
    let dir = scratch();
    let mut machine = open(dir.path());
    model.begin(model.sessions[0], 100, 2);
    apply(&mut machine, &model.values, 5);
    let with_chunk = machine.digest().unwrap();
    drop(machine);
    // The age survives a restart.
    let mut machine = open(dir.path());
    model.now_ms += TRANSFER_AGE_MS_MAX;
    model.begin(model.sessions[0], 100, 2);
    model.now_ms += 1;
    model.decide_chunk(1, 1);
    model.sent[0].is_dead = true;
    model.decide_chunk(0, 1);
    let fates = apply(&mut machine, &model.values, 1);
    let expected = [ChunkFate::Stored, ChunkFate::Complete, ChunkFate::Dropped];
    assert_eq!(fates, expected);
    assert_eq!(list_of(&mut machine), model.list);
    assert_ne!(machine.digest().unwrap(), with_chunk);
}
