//! The packet vectors of the sequencer, through the native role and, as real frames, through the kernel's program; random
//! packets, which both handle alike; and threads.
#![allow(missing_docs)]

use std::collections::BTreeSet;

use inband_ground::auth::{Gate, Keys};
use inband_ground::c::{IB_DROP, IB_REPLY};
use inband_ground::soft::{Arrival, Soft};
use inband_ground::xdp::alone::HostSpec;
use inband_ground::xdp::XdpMode;
use inband_sequencer::wire::{emit, parse, Header, Type};
use inband_sequencer::{program, soft, Logs, Program, Sequencer};
use inband_testing::frame::{may_load_bpf, HERE, NODE, THERE};
use inband_testing::random::{seed, Prng};
use inband_testing::role::{sign_at_random, two_keys, Answering, Pair};
use inband_testing::vector::{self, Step};
use serde::Deserialize;

const INCARNATION: u64 = 77;
const LOGS: usize = 2;
const LOG: usize = 1;
const TYPE_AT: usize = 5;
const ARRIVAL: Arrival = Arrival {
    from: THERE,
    now_ns: 0,
    random: 0,
};

type Tested = Answering<Sequencer>;

fn rig(keys: Option<Keys>) -> Box<Program> {
    let host = HostSpec {
        node: NODE,
        address: HERE,
        mode: XdpMode::Native,
        keys,
    };
    Box::new(program(&host, LOGS, INCARNATION).unwrap())
}

fn role() -> Box<Soft<Sequencer>> {
    Box::new(soft(NODE, LOGS, INCARNATION))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    given: [u64; 2],
    packet: Vec<Packet>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Packet {
    r#in: (u8, u16, u64),
    reason: String,
    number: Option<u64>,
}

impl vector::Case for Case {
    type System = Tested;
    type Expected = ();

    fn name(&self) -> &str {
        &self.name
    }

    fn packets(&self) -> usize {
        self.packet.len()
    }

    fn reason(&self, at: usize) -> &str {
        &self.packet[at].reason
    }

    fn step(&self, at: usize, keys: Option<&Keys>) -> Step<u32> {
        let packet = &self.packet[at];
        let (kind, node, count) = packet.r#in;
        let asked = Header {
            log: LOG as u16,
            node,
            count,
            request: at as u64 + 100,
            ..Header::of(Type::Next)
        };
        let gate = Gate::of::<Sequencer>(keys.copied(), LOGS);
        let signed = |header: &Header, kind: u8| {
            let mut packet = emit(header).to_vec();
            packet[TYPE_AT] = kind;
            gate.sign(&mut packet);
            packet
        };
        let answer = packet.number.map(|number| Header {
            node: NODE.into(),
            number,
            incarnation: INCARNATION,
            ..asked
        });
        let out = answer.map(|answer| signed(&answer, Type::Number as u8));
        Step {
            packet: signed(&asked, kind),
            frame: None,
            arrival: ARRIVAL,
            verdict: if out.is_some() { IB_REPLY } else { IB_DROP },
            reason: packet.reason.clone(),
            out: out.unwrap_or_default(),
        }
    }

    fn native(&self) -> (Box<Soft<Sequencer>>, usize) {
        (role(), LOGS)
    }

    fn rig(&self, keys: Option<Keys>) -> Box<Program> {
        rig(keys)
    }

    fn prepare(&self, registers: &Logs) {
        registers.clear();
        registers.restore(LOG, self.given[0]);
    }

    fn check(&self, at: usize, registers: &Logs, (): &mut ()) {
        if at + 1 == self.packet.len() {
            let given = [0, LOG].map(|log| registers.given(log));
            assert_eq!(given, [0, self.given[1]]);
        }
    }
}

#[test]
fn every_vector_runs_natively() {
    vector::run_natively::<Case>("sequencer");
}

#[test]
fn every_vector_runs_in_the_kernel() {
    vector::run_in_kernel::<Case>("sequencer", None);
    vector::run_in_kernel::<Case>("sequencer", Some(1));
}

#[test]
fn every_reason_has_a_vector() {
    vector::every_reason_has_a_vector::<Case>("sequencer", "sequencer_", &[]);
}

#[test]
fn random_packets_leave_kernel_and_native_equal() {
    if !may_load_bpf() {
        return;
    }
    let what = seed();
    let mut random = Prng(what);
    let keys = Some(two_keys());
    let mut pair = Pair::<Tested>::new(role(), rig(keys), keys, LOGS);
    for _ in 0..20_000 {
        let asked = Header {
            log: random.below(3) as u16,
            count: random.below(5000),
            ..Header::of(Type::ALL[random.below(2) as usize])
        };
        let mut packet = emit(&asked);
        sign_at_random(&mut random, &mut packet);
        pair.step(&packet, ARRIVAL, &format_args!("INBAND_SEED={what}"));
    }
    let [native, kernel] = pair.registers().map(|logs| [logs.given(0), logs.given(1)]);
    assert_eq!(native, kernel, "INBAND_SEED={what}");
    pair.compare_counters("at the end");
}

/// No number is given twice, whoever asks.
#[test]
fn threads_get_different_numbers() {
    const EACH: usize = 20_000;
    let switch = soft(NODE, 1, INCARNATION);
    let count = 3;
    let asked = emit(&Header {
        count,
        ..Header::of(Type::Next)
    });
    let ask = || {
        let mut gate = Gate::of::<Sequencer>(None, 1);
        let mut packet = asked;
        gate.sign(&mut packet);
        let numbers = (0..EACH).map(|_| {
            let answer = switch.answer(&mut gate, &packet, ARRIVAL).unwrap();
            parse(&answer).unwrap().number
        });
        numbers.collect::<Vec<u64>>()
    };
    let all = std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(ask));
        threads.map(|thread| thread.join().unwrap()).concat()
    });
    let different: BTreeSet<u64> = all.iter().copied().collect();
    assert_eq!(different.len(), 4 * EACH);
    assert!(different.iter().all(|first| (first - 1) % count == 0));
}
