//! The switch in P4 (`dataplane/memory/p4`) on bmv2's `simple_switch` against the packet vectors and, with random
//! packets, against the native build.
#![allow(missing_docs)]

use std::fmt::Display;
use std::mem::offset_of;

use crate::common::{
    buffer_of, leaves, packet, switch_cases, switch_spec, Role, To, EPOCH, FROM_CLIENTS, SERVER,
    SESSION, THERE,
};
use crate::equal::{random_switch_spec, seed, Prng, SwitchPackets, MET_BY_SWITCH};
use inband_ground::auth::Gate;
use inband_ground::xdp::rig::udp_frame;
use inband_ground::System as _;
use inband_memory::registers::SwitchRegisters;
use inband_memory::soft_switch::{SoftSwitch, SwitchSpec};
use inband_memory::wire::{self, Header};
use inband_memory::{c, Memory, SPACES};
use inband_testing::frame::{turned, GROUP, HERE, OWN_MAC};
use inband_testing::p4::{packets, Running, Words, GROUP_PORT, HOST_PORT, SENDER_PORT};
use inband_testing::role::refused_for;
use inband_testing::vector::{named, unsupported};

/// IB_P4_LINES_MAX.
const LINES_MAX: usize = 2;
/// The cases that the switch may fail. May only become smaller.
const UNSUPPORTED_MAX: usize = 1;
/// Random packets between two comparisons of registers.
const COMPARE_EVERY: usize = 40;
/// The addresses of frames from clients: the client's, and the switch's own, as seen by it.
const CLIENT_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 7], [2, 0, 0, 0, 0, 8]];
/// Register arrays of a slot's lines: which servers hold them, timestamps, contents.
const OF_LINES: [(&str, &str, [&str; 8]); LINES_MAX] = [
    (
        "holders0",
        "version0",
        [
            "line0_0", "line0_1", "line0_2", "line0_3", "line0_4", "line0_5", "line0_6", "line0_7",
        ],
    ),
    (
        "holders1",
        "version1",
        [
            "line1_0", "line1_1", "line1_2", "line1_3", "line1_4", "line1_5", "line1_6", "line1_7",
        ],
    ),
];

macro_rules! in_slot {
    ($field:ident) => {
        offset_of!(c::ib_memory_slot, $field)
    };
}

/// Returns the registers of the native build as the switch has them, without hardware addresses and ports.
fn words(spec: &SwitchSpec, registers: &SwitchRegisters) -> Words {
    let mut words = vec![
        ("epoch", 0, registers.epoch()),
        ("deposed", 0, registers.deposed()),
        ("nearly_used_up", 0, registers.nearly_used_up()),
    ];
    for block in 0..spec.sizes().blocks() {
        words.push(("block", block, registers.block(block)));
    }
    for at in 0..spec.sessions {
        let session = registers.session(at);
        words.push(("session", at, session.session));
        words.push(("slot_first", at, session.slot_first));
        words.push(("window", at, session.window));
        words.push(("requests", at, session.requests));
    }
    for slot in 0..spec.slots {
        let bytes: Vec<u8> = registers
            .slot_words(slot)
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        let short = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()).into();
        words.push(("slot_session", slot, long(in_slot!(session))));
        words.push(("slot_request", slot, long(in_slot!(request))));
        words.push(("slot_epoch", slot, long(in_slot!(epoch))));
        words.push(("slot_chunk", slot, long(in_slot!(chunk))));
        words.push(("slot_timestamp", slot, long(in_slot!(timestamp))));
        words.push(("slot_lines", slot, short(in_slot!(lines))));
        words.push(("slot_digest", slot, short(in_slot!(digest))));
        words.push(("slot_phase", slot, short(in_slot!(phase))));
        words.push(("slot_answered", slot, short(in_slot!(answered))));
        let client = in_slot!(client);
        let address = short(client + offset_of!(c::ib_memory_client, address));
        let port = client + offset_of!(c::ib_memory_client, port);
        let port = u16::from_ne_bytes([bytes[port], bytes[port + 1]]);
        words.push(("client_address", slot, address));
        words.push(("client_udp_port", slot, port.into()));
        for (n, (holders, version, line)) in OF_LINES.into_iter().enumerate() {
            words.push((holders, slot, bytes[in_slot!(holders) + n].into()));
            let at = in_slot!(version) + 8 * n;
            words.push((version, slot, u64::from_be(long(at))));
            for (i, name) in line.into_iter().enumerate() {
                let at = in_slot!(line) + 64 * n + 8 * i;
                words.push((name, slot, u64::from_be(long(at))));
            }
        }
    }
    words
}

/// The switch in P4, and the same switch built natively, to compare with.
struct Both<'a> {
    running: &'a mut Running,
    spec: &'a SwitchSpec,
    native: &'a SoftSwitch,
    gate: Gate,
    /// The registers after the last packet.
    known: Words,
    /// Where answers to clients leave.
    client_port: usize,
}

/// Returns `None` if there is no toolchain.
fn start(test: &str, spec: &SwitchSpec) -> Option<Running> {
    let sizes = [
        ("PARTITIONS", SPACES),
        ("CHUNKS", spec.chunks as usize),
        ("BLOCK_SHIFT", (spec.block_lines / 16).ilog2() as usize),
        ("SESSIONS", spec.sessions),
        ("SLOTS", spec.slots),
    ];
    let mut running = Running::start(test, "memory", "switch", spec.node, &sizes)?;
    running.switch.write("servers", 0, spec.servers as u64);
    // Not the right one: requests must write it.
    for slot in 0..spec.slots {
        running.switch.write("client_port", slot, HOST_PORT as u64);
    }
    Some(running)
}

fn client_frame(packet: &[u8]) -> Vec<u8> {
    let mut frame = udp_frame(THERE, HERE, packet);
    frame[..6].copy_from_slice(&CLIENT_MACS[1]);
    frame[6..12].copy_from_slice(&CLIENT_MACS[0]);
    frame
}

impl<'a> Both<'a> {
    fn new(running: &'a mut Running, spec: &'a SwitchSpec, native: &'a SoftSwitch) -> Both<'a> {
        Both {
            running,
            spec,
            native,
            gate: Gate::of::<Memory>(None, SPACES),
            known: Words::new(),
            client_port: SENDER_PORT,
        }
    }

    /// Sets the registers in P4 that were changed natively since the last packet.
    fn set(&mut self) {
        let now = words(self.spec, self.native.registers());
        for (at, (array, index, word)) in now.iter().enumerate() {
            if self.known.get(at).is_none_or(|known| known.2 != *word) {
                self.running.switch.write(array, *index, *word);
            }
        }
        self.known = now;
    }

    /// Passes a packet through both, unless it is refused before the role for a reason.
    fn handle(
        &mut self,
        packet: &[u8],
        refused: Option<&'static str>,
        what: &dyn Display,
    ) -> (To, Vec<u8>) {
        self.set();
        let is_from_client = match wire::parse(packet) {
            Ok((header, _)) => FROM_CLIENTS.contains(&header.kind),
            Err(_) => true,
        };
        let (from, frame) = match is_from_client {
            true => (THERE, client_frame(packet)),
            false => (SERVER, udp_frame(SERVER, HERE, packet)),
        };
        let (to, left, reason) = match refused {
            Some(reason) => (To::Nobody, Vec::new(), reason),
            None => {
                let mut buffer = buffer_of(packet);
                let handled = self.native.handle(&mut buffer, packet.len(), from);
                let (to, left) = leaves(handled, &buffer, &self.gate);
                let reason = Memory::reason_name(handled.reason).expect("it has a name");
                (to, left, reason)
            }
        };
        let out = match to {
            To::Nobody => None,
            To::Process => Some((HOST_PORT, frame.clone())),
            To::Sender => Some((SENDER_PORT, turned(&frame, &left, None))),
            To::Client => Some((self.client_port, turned(&client_frame(packet), &left, None))),
            To::Servers => {
                let mut out = turned(&frame, &left, Some(GROUP));
                out[6..12].copy_from_slice(&OWN_MAC);
                Some((GROUP_PORT, out))
            }
        };
        self.running.frame(&frame, out, reason, what);
        self.known = words(self.spec, self.native.registers());
        (to, left)
    }

    fn compare(&mut self, what: &dyn Display) {
        for (array, index, word) in &self.known {
            self.running.check(array, *index, *word, what);
        }
    }
}

#[test]
fn the_switch_in_p4_passes_every_vector() {
    let cases = switch_cases();
    let names: Vec<&str> = cases.iter().map(|case| &*case.name).collect();
    let listed = unsupported("memory", "p4", "switch", &names);
    assert!(listed.len() <= UNSUPPORTED_MAX, "it may only shrink");
    let spec = switch_spec();
    let Some(mut running) = start("vectors", &spec) else {
        return;
    };
    for case in cases.iter().filter(|case| !listed.contains(&case.name)) {
        named(&case.name, || {
            let native = SoftSwitch::new(&spec);
            let mut both = Both::new(&mut running, &spec, &native);
            let mut at = 0;
            let mut handle = |packet: &[u8]| {
                let what = format!("packet {at} of \"{}\"", case.name);
                at += 1;
                let result = both.handle(packet, None, &what);
                both.compare(&what);
                result
            };
            let mut role = Role {
                handle: &mut handle,
                counters: &|| native.counters(),
            };
            role.run_switch(case, native.registers(), None);
        });
    }
    let (passed, total) = (cases.len() - listed.len(), cases.len());
    println!("P4 memory switch: {passed} of {total} vectors");
    running.end::<Memory>();
}

/// Whether the switch in P4 drops the packet because it is a read of more lines than it can merge.
fn is_too_wide(packet: &[u8]) -> bool {
    wire::parse(packet).is_ok_and(|(header, _)| {
        header.kind == wire::READ_REQUEST && header.lines.count_ones() > LINES_MAX as u32
    })
}

#[test]
fn the_switch_in_p4_equals_the_native_build() {
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let spec = random_switch_spec();
    let Some(mut running) = start("random", &spec) else {
        return;
    };
    let native = SoftSwitch::new(&spec);
    let mut both = Both::new(&mut running, &spec, &native);
    let mut prng = Prng(seed);
    let mut gate = both.gate.clone();
    let registers = [&**native.registers()];
    let mut packets_of = SwitchPackets::new(&registers, LINES_MAX as u32);
    let (count, must_meet) = packets();
    for number in 0..count {
        let what = format!("packet {number} of INBAND_SEED={seed}");
        let packet = loop {
            let packet = packets_of.next(&gate, &mut prng);
            if !is_too_wide(&packet) {
                break packet;
            }
        };
        let refused = refused_for(&mut gate, &packet);
        let (to, left) = both.handle(&packet, refused, &what);
        if to == To::Servers {
            packets_of.keep(left);
        }
        if number % COMPARE_EVERY == 0 {
            both.compare(&what);
        }
        packets_of.change(&registers, &mut prng);
    }
    both.set();
    both.compare(&format!("INBAND_SEED={seed}"));
    if must_meet {
        let counters = native.counters();
        let is_missing = |name: &&&str| !counters.contains_key(**name);
        let missing: Vec<_> = MET_BY_SWITCH.iter().filter(is_missing).collect();
        assert!(missing.is_empty(), "not met: {missing:?}");
    }
    running.end::<Memory>();
}

/// A read of one line, as in the vectors.
fn read() -> Header {
    Header {
        kind: wire::READ_REQUEST,
        session: SESSION,
        request: 1,
        lines: 1,
        ..Header::default()
    }
}

fn with_session(native: &SoftSwitch) {
    native.registers().set_epoch(EPOCH);
    native.registers().open_session(1, SESSION, 4, 4);
}

#[test]
fn an_answer_leaves_by_the_port_of_its_request() {
    let spec = switch_spec();
    let Some(mut running) = start("port", &spec) else {
        return;
    };
    let native = SoftSwitch::new(&spec);
    with_session(&native);
    let mut both = Both::new(&mut running, &spec, &native);
    let request = packet(&read(), &[], &both.gate);
    let (to, asked) = both.handle(&request, None, &"the request");
    assert_eq!(to, To::Servers);
    let (asked, _) = wire::parse(&asked).unwrap();
    let slot = asked.slot as usize;
    both.running
        .check("client_port", slot, SENDER_PORT as u64, &"the request");
    both.running
        .switch
        .write("client_port", slot, GROUP_PORT as u64);
    both.client_port = GROUP_PORT;
    let answers = [1, 2].map(|node| {
        let answer = Header {
            kind: wire::READ_ANSWER,
            node,
            ..asked
        };
        let answer = packet(&answer, &[0; 72], &both.gate);
        both.handle(&answer, None, &"an answer").0
    });
    assert_eq!(answers, [To::Nobody, To::Client]);
    running.end::<Memory>();
}

#[test]
fn a_read_of_more_lines_than_fit_is_dropped_and_changes_nothing() {
    let spec = switch_spec();
    let Some(mut running) = start("wide", &spec) else {
        return;
    };
    let native = SoftSwitch::new(&spec);
    with_session(&native);
    let mut both = Both::new(&mut running, &spec, &native);
    let wide = Header { lines: 7, ..read() };
    let wide = packet(&wide, &[], &both.gate);
    both.handle(&wide, Some("no_room"), &"three lines");
    both.compare(&"three lines");
    running.end::<Memory>();
}
