//! The Falcon scheduler through its shell, in the native build: sequences of packets, and after each the rules of
//! docs/falcon.md that no packet may break.
//!
//! The first byte selects the policy. `crates/inband-dataplane/tests/falcon_equal.rs` runs the same corpus through the
//! kernel's program.

#[path = "../../../crates/inband-dataplane/tests/common/falcon_sequence.rs"]
mod falcon_sequence;

use std::collections::BTreeMap;

use inband_falcon::dataplane::wire::{flag, parse, Header, Task, Type};
use inband_falcon::dataplane::{FalconSwitch, Policy, Verdict};
use inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES;

use falcon_sequence::{config, Sequence, Step, INCARNATION, NODE, RECORD_LEN_BYTES};

/// Number of user counters of a scheduler.
const USERS: u32 = 1024;

/// Identifies a task: unique among the packets of a sequence.
type Name = (u16, u32, u32);

/// A sequence of packets.
pub fn run(bytes: &[u8]) {
    let Some((first, records)) = bytes.split_first() else {
        return;
    };
    let policy = Policy::ALL[usize::from(*first) % Policy::ALL.len()];
    let switch = FalconSwitch::new(NODE, config(policy), INCARNATION);
    let mut sequence = Sequence::default();
    let mut ledger = Ledger::default();
    for record in records.chunks_exact(RECORD_LEN_BYTES) {
        let step = sequence.step(record.try_into().expect("a record"));
        step.register_at(switch.registers());
        let (verdict, out) = handle(&switch, &step);
        ledger.note(&step, verdict, &out);
        ledger.holds(&switch);
    }
}

fn handle(switch: &FalconSwitch, step: &Step) -> (Verdict, Vec<u8>) {
    let mut buffer = Box::new([0u8; PACKET_LEN_MAX_BYTES]);
    let len_bytes = step.packet.len();
    buffer[..len_bytes].copy_from_slice(&step.packet);
    let (verdict, _, len_bytes) = switch.handle(&mut buffer, len_bytes, step.from, step.now_ns);
    (verdict, buffer[..len_bytes].to_vec())
}

/// Tasks accepted and not yet given, and the last task given to each executor.
#[derive(Default)]
struct Ledger {
    queued: BTreeMap<Name, Task>,
    given: BTreeMap<(u16, u32, u32, u64), Task>,
}

impl Ledger {
    fn note(&mut self, step: &Step, verdict: Verdict, out: &[u8]) {
        if verdict == Verdict::Drop {
            return;
        }
        if verdict == Verdict::Pass {
            assert_eq!(step.packet, out, "what passes leaves as it came");
            return;
        }
        let (asked, tasks) = parse(&step.packet).expect("only what is whole is answered");
        let (answer, given) = parse(out).expect("what leaves parses again");
        assert_eq!(answer.node, u16::from(NODE));
        assert_eq!((answer.set, answer.incarnation), (asked.set, INCARNATION));
        if asked.kind == Type::Submit {
            assert_eq!(answer.client, step.from);
            for (n, task) in tasks.iter().enumerate() {
                if answer.taken >> n & 1 == 1 {
                    let task = Task {
                        user: asked.user,
                        job: asked.job,
                        client: step.from,
                        ..task
                    };
                    self.queued.insert((asked.set, task.user, task.task), task);
                }
            }
        }
        match answer.kind {
            Type::Task => self.give(&answer, given.first().expect("a task"), verdict),
            _ => assert_eq!((given.count(), verdict), (0, Verdict::Reply)),
        }
    }

    /// A task is given once, unchanged, and again only when its PULL is repeated.
    fn give(&mut self, answer: &Header, task: Task, verdict: Verdict) {
        let woken = matches!(verdict, Verdict::ToExecutor(_));
        assert_eq!(woken, answer.has(flag::ORIGIN));
        let Header {
            set,
            executor,
            worker_incarnation,
            pull_seq,
            ..
        } = *answer;
        let to = (set, executor, worker_incarnation, pull_seq);
        if answer.has(flag::REPEATED) {
            assert_eq!(self.given.get(&to), Some(&task));
            return;
        }
        let queued = self.queued.remove(&(set, task.user, task.task));
        assert_eq!(queued, Some(task), "not in the queue");
        self.given.insert(to, task);
    }

    /// The registers count the tasks accepted and not given, and no executor waits although there is a task for it.
    fn holds(&self, switch: &FalconSwitch) {
        let registers = switch.registers();
        for set in 0..registers.config().sets {
            let queued = self.queued.keys().filter(|name| usize::from(name.0) == set);
            let mut users = BTreeMap::new();
            for (_, user, _) in queued.clone() {
                // These users share a counter.
                *users.entry(*user % USERS).or_insert(0u64) += 1;
            }
            assert_eq!(registers.tasks(set), queued.count() as u64, "set {set}");
            for (user, tasks) in users {
                assert_eq!(registers.user_tasks(set, user), tasks, "user {user}");
                assert!(tasks <= registers.config().user_tasks_max.into());
            }
            for queue in 0..registers.config().policy.queues() {
                let tasks = registers.queue(set, queue).tasks() as usize;
                assert!(tasks <= registers.config().queue_slots(), "queue {queue}");
            }
        }
    }
}
