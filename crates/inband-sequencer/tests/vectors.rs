//! The packet vectors of the sequencer, through the native role and, as real frames, through the kernel's program.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

use inband_ground::auth::{Gate, Keys, Secret};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::xdp::rig::udp_frame;
use inband_ground::xdp::{probe, XdpMode};
use inband_ground::System as _;
use inband_sequencer::wire::{emit, parse, Header, NUMBER};
use inband_sequencer::xdp::{Program, Spec};
use inband_sequencer::{Logs, Sequencer, SoftSequencer};
use serde::Deserialize;

const NODE: u8 = 2;
const INCARNATION: u64 = 77;
const LOGS: usize = 2;
const LOG: usize = 1;
const HERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 7707);
const THERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 8, 9), 1234);
const FRAME_LEN_BYTES: usize = 42;
const XDP_DROP: u32 = 1;
const XDP_TX: u32 = 3;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    given: [u64; 2],
    packet: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    r#in: (u8, u16, u64),
    reason: String,
    number: Option<u64>,
}

fn cases() -> Vec<Case> {
    let text = include_str!("../../../dataplane/sequencer/vectors/sequencer.toml");
    toml::from_str::<File>(text).unwrap().case
}

/// The answer, if there is one, and how often each reason was counted.
type Handle<'a> = &'a mut dyn FnMut(&[u8]) -> Option<Vec<u8>>;
type Counters<'a> = &'a dyn Fn() -> BTreeMap<&'static str, u64>;

fn run(case: &Case, keys: Option<Keys>, logs: &Logs, handle: Handle<'_>, counters: Counters<'_>) {
    let mut gate = Gate::of::<Sequencer>(keys, LOGS);
    logs.restore(LOG, case.given[0]);
    for (i, step) in case.packet.iter().enumerate() {
        let what = format!("{}, packet {i}", case.name);
        let (kind, node, count) = step.r#in;
        let request = i as u64 + 100;
        let asked = Header {
            kind,
            log: LOG as u16,
            node,
            count,
            request,
            ..Header::default()
        };
        let mut packet = emit(&asked);
        gate.sign(&mut packet);
        let before = counters();
        let answer = handle(&packet);
        let mut expected = before;
        let name = Sequencer::reasons().find(|name| *name == step.reason);
        *expected.entry(name.expect("a reason")).or_default() += 1;
        assert_eq!(counters(), expected, "{what}");
        let answer = answer.map(|answer| {
            assert!(gate.admits(&answer), "{what}: its tag");
            parse(&answer).unwrap()
        });
        let number = |number| Header {
            kind: NUMBER,
            node: NODE.into(),
            number,
            incarnation: INCARNATION,
            ..asked
        };
        assert_eq!(answer, step.number.map(number), "{what}");
    }
    assert_eq!(logs.given(LOG), case.given[1], "{}", case.name);
    assert_eq!(logs.given(0), 0, "{}: another log", case.name);
}

#[test]
fn every_vector_runs_natively() {
    for case in cases() {
        let switch = SoftSequencer::new(NODE, LOGS, INCARNATION);
        let gate = Gate::of::<Sequencer>(None, LOGS);
        let mut handle = |packet: &[u8]| {
            let mut buffer = [0; PACKET_LEN_MAX_BYTES];
            buffer[..packet.len()].copy_from_slice(packet);
            switch.handle(&mut buffer, packet.len()).0.then(|| {
                let mut answer = buffer[..packet.len()].to_vec();
                gate.sign(&mut answer);
                answer
            })
        };
        run(&case, None, switch.logs(), &mut handle, &|| {
            switch.counters()
        });
    }
}

#[test]
fn every_vector_runs_in_the_kernel() {
    match probe("lo") {
        Ok(probe) if probe.privileged => {}
        Ok(probe) => return inband_testing::not_run(probe.generic),
        Err(error) => return inband_testing::not_run(error),
    }
    let key = Keys::new(1, &[(1, Secret([7; 16]))]).unwrap();
    for keys in [None, Some(key)] {
        for case in cases() {
            let spec = Spec {
                node: NODE,
                logs: LOGS,
                incarnation: INCARNATION,
                address: HERE,
                mode: XdpMode::Native,
                keys,
            };
            let program = Program::load(spec).unwrap();
            let mut handle = |packet: &[u8]| {
                let run = program.run(&udp_frame(THERE, HERE, packet)).unwrap();
                assert!([XDP_DROP, XDP_TX].contains(&run.action), "{}", run.action);
                let there = udp_frame(HERE, THERE, packet);
                (run.action == XDP_TX).then(|| {
                    // Addresses and ports are turned round.
                    assert_eq!(run.frame[26..38], there[26..38], "{}", case.name);
                    run.frame[FRAME_LEN_BYTES..].to_vec()
                })
            };
            run(&case, keys, program.logs(), &mut handle, &|| {
                program.counters().unwrap()
            });
        }
    }
}

#[test]
fn every_reason_has_a_vector() {
    let shown: BTreeSet<String> = cases()
        .into_iter()
        .flat_map(|case| case.packet)
        .map(|step| step.reason)
        .collect();
    let own = Sequencer::reasons().filter(|name| name.starts_with("sequencer_"));
    let missing: Vec<_> = own.filter(|name| !shown.contains(*name)).collect();
    assert!(missing.is_empty(), "no vector shows {missing:?}");
}

/// No number is given twice, whoever asks.
#[test]
fn threads_get_different_numbers() {
    const EACH: usize = 20_000;
    let switch = SoftSequencer::new(NODE, 1, INCARNATION);
    let gate = Gate::of::<Sequencer>(None, 1);
    let count = 3;
    let ask = || {
        let asked = Header {
            kind: 16,
            node: 9,
            count,
            ..Header::default()
        };
        let mut packet = emit(&asked);
        gate.sign(&mut packet);
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        let numbers = (0..EACH).map(|_| {
            buffer[..packet.len()].copy_from_slice(&packet);
            assert!(switch.handle(&mut buffer, packet.len()).0);
            parse(&buffer[..packet.len()]).unwrap().number
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
