//! What a replica applies: arbitrary values in any log. No replica stops, and two that apply the same, in different
//! bursts and with a restart, hold the same.

use std::cell::RefCell;
use std::path::Path;

use bytes::BytesMut;
use inband_kv::command::Command;
use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::store::Outcomes;
use inband_kv::value::{marker, Chunk, ValueError, ValueReader, ValueWriter};
use inband_paxos::log::{Origin, ValueKind};

use crate::input::Input;

const PARTITIONS: usize = 2;
const LOGS: usize = PARTITIONS + 1;
const T0_MS: u64 = 1_700_000_000_000;

/// A decided value, and its log.
struct Value {
    log: usize,
    instance: u64,
    origin: Origin,
    bytes: Vec<u8>,
}

/// After this many inputs the machines are replaced, because their content grows.
const INPUTS_PER_BENCH: usize = 128;

/// Two replicas, kept from input to input, because opening one takes as long as a thousand inputs. A crash may
/// therefore depend on the inputs before it; each input begins with empty partitions.
struct Bench {
    all_at_once: Machine,
    step_by_step: Machine,
    /// Next instance of each log.
    next: [u64; LOGS],
    inputs: usize,
    /// Removed after the machines are closed.
    dirs: [tempfile::TempDir; 2],
}

thread_local! {
    static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) };
}

/// First byte: how bursts are cut. Then values.
pub fn run(bytes: &[u8]) {
    BENCH.with_borrow_mut(|bench| {
        // Taken out, so that the next input after a panic gets new machines.
        let mut taken = bench.take().unwrap_or_else(Bench::new);
        taken.run(&mut Input::new(bytes));
        taken.inputs += 1;
        if taken.inputs < INPUTS_PER_BENCH {
            *bench = Some(taken);
        } else {
            taken.end();
        }
    });
}

impl Bench {
    fn new() -> Bench {
        let dirs = [crate::scratch(), crate::scratch()];
        let mut bench = Bench {
            all_at_once: open(dirs[0].path()),
            step_by_step: open(dirs[1].path()),
            next: [1; LOGS],
            inputs: 0,
            dirs,
        };
        bench.step_by_step.defer_writes();
        bench
    }

    fn run(&mut self, input: &mut Input<'_>) {
        let burst_len = 1 + input.below(8);
        let values = self.values(input);
        apply(&mut self.all_at_once, &values);
        for burst in values.chunks(burst_len) {
            apply(&mut self.step_by_step, burst);
        }
        self.step_by_step.flush().expect("it writes");
        let digests =
            [&self.all_at_once, &self.step_by_step].map(|m| m.digest().expect("it reads"));
        assert_eq!(digests[0], digests[1]);
    }

    /// A restart changes nothing.
    fn end(self) {
        let digest = self.all_at_once.digest().expect("it reads");
        let Bench {
            all_at_once,
            step_by_step,
            dirs,
            ..
        } = self;
        drop((all_at_once, step_by_step));
        let again = open(dirs[1].path());
        assert_eq!(digest, again.digest().expect("it reads"), "after a restart");
    }

    fn push(&mut self, values: &mut Vec<Value>, log: usize, origin: Origin, bytes: Vec<u8>) {
        let unknown = matches!(ValueReader::new(&bytes), Err(ValueError::Version(_)));
        if unknown && origin.kind == ValueKind::Command {
            return; // of a later version, which must stop the replica
        }
        values.push(Value {
            log,
            instance: self.next[log],
            origin,
            bytes,
        });
        self.next[log] += 1;
    }

    fn values(&mut self, input: &mut Input<'_>) -> Vec<Value> {
        let mut values = Vec::new();
        let origin = |client_id, kind| Origin {
            client_id,
            client_seq: 1,
            client_low: 1,
            kind,
        };
        // The session of each partition's following commands is the instance in which it is opened.
        let sessions = self.next;
        for log in 0..LOGS {
            self.push(
                &mut values,
                log,
                origin(9, ValueKind::OpenSession),
                Vec::new(),
            );
        }
        let mut encoded = BytesMut::new();
        Command::FlushAll.encode(None, &mut encoded);
        let mut seq = [1u64; LOGS];
        for (log, session) in sessions.into_iter().enumerate().take(PARTITIONS) {
            let mut writer = ValueWriter::new();
            writer.push(&encoded);
            let bytes = writer.finish(T0_MS).to_vec();
            self.push(&mut values, log, origin(session, ValueKind::Command), bytes);
        }
        while !input.is_empty() {
            let log = input.below(LOGS);
            let how = input.byte();
            let kind = match how % 16 {
                0 => ValueKind::Noop,
                1 => ValueKind::OpenSession,
                _ => ValueKind::Command,
            };
            seq[log] += u64::from(how / 16 != 0);
            let origin = Origin {
                client_id: match how / 16 {
                    1 => u64::from(input.byte()),
                    _ => sessions[log],
                },
                client_seq: match how / 16 {
                    2 => u64::from(input.byte() % 16),
                    _ => seq[log],
                },
                client_low: seq[log].saturating_sub(u64::from(how / 64)),
                kind,
            };
            let bytes = value(input, self.next[PARTITIONS]);
            self.push(&mut values, log, origin, bytes);
        }
        // Whatever waits at a marker continues, because in the end all entries are covered.
        let last = marker(self.next[PARTITIONS] * 256).to_vec();
        for log in 0..PARTITIONS {
            self.push(
                &mut values,
                log,
                origin(0, ValueKind::Command),
                last.clone(),
            );
        }
        values
    }
}

fn open(dir: &Path) -> Machine {
    let config = MachineConfig {
        partitions: PARTITIONS,
        ..MachineConfig::single(dir)
    };
    Machine::open(config).expect("it opens")
}

fn apply(machine: &mut Machine, values: &[Value]) {
    for value in values {
        let burst = &mut machine.bursts()[value.log];
        burst.push(value.instance, value.origin, None, &value.bytes);
    }
    machine.run(&mut Outcomes::default()).expect("it goes on");
}

fn value(input: &mut Input<'_>, next_entry: u64) -> Vec<u8> {
    let time_ms = T0_MS + u64::from(input.byte()) * 1_000;
    match input.byte() % 8 {
        0 => marker(next_entry.saturating_sub(u64::from(input.byte() % 8))).to_vec(),
        1 => {
            let (transfer, index) = (u64::from(input.byte() % 2), u16::from(input.byte() % 4));
            let count = u16::from(input.byte() % 5);
            let len_bytes = input.below(64);
            let chunk = Chunk {
                version: 1,
                time_ms,
                transfer,
                index,
                count,
                bytes: input.piece(len_bytes),
            };
            let mut value = Vec::new();
            chunk.write(&mut value);
            value
        }
        2 => {
            let len_bytes = input.below(128);
            input.piece(len_bytes).to_vec()
        }
        _ => {
            let mut writer = ValueWriter::new();
            for _ in 0..input.below(4) {
                let len_bytes = input.below(48);
                writer.push(input.piece(len_bytes));
            }
            writer.finish(time_ms).to_vec()
        }
    }
}
