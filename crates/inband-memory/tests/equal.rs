//! Runs the kernel's programs and the native build on the same random packets, and compares verdicts, outgoing packets,
//! registers and counters. `INBAND_SEED=N` repeats a run.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::{
    self, buffer_of, in_the_kernel, kernel_is_there, leaves, switch_spec, with_and_without_keys,
    To, EPOCH, HERE, SERVER_NODE, THERE,
};
use inband_ground::auth::{Gate, Keys};
use inband_ground::wire::checksum;
use inband_ground::xdp::XdpMode;
use inband_memory::c;
use inband_memory::epoch::EPOCH_AHEAD_MAX;
use inband_memory::registers::{SwitchRegisters, COUNT_BITS, COUNT_MAX};
use inband_memory::soft_server::SoftServer;
use inband_memory::soft_switch::{SoftSwitch, SwitchSpec};
use inband_memory::wire::{self, Header};
use inband_memory::{xdp, Memory, SPACES};

/// Packets per role, without a key and with one.
const STEPS: usize = 10_000;
/// Packets between two comparisons of registers and counters.
const COMPARE_EVERY: usize = 500;
/// Few, so that requests collide.
pub const CHUNKS: u64 = 4;
/// Packets to servers that are kept so that later ones can answer them.
const KEPT: usize = 16;
const ANY_LINES: u32 = 16;

pub fn seed() -> u64 {
    match std::env::var("INBAND_SEED") {
        Ok(seed) => seed.parse().expect("INBAND_SEED is a number"),
        Err(_) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            now.as_nanos() as u64 | 1
        }
    }
}

/// A small generator of pseudo-random numbers (xorshift*).
pub struct Prng(pub u64);

impl Prng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn lines(random: u64) -> u32 {
    match random % 4 {
        0 => 1,
        1 => 0xffff,
        _ => (random >> 8 & 0xffff) as u32 | 0x8000 >> (random % 16),
    }
}

/// Returns a packet's value for these lines, with low timestamps if it carries any.
fn value(header: &Header, prng: &mut Prng) -> Vec<u8> {
    let count = header.lines.count_ones() as usize;
    let mut value = Vec::new();
    match header.kind {
        wire::READ_ANSWER | wire::READ_REPLY | wire::WRITE_BACK => {
            let timestamps: Vec<u64> = match prng.below(3) {
                0 => (0..count).map(|_| prng.below(4)).collect(),
                _ => vec![prng.below(3); count],
            };
            value.extend(timestamps.iter().flat_map(|at| at.to_be_bytes()));
            // Lines with the same timestamp must be equal.
            for (n, at) in timestamps.iter().enumerate() {
                value.extend([(*at as u8) << 4 | n as u8; 64]);
            }
        }
        wire::WRITE => {
            value.resize(64 * count, header.timestamp as u8);
        }
        wire::WRITE_REQUEST => value.resize(64 * count, header.request as u8),
        _ => {}
    }
    value
}

/// Emits a packet, occasionally with a random value in one field or a damaged byte.
fn finish(mut header: Header, gate: &Gate, prng: &mut Prng) -> Vec<u8> {
    if prng.one_in(30) {
        let other = prng.below(3);
        match prng.below(10) {
            0 => header.kind = wire::HELLO + prng.below(14) as u8,
            1 => header.flags = other as u16,
            2 => header.node = other as u16 * 2,
            3 => header.epoch = prng.below(120),
            4 => header.session ^= other,
            5 => header.request += other,
            6 => header.chunk = prng.below(CHUNKS + 1),
            7 => header.lines ^= 1 << prng.below(17),
            8 => header.slot = prng.below(17) as u32,
            _ => header.phase ^= 1 << prng.below(6),
        }
    }
    let value = value(&header, prng);
    let mut packet = common::packet(&header, &value, gate);
    if [wire::READ_REQUEST, wire::READ, wire::ACK].contains(&header.kind) && prng.one_in(3) {
        packet.resize(96 + prng.below(1153) as usize, 7);
    }
    if prng.one_in(40) {
        let at = prng.below(packet.len() as u64) as usize;
        packet[at] ^= 1 << prng.below(8);
        if prng.one_in(2) {
            gate.sign(&mut packet);
        }
    }
    packet
}

/// The counters of both builds of a role, which must be equal.
struct Counted(BTreeMap<&'static str, u64>);

impl Counted {
    /// Compares the two builds. The gate keeps damaged packets from the native build; the program counts them itself.
    fn compare(
        &mut self,
        native: BTreeMap<&'static str, u64>,
        kernel: BTreeMap<&'static str, u64>,
    ) {
        let at_the_gate = ["memory_bad_lines", "memory_bad_epoch"];
        let roles = |(name, _): &(&'static str, u64)| {
            !name.starts_with("bad_") && !at_the_gate.contains(name)
        };
        let [native, kernel] =
            [native, kernel].map(|all| all.into_iter().filter(roles).collect::<BTreeMap<_, _>>());
        assert_eq!(native, kernel);
        self.0 = native;
    }

    fn met(&self, names: &[&str]) {
        let missing: Vec<_> = names
            .iter()
            .filter(|name| !self.0.contains_key(**name))
            .collect();
        assert!(missing.is_empty(), "never met {missing:?} in {:?}", self.0);
    }
}

/// Number, first slot and window of each session.
const SESSIONS: [(u64, u64, u64); 3] = [(1 << 16, 0, 1), (2 << 16 | 1, 4, 4), (3 << 16 | 2, 8, 8)];
/// The switch that they are for.
pub fn random_switch_spec() -> SwitchSpec {
    SwitchSpec {
        chunks: CHUNKS,
        slots: 16,
        ..switch_spec()
    }
}

/// Random packets to a switch, and changes by its process.
pub struct SwitchPackets {
    /// For each session, its number and its next request.
    sessions: Vec<(u64, u64)>,
    kept: Vec<Vec<u8>>,
    epoch: u64,
    /// No read is for more.
    read_lines_max: u32,
}

impl SwitchPackets {
    /// Opens the sessions at all of these switches.
    pub fn new(switches: &[&SwitchRegisters], read_lines_max: u32) -> SwitchPackets {
        for registers in switches {
            registers.set_epoch(EPOCH);
            for (index, (session, first, window)) in SESSIONS.into_iter().enumerate() {
                registers.open_session(index, session, first, window);
            }
        }
        SwitchPackets {
            sessions: SESSIONS.map(|(session, ..)| (session, 0)).to_vec(),
            kept: Vec::new(),
            epoch: EPOCH,
            read_lines_max,
        }
    }

    /// Keeps a packet to the servers, for their answers.
    pub fn keep(&mut self, packet: Vec<u8>) {
        self.kept.truncate(KEPT - 1);
        self.kept.insert(0, packet);
    }

    /// Rarely changes the registers of these switches, which are equal.
    pub fn change(&mut self, switches: &[&SwitchRegisters], prng: &mut Prng) {
        match prng.below(1000) {
            0 => {
                self.epoch += 32;
                switches.iter().for_each(|r| r.set_epoch(self.epoch));
            }
            1 => {
                let used = self.epoch << COUNT_BITS | (COUNT_MAX - 3);
                switches.iter().for_each(|r| r.restore_block(0, used));
            }
            2 => {
                let (session, next) = &mut self.sessions[1];
                switches.iter().for_each(|r| r.close_session(1));
                (*session, *next) = (*session + (1 << 16), 0);
                switches
                    .iter()
                    .for_each(|r| r.open_session(1, *session, 4, 4));
            }
            _ => {}
        }
        if switches[0].epoch() < switches[0].deposed() && prng.one_in(20) {
            self.epoch = switches[0].deposed() + 31;
            switches.iter().for_each(|r| r.set_epoch(self.epoch));
        }
    }

    pub fn next(&mut self, gate: &Gate, prng: &mut Prng) -> Vec<u8> {
        let kept = self.kept.len() as u64;
        let header = match prng.below(100) {
            0..=39 => self.request(prng),
            40..=96 if kept > 0 => {
                let (asked, _) = wire::parse(&self.kept[prng.below(kept) as usize]).unwrap();
                let reads = asked.kind == wire::READ;
                let kind = if reads { wire::READ_ANSWER } else { wire::ACK };
                let node = 1 + prng.below(3) as u16;
                Header {
                    kind,
                    node,
                    ..asked
                }
            }
            _ => Header {
                kind: [wire::EPOCH, wire::HELLO, wire::GRANT][prng.below(3) as usize],
                node: 1,
                flags: prng.below(2) as u16,
                epoch: self.epoch + far(prng, 2) + prng.below(2),
                ..Header::default()
            },
        };
        finish(header, gate, prng)
    }

    fn request(&mut self, prng: &mut Prng) -> Header {
        let at = prng.below(self.sessions.len() as u64) as usize;
        let (session, next) = &mut self.sessions[at];
        *next += u64::from(prng.one_in(2));
        let request = next.saturating_sub(prng.below(3)).max(1);
        // The content of a request is derived from its number.
        let mut what = Prng(*session * 1000 + request);
        let random = what.next();
        let writes = what.one_in(2);
        let mut lines = lines(random);
        while !writes && lines.count_ones() > self.read_lines_max {
            lines &= lines - 1;
        }
        Header {
            kind: if writes {
                wire::WRITE_REQUEST
            } else {
                wire::READ_REQUEST
            },
            session: *session,
            request,
            chunk: what.below(CHUNKS),
            lines,
            ..Header::default()
        }
    }
}

/// One time in n, how far ahead an epoch may be that a role takes over.
fn far(prng: &mut Prng, n: u64) -> u64 {
    match prng.one_in(n) {
        true => EPOCH_AHEAD_MAX,
        false => 0,
    }
}

/// What random packets must meet at a switch.
pub const MET_BY_SWITCH: [&str; 20] = [
    "memory_epoch_ahead",
    "memory_read_begun",
    "memory_read_again",
    "memory_write_begun",
    "memory_write_again",
    "memory_write_done_again",
    "memory_answer_late",
    "memory_answer_repeated",
    "memory_read_counted",
    "memory_read_done",
    "memory_read_write_back",
    "memory_ack_counted",
    "memory_write_done",
    "memory_write_back_done",
    "memory_write_back_again",
    "memory_deposed",
    "memory_not_active",
    "memory_no_session",
    "memory_old_request",
    "memory_timestamps_used_up",
];

/// Returns a slot's words without the hardware addresses and interfaces, which only the kernel has.
fn slot_words(registers: &SwitchRegisters, slot: usize) -> Vec<u64> {
    let mut words = registers.slot_words(slot);
    let client = std::mem::offset_of!(c::ib_memory_slot, client) / 8;
    words[client] &= 0xffff_ffff_ffff; // address and port are the low six bytes
    words[client + 1] = 0;
    words[client + 2] = 0;
    words
}

fn switch_is_equal(keys: Option<Keys>, seed: u64) {
    let switch = random_switch_spec();
    let native = SoftSwitch::new(&switch);
    let kernel = xdp::switch::Spec {
        switch,
        address: HERE,
        mode: XdpMode::Native,
        keys,
    }
    .load()
    .unwrap();
    let both = [native.registers(), kernel.registers()];
    let mut prng = Prng(seed);
    let mut gate = Gate::of::<Memory>(keys, SPACES);
    let signer = gate.clone();
    let mut packets = SwitchPackets::new(&both.map(|registers| &**registers), ANY_LINES);
    let mut counted = Counted(BTreeMap::new());
    for step in 0..STEPS {
        let at = format!("step {step}, INBAND_SEED={seed}");
        let packet = packets.next(&signer, &mut prng);
        let (to, out) = in_the_kernel(&packet, |frame| kernel.run(frame, 1).unwrap());
        let (native_to, native_out) = if gate.admits(&packet) {
            let mut buffer = buffer_of(&packet);
            let handled = native.handle(&mut buffer, packet.len(), THERE);
            leaves(handled, &buffer, &signer)
        } else {
            (To::Nobody, Vec::new())
        };
        assert_eq!(to, native_to, "{at}: {:?}", wire::parse(&packet));
        if to != To::Nobody {
            assert_eq!(out, native_out, "{at}");
            let (header, value) = wire::parse(&out).unwrap();
            let sum = if value.is_empty() { 0 } else { checksum(value) };
            let own = to != To::Process && header.kind != wire::WRITE;
            assert!(!own || header.digest == sum, "{at}: {header:?}");
        }
        if to == To::Servers {
            packets.keep(out);
        }
        packets.change(&both.map(|registers| &**registers), &mut prng);
        if step % COMPARE_EVERY == 0 || step + 1 == STEPS {
            for slot in 0..both[0].slots() {
                let [native, kernel] = both.map(|registers| slot_words(registers, slot));
                assert_eq!(native, kernel, "slot {slot}, {at}");
            }
            for index in 0..both[0].sessions() {
                assert_eq!(both[0].session(index), both[1].session(index), "{at}");
            }
            for block in 0..2 {
                assert_eq!(both[0].block(block), both[1].block(block), "{at}");
            }
            assert_eq!(both[0].deposed(), both[1].deposed(), "{at}");
            assert_eq!(both[0].counts_max(), both[1].counts_max(), "{at}");
            counted.compare(native.counters(), kernel.counters().unwrap());
        }
    }
    counted.met(&MET_BY_SWITCH);
}

#[test]
fn kernel_and_native_switch_are_equal() {
    if !kernel_is_there() {
        return;
    }
    for keys in with_and_without_keys() {
        switch_is_equal(keys, seed());
    }
}

fn server_packet(gate: &Gate, epoch: u64, prng: &mut Prng) -> Vec<u8> {
    let kinds = [wire::READ, wire::WRITE, wire::WRITE_BACK];
    let header = Header {
        kind: kinds[prng.below(3) as usize],
        node: 16,
        epoch: epoch + far(prng, 20) + prng.below(6) - 3,
        session: prng.below(9),
        request: prng.below(9),
        chunk: prng.below(CHUNKS),
        timestamp: prng.below(6),
        lines: lines(prng.next()),
        slot: prng.below(9) as u32,
        phase: prng.below(9) as u32,
        ..Header::default()
    };
    finish(header, gate, prng)
}

fn server_is_equal(keys: Option<Keys>, seed: u64) {
    let native = SoftServer::new(SERVER_NODE, CHUNKS as usize);
    let kernel = xdp::server::Spec {
        node: SERVER_NODE,
        chunks: CHUNKS as usize,
        address: HERE,
        mode: XdpMode::Native,
        keys,
    }
    .load()
    .unwrap();
    let both = [native.registers(), kernel.registers()];
    let mut prng = Prng(seed);
    let mut gate = Gate::of::<Memory>(keys, SPACES);
    let signer = gate.clone();
    let mut counted = Counted(BTreeMap::new());
    for step in 0..STEPS {
        if step == STEPS / 10 {
            both.iter()
                .for_each(|registers| registers.set_serving(true));
        }
        let at = format!("step {step}, INBAND_SEED={seed}");
        // A packet with a damaged or a far epoch may have raised it.
        let epoch = both[0].epoch().max(48 + step as u64 / 100);
        let packet = server_packet(&signer, epoch, &mut prng);
        let (to, out) = in_the_kernel(&packet, |frame| kernel.run(frame, 1).unwrap());
        let (native_to, native_out) = if gate.admits(&packet) {
            let mut buffer = buffer_of(&packet);
            let handled = native.handle(&mut buffer, packet.len());
            leaves(handled, &buffer, &signer)
        } else {
            (To::Nobody, Vec::new())
        };
        assert_eq!(to, native_to, "{at}: {:?}", wire::parse(&packet));
        if to != To::Nobody {
            assert_eq!(out, native_out, "{at}");
        }
        if step % COMPARE_EVERY == 0 || step + 1 == STEPS {
            for chunk in 0..CHUNKS as usize {
                assert_eq!(both[0].chunk(chunk), both[1].chunk(chunk), "{at}");
            }
            assert_eq!(both[0].epoch(), both[1].epoch(), "{at}");
            counted.compare(native.counters(), kernel.counters().unwrap());
        }
    }
    counted.met(&[
        "memory_recovering",
        "memory_epoch_ahead",
        "memory_read",
        "memory_written",
        "memory_old_epoch",
        "memory_bad_digest",
        "memory_bad_chunk",
        "passed_up",
        "memory_not_for_role",
    ]);
}

#[test]
fn kernel_and_native_server_are_equal() {
    if !kernel_is_there() {
        return;
    }
    for keys in with_and_without_keys() {
        server_is_equal(keys, seed());
    }
}
