//! Properties that must hold while several threads pass packets to the same role: in the native build, with delays at
//! points where a step of another CPU might do harm, and in the kernel. The same tests must fail on deliberately wrong
//! builds.
#![allow(missing_docs, unsafe_code)]

use std::collections::BTreeSet;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::{
    self, buffer_of, in_the_kernel, kernel_is_there, leaves, switch_spec, To, HERE, SERVER_NODE,
    THERE,
};
use inband_ground::auth::Gate;
use inband_ground::xdp::XdpMode;
use inband_memory::lines::{Chunk, CHUNK_LINES};
use inband_memory::registers::{ServerRegisters, SwitchRegisters};
use inband_memory::soft_server::{ServerBuild, SoftServer};
use inband_memory::soft_switch::{SoftSwitch, SwitchBuild, SwitchSpec};
use inband_memory::wire::{self, Header};
use inband_memory::{c, objects, xdp, Memory, SPACES};
use inband_testing::race::rounds;

/// A correct build is watched for this long, and for at least `ROUNDS_MIN` rounds if the machine is busy; a wrong one
/// must be caught within `CATCH_WITHIN`.
const WATCH: Duration = Duration::from_secs(2);
const CATCH_WITHIN: Duration = Duration::from_secs(60);
const ROUNDS_MIN: u64 = 100;

type Failure = String;
/// Passes a packet through a role.
type Handle<'a> = dyn Fn(&[u8]) -> (To, Vec<u8>) + Sync + 'a;

fn gate() -> Gate {
    Gate::of::<Memory>(None, SPACES)
}

macro_rules! builds {
    (switch: $($switch:ident),*; server: $($server:ident),*;) => {
        extern "C" {
            $(fn $switch(
                switch: *const c::ib_memory_soft_switch,
                buffer: *mut u8,
                len_bytes: *mut u32,
                client: *mut c::ib_memory_client,
            ) -> c::ib_result;)*
            $(fn $server(
                server: *const c::ib_memory_soft_server,
                buffer: *mut u8,
                len_bytes: *mut u32,
            ) -> c::ib_result;)*
        }
    };
}

// native.c with delays; all but the first have a fault.
builds! {
    switch:
        ib_memory_switch_handle_slow,
        ib_memory_switch_handle_no_exclusivity,
        ib_memory_switch_handle_session_before_lock,
        ib_memory_switch_handle_number_by_store;
    server:
        ib_memory_server_handle_slow,
        ib_memory_server_handle_no_exclusivity,
        ib_memory_server_handle_epoch_before_lock;
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds {
        Ok(())
    } else {
        Err(what())
    }
}

// --- the server: a fence ---

/// Writers per round, and writes of each.
const WRITERS: u64 = 2;
const WRITES: u64 = 40;

fn to_server(handle: &Handle<'_>, header: Header, byte: u8) -> Option<(Header, Vec<u8>)> {
    let header = Header {
        node: 16,
        session: 1,
        request: 1,
        ..header
    };
    let lines = header.lines.count_ones() as usize;
    let value = match header.kind {
        wire::WRITE => vec![byte; 64 * lines],
        _ => Vec::new(),
    };
    let (to, out) = handle(&common::packet(&header, &value, &gate()));
    (to == To::Sender).then(|| {
        let (header, value) = wire::parse(&out).unwrap();
        (header, value.to_vec())
    })
}

/// Reads a chunk with one READ of this epoch. Each line is filled with the low byte of its timestamp.
fn read_all(handle: &Handle<'_>, epoch: u64) -> Result<([u64; CHUNK_LINES], Chunk), Failure> {
    loop {
        let read = Header {
            kind: wire::READ,
            epoch,
            lines: 0xffff,
            ..Header::default()
        };
        let Some((header, value)) = to_server(handle, read, 0) else {
            continue;
        };
        ensure(header.kind == wire::READ_ANSWER, || format!("{header:?}"))?;
        let (mut timestamps, mut chunk) = ([0; CHUNK_LINES], [[0; 64]; CHUNK_LINES]);
        ensure(
            wire::take_read(&header, &value, &mut timestamps, &mut chunk),
            || "the answer's digest is wrong".to_owned(),
        )?;
        for (timestamp, line) in timestamps.iter().zip(&chunk) {
            ensure(*line == [*timestamp as u8; 64], || {
                format!("line {line:?} with timestamp {timestamp}")
            })?;
        }
        return Ok((timestamps, chunk));
    }
}

/// Once a READ of a new epoch has been answered, nothing of an older epoch may change the chunk, and the answer must
/// contain every acknowledged write.
fn fence(handle: &Handle<'_>, registers: &ServerRegisters, time: Duration) -> Result<u64, Failure> {
    registers.set_serving(true);
    let [begin, end] = [(); 2].map(|()| Barrier::new(WRITERS as usize + 1));
    let over = AtomicBool::new(false);
    let epoch = AtomicU64::new(0);
    let acknowledged = AtomicU64::new(0);
    let writer = |number: u64| loop {
        begin.wait();
        if over.load(SeqCst) {
            return;
        }
        let epoch = epoch.load(SeqCst);
        for write in 0..WRITES {
            let timestamp = epoch << 39 | (write * WRITERS + number + 1);
            let header = Header {
                kind: wire::WRITE,
                epoch,
                lines: if write % 3 == 0 { 0xffff } else { 0x7ffe },
                timestamp,
                ..Header::default()
            };
            match to_server(handle, header, timestamp as u8) {
                Some((answer, _)) if answer.kind == wire::ACK => {
                    acknowledged.fetch_max(timestamp, SeqCst);
                }
                Some(_) => break,
                None => {}
            }
        }
        end.wait();
    };
    thread::scope(|scope| {
        let writer = &writer;
        for number in 0..WRITERS {
            scope.spawn(move || writer(number));
        }
        let result = rounds(time, ROUNDS_MIN, |round| {
            let now = 2 * round + 1;
            epoch.store(now, SeqCst);
            begin.wait();
            // Moves the fence to a different moment each time.
            for _ in 0..round % 8 {
                if let Err(what) = read_all(handle, now) {
                    // None of this test's fences can have come in between.
                    end.wait();
                    return Err(what);
                }
            }
            let known = acknowledged.load(SeqCst);
            let fenced = read_all(handle, now + 1);
            end.wait();
            let (before, lines) = fenced?;
            let (after, lines_after) = read_all(handle, now + 1)?;
            ensure(before == after && lines == lines_after, || {
                format!("a write came after the fence: {before:x?}, then {after:x?}")
            })?;
            let all = acknowledged.load(SeqCst).max(known);
            ensure(after[1] >= all, || {
                format!("{all:x} was acknowledged, and {:x} is there", after[1])
            })
        });
        over.store(true, SeqCst);
        begin.wait();
        result
    })
}

fn fence_native(build: ServerBuild, time: Duration) -> Result<u64, Failure> {
    // SAFETY: a build of native.c.
    let server = unsafe { SoftServer::with_build(SERVER_NODE, 1, build) };
    let handle = |packet: &[u8]| {
        let mut buffer = buffer_of(packet);
        let handled = server.handle(&mut buffer, packet.len());
        leaves(handled, &buffer, &gate())
    };
    fence(&handle, server.registers(), time)
}

fn fence_kernel(object: &[u8], time: Duration) -> Result<u64, Failure> {
    let spec = xdp::server::Spec {
        node: SERVER_NODE,
        chunks: 1,
        address: HERE,
        mode: XdpMode::Native,
        keys: None,
    };
    let program = spec.load_object(object).unwrap();
    let handle = |packet: &[u8]| in_the_kernel(packet, |frame| program.run(frame, 1).unwrap());
    fence(&handle, program.registers(), time)
}

#[test]
fn nothing_of_an_old_epoch_lands_behind_a_fence() {
    for build in [c::ib_memory_server_handle, ib_memory_server_handle_slow] {
        let rounds = fence_native(build, WATCH).unwrap();
        assert!(rounds > ROUNDS_MIN, "{rounds}");
    }
    let wrong: [(&str, ServerBuild); 2] = [
        (
            "epoch before lock",
            ib_memory_server_handle_epoch_before_lock,
        ),
        ("no exclusivity", ib_memory_server_handle_no_exclusivity),
    ];
    for (name, build) in wrong {
        let caught = fence_native(build, CATCH_WITHIN);
        eprintln!("{name}: {caught:?}");
        assert!(caught.is_err(), "{name} was not caught");
    }
    if !kernel_is_there() {
        return;
    }
    for object in [objects::SERVER, objects::SERVER_SLOW] {
        let rounds = fence_kernel(object, WATCH).unwrap();
        assert!(rounds > ROUNDS_MIN, "{rounds}");
    }
    let caught = fence_kernel(objects::SERVER_EPOCH_BEFORE_LOCK, CATCH_WITHIN);
    eprintln!("in the kernel: {caught:?}");
    assert!(caught.is_err(), "not caught in the kernel");
}

// --- the switch: answers of all servers at the same time ---

const SERVERS: usize = 3;
const SESSION: u64 = 7 << 16 | 1;
const EPOCH: u64 = 48;
/// Lines per request.
const LINES: u32 = 0b11;

/// Returns what a switch sends for a request, which is retransmitted while other threads hold the slot.
fn ask(handle: &Handle<'_>, header: Header, value: &[u8]) -> Option<(To, Header)> {
    for _ in 0..10_000 {
        let (to, out) = handle(&common::packet(&header, value, &gate()));
        if to != To::Nobody {
            return Some((to, wire::parse(&out).unwrap().0));
        }
        thread::yield_now();
    }
    None
}

/// What the switch sent after the servers' answers: destination, timestamps and lines.
type Left = Vec<(To, Header, [u64; 2], Vec<u8>)>;

fn timestamps_of(value: &[u8]) -> [u64; 2] {
    [0, 8].map(|at| u64::from_be_bytes(value[at..at + 8].try_into().unwrap()))
}

/// Whatever the order of the answers, a phase must end exactly once, with the majority's result.
fn quorum(
    handle: &Handle<'_>,
    registers: &SwitchRegisters,
    time: Duration,
) -> Result<u64, Failure> {
    registers.set_epoch(EPOCH);
    registers.open_session(1, SESSION, 4, 4);
    let [begin, end] = [(); 2].map(|()| Barrier::new(SERVERS + 1));
    let over = AtomicBool::new(false);
    let asked = Mutex::new((Header::default(), [[0u64; 2]; SERVERS]));
    let left = Mutex::new(Left::new());
    let server = |number: usize| loop {
        begin.wait();
        if over.load(SeqCst) {
            return;
        }
        let (question, all) = *asked.lock().unwrap();
        let timestamps = all[number];
        let answer = Header {
            kind: match question.kind {
                wire::READ => wire::READ_ANSWER,
                _ => wire::ACK,
            },
            node: number as u16 + 1,
            ..question
        };
        let mut value = Vec::new();
        if question.kind == wire::READ {
            value.extend(timestamps.iter().flat_map(|at| at.to_be_bytes()));
            value.extend(timestamps.iter().flat_map(|at| [*at as u8; 64]));
        }
        let packet = common::packet(&answer, &value, &gate());
        for _ in 0..2 {
            let (to, out) = handle(&packet);
            if to != To::Nobody {
                let (header, value) = wire::parse(&out).unwrap();
                let timestamps = match value.is_empty() {
                    true => [0; 2],
                    false => timestamps_of(value),
                };
                let left_now = (to, header, timestamps, value.to_vec());
                left.lock().unwrap().push(left_now);
            }
        }
        end.wait();
    };
    // Lets all servers answer, and returns what has left.
    let answered = |question: Header, timestamps: [[u64; 2]; SERVERS]| {
        *asked.lock().unwrap() = (question, timestamps);
        begin.wait();
        end.wait();
        std::mem::take(&mut *left.lock().unwrap())
    };
    let check_value = |timestamps: [u64; 2], value: &[u8]| {
        let right: Vec<u8> = timestamps.iter().flat_map(|at| [*at as u8; 64]).collect();
        ensure(value[16..] == right, || {
            format!("lines {:?} with timestamps {timestamps:?}", &value[16..])
        })
    };
    thread::scope(|scope| {
        let server = &server;
        for number in 0..SERVERS {
            scope.spawn(move || server(number));
        }
        let result = rounds(time, ROUNDS_MIN, |round| {
            // Some servers agree, others do not.
            let mut random = (round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut next = || {
                random = random.rotate_left(7).wrapping_mul(0x2545_f491_4f6c_dd1d);
                1 + (random >> 60) % 2
            };
            let timestamps = [(); SERVERS].map(|()| [next(), next()]);
            let writes = round % 4 == 0;
            let header = Header {
                kind: if writes {
                    wire::WRITE_REQUEST
                } else {
                    wire::READ_REQUEST
                },
                session: SESSION,
                request: round + 1,
                lines: LINES,
                ..Header::default()
            };
            let value = if writes { vec![3; 128] } else { Vec::new() };
            let mut question = None;
            // Retransmitted, because an answer that finds the slot locked is lost.
            for _ in 0..100 {
                if question.is_none() {
                    let (to, asks) = ask(handle, header, &value).ok_or("never sent")?;
                    ensure(to == To::Servers, || format!("{to:?} {asks:?}"))?;
                    question = Some(asks);
                }
                let now = question.take().expect("it was asked");
                let left = answered(now, timestamps);
                ensure(left.len() <= 1, || {
                    let what =
                        |(to, header, versions, _): &_| format!("{to:?} {header:?} {versions:?}");
                    let what: Vec<String> = left.iter().map(what).collect();
                    format!("a phase ended twice: {what:?}")
                })?;
                let Some((to, header, versions, value)) = left.into_iter().next() else {
                    continue;
                };
                if to == To::Client {
                    if header.kind == wire::READ_REPLY {
                        check_value(versions, &value)?;
                    }
                    if now.kind == wire::READ {
                        let agree = timestamps.iter().filter(|all| **all == versions).count();
                        let each = (0..2).all(|n| {
                            timestamps
                                .iter()
                                .filter(|all| all[n] == versions[n])
                                .count()
                                >= 2
                        });
                        ensure(agree >= 1 && each, || {
                            format!("{versions:?} is of no majority of {timestamps:?}")
                        })?;
                    }
                    return Ok(());
                }
                ensure(header.kind == wire::WRITE_BACK, || format!("{header:?}"))?;
                check_value(versions, &value)?;
                let maxima: BTreeSet<[u64; 2]> = [(0, 1), (0, 2), (1, 2)]
                    .map(|(a, b)| [0, 1].map(|n| timestamps[a][n].max(timestamps[b][n])))
                    .into();
                ensure(maxima.contains(&versions), || {
                    format!("{versions:?} is written back of {timestamps:?}")
                })?;
                question = Some(header);
            }
            Err("a request is never done".to_owned())
        });
        over.store(true, SeqCst);
        begin.wait();
        result
    })
}

fn race_spec() -> SwitchSpec {
    switch_spec()
}

fn native_switch(build: SwitchBuild) -> SoftSwitch {
    // SAFETY: a build of native.c.
    unsafe { SoftSwitch::with_build(&race_spec(), build) }
}

fn on<'a>(switch: &'a SoftSwitch) -> impl Fn(&[u8]) -> (To, Vec<u8>) + Sync + 'a {
    |packet: &[u8]| {
        let from: SocketAddrV4 = THERE;
        let mut buffer = buffer_of(packet);
        let handled = switch.handle(&mut buffer, packet.len(), from);
        leaves(handled, &buffer, &gate())
    }
}

fn kernel_switch(object: &[u8]) -> xdp::switch::Program {
    let spec = xdp::switch::Spec {
        switch: race_spec(),
        address: HERE,
        mode: XdpMode::Native,
        keys: None,
    };
    spec.load_object(object).unwrap()
}

fn quorum_native(build: SwitchBuild, time: Duration) -> Result<u64, Failure> {
    let switch = native_switch(build);
    let handle = on(&switch);
    quorum(&handle, switch.registers(), time)
}

fn quorum_kernel(object: &[u8], time: Duration) -> Result<u64, Failure> {
    let program = kernel_switch(object);
    let handle = |packet: &[u8]| in_the_kernel(packet, |frame| program.run(frame, 1).unwrap());
    quorum(&handle, program.registers(), time)
}

#[test]
fn a_phase_ends_once_whoever_answers_when() {
    for build in [c::ib_memory_switch_handle, ib_memory_switch_handle_slow] {
        let rounds = quorum_native(build, WATCH).unwrap();
        assert!(rounds > ROUNDS_MIN, "{rounds}");
    }
    let caught = quorum_native(ib_memory_switch_handle_no_exclusivity, CATCH_WITHIN);
    eprintln!("no exclusivity: {caught:?}");
    assert!(caught.is_err(), "not caught");
    if !kernel_is_there() {
        return;
    }
    for object in [objects::SWITCH, objects::SWITCH_SLOW] {
        let rounds = quorum_kernel(object, WATCH).unwrap();
        assert!(rounds > ROUNDS_MIN, "{rounds}");
    }
    let caught = quorum_kernel(objects::SWITCH_NO_EXCLUSIVITY, CATCH_WITHIN);
    eprintln!("in the kernel: {caught:?}");
    assert!(caught.is_err(), "not caught in the kernel");
}

// --- the switch: timestamps ---

/// Writes per thread and round.
const NUMBERED: u64 = 50;

/// No timestamp may be assigned twice, and each thread's timestamps must increase.
fn numbers(
    handle: &Handle<'_>,
    registers: &SwitchRegisters,
    time: Duration,
) -> Result<u64, Failure> {
    registers.set_epoch(EPOCH);
    let sessions = [(1 << 16, 0), (2 << 16 | 1, 4)];
    for (index, (session, first)) in sessions.into_iter().enumerate() {
        registers.open_session(index, session, first, 4);
    }
    let mut all = BTreeSet::new();
    rounds(time, ROUNDS_MIN, |round| {
        let write = |session: u64| {
            let numbered = (1..=NUMBERED).map(|n| {
                let header = Header {
                    kind: wire::WRITE_REQUEST,
                    session,
                    request: round * NUMBERED + n,
                    lines: 1,
                    ..Header::default()
                };
                let (_, sent) = ask(handle, header, &[9; 64]).ok_or("never sent")?;
                Ok(sent.timestamp)
            });
            numbered.collect::<Result<Vec<u64>, Failure>>()
        };
        let write = &write;
        let given = thread::scope(|scope| {
            let threads = sessions.map(|(session, _)| scope.spawn(move || write(session)));
            threads.map(|thread| thread.join().unwrap())
        });
        for given in given {
            let given = given?;
            ensure(given.is_sorted_by(|a, b| a < b), || format!("{given:?}"))?;
            for timestamp in given {
                ensure(all.insert(timestamp), || format!("{timestamp} twice"))?;
            }
        }
        Ok(())
    })
}

#[test]
fn no_timestamp_is_given_twice() {
    let native = |build, time| {
        let switch = native_switch(build);
        let handle = on(&switch);
        numbers(&handle, switch.registers(), time)
    };
    for build in [c::ib_memory_switch_handle, ib_memory_switch_handle_slow] {
        native(build, WATCH).unwrap();
    }
    let caught = native(ib_memory_switch_handle_number_by_store, CATCH_WITHIN);
    eprintln!("number by store: {caught:?}");
    assert!(caught.is_err(), "not caught");
    if kernel_is_there() {
        let program = kernel_switch(objects::SWITCH_SLOW);
        let handle = |packet: &[u8]| in_the_kernel(packet, |frame| program.run(frame, 1).unwrap());
        numbers(&handle, program.registers(), WATCH).unwrap();
    }
}

// --- the switch: sessions that close ---

/// A closed session must no longer touch its slots: the next session's write keeps its timestamp.
fn closing(
    handle: &Handle<'_>,
    registers: &SwitchRegisters,
    time: Duration,
) -> Result<u64, Failure> {
    registers.set_epoch(EPOCH);
    let [begin, end] = [(); 2].map(|()| Barrier::new(2));
    let over = AtomicBool::new(false);
    let former = AtomicU64::new(0);
    // The last timestamp assigned to the earlier session.
    let former_last = AtomicU64::new(0);
    let write = |session: u64, request: u64| Header {
        kind: wire::WRITE_REQUEST,
        session,
        request,
        lines: 1,
        ..Header::default()
    };
    thread::scope(|scope| {
        scope.spawn(|| loop {
            begin.wait();
            if over.load(SeqCst) {
                return;
            }
            for request in 1.. {
                let packet =
                    common::packet(&write(former.load(SeqCst), request), &[1; 64], &gate());
                match handle(&packet) {
                    (To::Sender, _) => break, // refused
                    (To::Nobody, _) => {}
                    (_, out) => {
                        let timestamp = wire::parse(&out).unwrap().0.timestamp;
                        former_last.fetch_max(timestamp, SeqCst);
                    }
                }
            }
            end.wait();
        });
        let result = rounds(time, ROUNDS_MIN, |round| {
            let [first, second] = [0, 1].map(|index| (round + 1) << 16 | index);
            registers.open_session(0, first, 4, 4);
            former.store(first, SeqCst);
            begin.wait();
            for _ in 0..round % 16 * 100 {
                std::hint::spin_loop();
            }
            registers.close_session(0);
            registers.open_session(1, second, 4, 4);
            let given = (1..=4).map(|request| {
                let [once, again] = [(); 2].map(|()| ask(handle, write(second, request), &[2; 64]));
                let (once, again) = (once.ok_or("never sent")?, again.ok_or("never sent")?);
                ensure(once.1.timestamp == again.1.timestamp, || {
                    format!(
                        "request {request} got {:x} and {:x}",
                        once.1.timestamp, again.1.timestamp
                    )
                })?;
                Ok(once.1.timestamp)
            });
            let given = given.collect::<Result<Vec<u64>, Failure>>();
            end.wait();
            registers.close_session(1);
            let (given, late) = (given?, former_last.load(SeqCst));
            ensure(late < given[0], || {
                format!(
                    "a closed session got {late:x}, the next one {:x} before",
                    given[0]
                )
            })
        });
        over.store(true, SeqCst);
        begin.wait();
        result
    })
}

#[test]
fn a_closed_session_leaves_its_slots_alone() {
    let native = |build, time| {
        let switch = native_switch(build);
        let handle = on(&switch);
        closing(&handle, switch.registers(), time)
    };
    for build in [c::ib_memory_switch_handle, ib_memory_switch_handle_slow] {
        let rounds = native(build, WATCH).unwrap();
        assert!(rounds > ROUNDS_MIN, "{rounds}");
    }
    let caught = native(ib_memory_switch_handle_session_before_lock, CATCH_WITHIN);
    eprintln!("session before lock: {caught:?}");
    assert!(caught.is_err(), "not caught");
    if kernel_is_there() {
        let program = kernel_switch(objects::SWITCH_SLOW);
        let handle = |packet: &[u8]| in_the_kernel(packet, |frame| program.run(frame, 1).unwrap());
        closing(&handle, program.registers(), WATCH).unwrap();
    }
}
