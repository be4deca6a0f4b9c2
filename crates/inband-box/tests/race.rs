//! Properties that must hold while several threads pass packets to the same role: in the native build, with delays at
//! points where a step of another CPU might do harm, and in the kernel. The same tests must fail on deliberately wrong
//! builds.
#![allow(missing_docs, unsafe_code)]

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use crate::common::spec;
use inband_box::registers::Registers;
use inband_box::role::{Record, Role};
use inband_box::soft::soft;
use inband_box::wire::{emit, parse, propose, Header, Type};
use inband_box::xdp::{role_of, Spec};
use inband_box::{c, objects, Zab, GROUPS};
use inband_ground::auth::Gate;
use inband_ground::soft::{Arrival, Handle, Soft};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::xdp::rig::udp_frame;
use inband_testing::frame::{may_load_bpf, FRAME_LEN_BYTES, HERE, NODE, THERE, XDP_TX};
use inband_testing::race;

/// A correct build is watched for this long, and for more than `ROUNDS_MIN` rounds if the machine is busy; a wrong one
/// must be caught within `CATCH_WITHIN`.
const WATCH: Duration = Duration::from_secs(2);
const CATCH_WITHIN: Duration = Duration::from_secs(120);
const ROUNDS_MIN: u64 = 50;
const CAPACITY: usize = 256;
const OWN_EPOCH: u64 = 34;
const EPOCH_OF_1: u64 = 33;
/// Records per thread and round.
const RECORDS: u64 = 40;

type Build = Handle<c::ib_box_soft, c::ib_arrival, c::ib_result>;
type Failure = String;

extern "C" {
    fn ib_box_handle_slow(
        soft: *const c::ib_box_soft,
        buffer: *mut u8,
        len_bytes: *mut u32,
        arrival: *const c::ib_arrival,
    ) -> c::ib_result;
    fn ib_box_handle_no_exclusivity(
        soft: *const c::ib_box_soft,
        buffer: *mut u8,
        len_bytes: *mut u32,
        arrival: *const c::ib_arrival,
    ) -> c::ib_result;
}

/// A node to which one build handles packets, and what its process does with it.
struct Subject<'a> {
    role: &'a Soft<Zab>,
    registers: &'a Registers,
    /// Handles a packet, and returns the one that leaves.
    handle: &'a (dyn Fn(&[u8]) -> Option<Vec<u8>> + Sync),
}

fn signed(mut packet: Vec<u8>) -> Vec<u8> {
    Gate::of::<Zab>(None, GROUPS).sign(&mut packet);
    packet
}

fn rounds(
    subject: &Subject<'_>,
    time: Duration,
    round: fn(&Subject<'_>) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    race::rounds(time, ROUNDS_MIN, |_| {
        subject.registers.restart();
        subject.role.set_quorum(0b1110, 2);
        round(subject)
    })
}

/// Two gateways submit at once: each record must have its own place, and be there.
fn places(subject: &Subject<'_>) -> Result<(), Failure> {
    subject.role.raise_epoch(OWN_EPOCH);
    assert!(subject.role.lead(OWN_EPOCH));
    subject.role.append(&Record::default()).expect("it leads");
    subject.role.set_joined(3, 1, false);
    let submit = |node: u16| {
        let header = |seq| Header {
            node,
            origin: node,
            origin_seq: seq,
            ..Header::of(Type::Submit)
        };
        let packets = (1..=RECORDS).map(|seq| {
            let value = [node as u8, seq as u8].repeat(200);
            (seq, (subject.handle)(&signed(emit(&header(seq), &value))))
        });
        // A packet that met the other at the lock is lost.
        let left = packets.filter_map(|(seq, out)| Some((seq, parse(&out?).unwrap().0.zxid)));
        left.map(|(seq, zxid)| (zxid, (node, seq)))
            .collect::<Vec<_>>()
    };
    let placed = thread::scope(|scope| {
        let threads = [1, 3].map(|node| scope.spawn(move || submit(node)));
        threads.map(|thread| thread.join().unwrap()).concat()
    });
    let by_zxid: BTreeMap<_, _> = placed.iter().copied().collect();
    if by_zxid.len() != placed.len() {
        let (places, records) = (by_zxid.len(), placed.len());
        return Err(format!("{places} places were given to {records} records"));
    }
    let last = subject.role.view().last;
    if !by_zxid.keys().copied().eq(2..=last) {
        return Err(format!("not all up to {last} were given: {by_zxid:?}"));
    }
    for (zxid, (node, seq)) in by_zxid {
        let record = subject.role.read(zxid);
        let is_it = |record: &Record| {
            (u16::from(record.origin), record.origin_seq) == (node, seq)
                && record.value == [node as u8, seq as u8].repeat(200)
        };
        if !record.as_ref().is_some_and(is_it) {
            return Err(format!("{zxid} is {record:?}, not {seq} of {node}"));
        }
    }
    Ok(())
}

/// The process promises an epoch while a leader proposes: nothing may be acknowledged that the promise does not have.
fn promise(subject: &Subject<'_>) -> Result<(), Failure> {
    assert!(subject.role.follow(EPOCH_OF_1, false, 0));
    let packet = |zxid| {
        let record = Record {
            zxid,
            epoch: EPOCH_OF_1,
            value: vec![zxid as u8; 100],
            ..Record::default()
        };
        signed(propose(&record, 1, EPOCH_OF_1, 0))
    };
    let (acknowledged, promised) = thread::scope(|scope| {
        let leader = scope.spawn(|| {
            let answers = (1..=RECORDS).filter_map(|zxid| (subject.handle)(&packet(zxid)));
            let headers = answers.map(|answer| parse(&answer).unwrap().0);
            let acks = headers.filter(|header| header.kind == Type::Ack);
            acks.map(|ack| ack.zxid).max().unwrap_or(0)
        });
        while subject.role.view().last < RECORDS / 4 && !leader.is_finished() {
            thread::yield_now();
        }
        let promised = subject.role.raise_epoch(OWN_EPOCH).last;
        (leader.join().unwrap(), promised)
    });
    if acknowledged > promised {
        return Err(format!(
            "{acknowledged} is acknowledged, {promised} is promised"
        ));
    }
    Ok(())
}

type Round = fn(&Subject<'_>) -> Result<(), Failure>;

fn natively(build: Build, time: Duration, round: Round) -> Result<u64, Failure> {
    let role = soft(NODE, CAPACITY);
    let handle = |packet: &[u8]| {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(packet);
        let arrival = Arrival {
            from: THERE,
            now_ns: 0,
            random: 0,
        };
        // SAFETY: the builds of native.c differ only in delays and in the order of steps.
        let (result, len) = unsafe { role.handle_by(build, &mut buffer, packet.len(), arrival) };
        let leaves = [c::IB_REPLY, c::IB_BOX_TO_OTHERS].contains(&result.verdict);
        leaves.then(|| buffer[..len].to_vec())
    };
    let subject = Subject {
        role: &role,
        registers: role.registers(),
        handle: &handle,
    };
    rounds(&subject, time, round)
}

fn in_kernel(object: &[u8], time: Duration, round: Round) -> Result<u64, Failure> {
    let spec = Spec {
        capacity: CAPACITY,
        ..spec(None)
    };
    let program = spec.load_object(object).unwrap();
    let role = role_of(&program, NODE).unwrap();
    let handle = |packet: &[u8]| {
        let run = program.run(&udp_frame(THERE, HERE, packet), 1).unwrap();
        let left = run.frame.get(FRAME_LEN_BYTES..).map(<[u8]>::to_vec);
        // To all others: there are none here, so the program drops what it would have sent.
        let is_sent = run.action == XDP_TX || run.frame != udp_frame(THERE, HERE, packet);
        left.filter(|_| is_sent)
    };
    let subject = Subject {
        role: &role,
        registers: program.registers(),
        handle: &handle,
    };
    rounds(&subject, time, round)
}

fn holds(what: &str, round: Round) {
    for build in [c::ib_box_handle, ib_box_handle_slow] {
        let rounds = natively(build, WATCH, round).unwrap();
        eprintln!("{what}: {rounds} rounds");
    }
    let caught = natively(ib_box_handle_no_exclusivity, CATCH_WITHIN, round);
    eprintln!("{what}, without exclusivity: {caught:?}");
    assert!(caught.is_err(), "not caught");
    if may_load_bpf() {
        let rounds = in_kernel(objects::BOX_SLOW, WATCH, round).unwrap();
        eprintln!("{what} in the kernel: {rounds} rounds");
        let caught = in_kernel(objects::BOX_NO_EXCLUSIVITY, CATCH_WITHIN, round);
        eprintln!("{what} in the kernel, without exclusivity: {caught:?}");
        assert!(caught.is_err(), "not caught in the kernel");
    }
}

#[test]
fn records_have_places_of_their_own() {
    holds("places", places);
}

#[test]
fn nothing_is_acknowledged_behind_a_promise() {
    holds("promise", promise);
}
