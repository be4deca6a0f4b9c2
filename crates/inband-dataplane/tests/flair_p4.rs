//! FLAIR's switch in P4 (`dataplane/flair/p4`) on bmv2's `simple_switch` against the packet vectors and, with random
//! packets, against the native build. Packets arrive at given times, with given random numbers (IB_P4_GIVEN).

use std::collections::BTreeSet;
use std::fmt::Display;
use std::mem::offset_of;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use crate::common::flair::{FlairUnderTest, GEOMETRY, INCARNATION};
use crate::common::flair_sequence::Sequence;
use crate::common::{seed, Prng, HERE, NODE, THERE};
use crate::flair_vectors::Case;
use inband_flair::dataplane::wire::{emit, flag, Header, Type};
use inband_flair::dataplane::{c, Flair, FlairRegisters, FlairSwitch, Verdict, REPLICAS_MAX};
use inband_ground::auth::Gate;
use inband_ground::soft::Arrival;
use inband_ground::xdp::rig::udp_frame;
use inband_ground::System as _;
use inband_testing::frame::{tag, turned};
use inband_testing::p4::{
    packets, Running, SimpleSwitch, Words, GROUP_PORT, HOST_PORT, SENDER_PORT,
};
use inband_testing::role::{missing, native, Outcome};
use inband_testing::vector::{cases, named, unsupported, Case as _};

/// The cases that the switch may fail. May only become smaller.
const UNSUPPORTED_MAX: usize = 1;
/// Random packets between two comparisons of registers.
const COMPARE_EVERY: usize = 40;
/// Clients whose addresses the switch knows; it leaves packets for others to the host.
const CLIENTS: [Ipv4Addr; 3] = [
    Ipv4Addr::new(10, 9, 8, 9),
    Ipv4Addr::new(10, 9, 8, 10),
    Ipv4Addr::new(10, 0, 0, 1),
];
/// The replica of random runs whose address it does not know: its set and number.
const UNKNOWN: (usize, usize) = (1, 6);
/// Frames that the program sends to this port are dropped.
const NO_PORT: usize = 511;
/// Reads that the switch distributes with its own random numbers.
const READS: u64 = 4_000;
/// Where the clock stands that is compiled in, in microseconds.
const NOW_US: usize = 5_000;
/// Register arrays of a set: words of `struct ib_flair_session`.
const OF_SETS: [(&str, usize); 8] = [
    ("session", offset_of!(c::ib_flair_session, session)),
    ("log_index", offset_of!(c::ib_flair_session, log_index)),
    ("weights", offset_of!(c::ib_flair_session, weights)),
    (
        "step_down_ns",
        offset_of!(c::ib_flair_session, step_down_ns),
    ),
    ("deadline_ns", offset_of!(c::ib_flair_session, deadline_ns)),
    ("route", offset_of!(c::ib_flair_session, route)),
    ("seq", offset_of!(c::ib_flair_session, seq)),
    ("replied", offset_of!(c::ib_flair_session, replied)),
];
/// ... and of a group: of `struct ib_flair_group`.
const OF_GROUPS: [(&str, usize); 5] = [
    ("group_session", offset_of!(c::ib_flair_group, session)),
    ("group_seq", offset_of!(c::ib_flair_group, seq)),
    ("group_stable", offset_of!(c::ib_flair_group, stable)),
    ("group_log_index", offset_of!(c::ib_flair_group, log_index)),
    ("group_followers", offset_of!(c::ib_flair_group, followers)),
];

/// Returns the registers of the native build as the switch has them.
fn words(registers: &FlairRegisters) -> Words {
    let mut words = Words::new();
    for set in 0..registers.sessions.count() {
        let of_set = registers.sessions.words(set);
        words.extend(OF_SETS.map(|(array, at)| (array, set, of_set[at / 8])));
    }
    for group in 0..registers.groups.count() {
        let of_group = registers.groups.words(group);
        words.extend(OF_GROUPS.map(|(array, at)| (array, group, of_group[at / 8])));
    }
    words
}

/// Where the switch sends packets for a host: hardware addresses, of the host and its own, and port.
struct Way {
    to_mac: [u8; 6],
    own_mac: [u8; 6],
    port: usize,
}

/// Every second host is behind another port.
fn way(kind: u8, number: u8) -> Way {
    Way {
        to_mac: [2, 0, 0, kind, 0, number],
        own_mac: [2, 0, 0, kind, 1, number],
        port: [SENDER_PORT, GROUP_PORT][usize::from(number % 2)],
    }
}

fn replica_way(set: usize, replica: usize) -> (Way, SocketAddrV4) {
    let number = (set * REPLICAS_MAX + replica) as u8;
    let address = SocketAddrV4::new(Ipv4Addr::new(10, 9, 7, 1 + number), 7800 + replica as u16);
    (way(1, number), address)
}

/// Returns `None` if the switch does not know the client.
fn client_way(address: Ipv4Addr) -> Option<Way> {
    let number = CLIENTS.iter().position(|known| *known == address)?;
    Some(way(2, number as u8))
}

fn add_replica(switch: &mut SimpleSwitch, set: usize, replica: usize, port: usize) {
    let (way, address) = replica_way(set, replica);
    let key = ((set * REPLICAS_MAX + replica) as u16).to_be_bytes();
    let ip = address.ip().octets();
    let (udp_port, port) = (address.port().to_be_bytes(), (port as u16).to_be_bytes());
    let data: [&[u8]; 5] = [&way.to_mac, &way.own_mac, &ip, &udp_port, &port];
    switch.add_entry("replicas", &key, "replica", &data);
}

/// Returns `None` if there is no toolchain.
fn start(test: &str, given: &[(&str, usize)]) -> Option<Running> {
    let sizes = [
        ("PARTITIONS", GEOMETRY.sets),
        ("GROUP_BITS", GEOMETRY.groups.ilog2() as usize),
    ];
    let sizes = [&sizes[..], given].concat();
    let mut running = Running::start(test, "flair", "switch", NODE, &sizes)?;
    running.switch.write("incarnation", 0, INCARNATION);
    Some(running)
}

/// The switch in P4, and the same switch built natively, to compare with.
struct Both<'a> {
    running: &'a mut Running,
    native: FlairSwitch,
    gate: Gate,
    /// A replica whose address the switch does not know.
    unknown: Option<(usize, usize)>,
    /// The registers after the last packet.
    known: Words,
    /// The last time and random number given.
    given: (u64, u32),
}

/// Starts a switch with the addresses of clients and replicas, except an unknown one.
fn start_given(test: &str, unknown: Option<(usize, usize)>) -> Option<Running> {
    let mut running = start(test, &[("GIVEN", 1)])?;
    for set in 0..GEOMETRY.sets {
        for replica in (0..REPLICAS_MAX).filter(|replica| unknown != Some((set, *replica))) {
            let port = replica_way(set, replica).0.port;
            add_replica(&mut running.switch, set, replica, port);
        }
    }
    for address in CLIENTS {
        let way = client_way(address).expect("it is known");
        let port = (way.port as u16).to_be_bytes();
        let data: [&[u8]; 3] = [&way.to_mac, &way.own_mac, &port];
        let key = address.octets();
        running.switch.add_entry("clients", &key, "client", &data);
    }
    Some(running)
}

/// The answer to a frame for another host than its sender.
fn sent_to(frame: &[u8], packet: &[u8], way: &Way, to: SocketAddrV4) -> (usize, Vec<u8>) {
    let mut out = turned(frame, packet, Some((to.ip().octets(), to.port())));
    out[..6].copy_from_slice(&way.to_mac);
    out[6..12].copy_from_slice(&way.own_mac);
    (way.port, out)
}

impl<'a> Both<'a> {
    fn new(running: &'a mut Running, native: FlairSwitch) -> Both<'a> {
        Both {
            running,
            native,
            gate: Gate::of::<Flair>(None, GEOMETRY.sets),
            unknown: None,
            known: Words::new(),
            given: (0, 0),
        }
    }

    /// Sets the registers in P4 that were changed natively since the last packet.
    fn set(&mut self) {
        let now = words(self.native.registers());
        for (at, (array, index, word)) in now.iter().enumerate() {
            if self.known.get(at).is_none_or(|known| known.2 != *word) {
                self.running.switch.write(array, *index, *word);
            }
        }
        self.known = now;
    }

    /// Each change waits for all packets before it.
    fn give(&mut self, packet: &[u8], arrival: Arrival) {
        let (now_ns, random) = self.given;
        if arrival.now_ns != now_ns {
            let switch = &mut self.running.switch;
            switch.write("given_now_ns", 0, arrival.now_ns);
            self.given.0 = arrival.now_ns;
        }
        if arrival.random != random && packet.get(5) == Some(&(Type::Read as u8)) {
            let switch = &mut self.running.switch;
            switch.write("given_random", 0, arrival.random.into());
            self.given.1 = arrival.random;
        }
    }

    /// Passes a frame through the switch, which must send this packet. Returns the reason that it must count.
    fn frame<'r>(
        &mut self,
        frame: &[u8],
        (verdict, reason, packet): (Verdict, &'r str, &[u8]),
        what: &dyn Display,
    ) -> &'r str {
        let (out, instead) = self.leaves(frame, verdict, packet);
        let reason = instead.unwrap_or(reason);
        self.running.frame(frame, out, reason, what);
        reason
    }

    /// Where the packet leaves and in which frame; and the reason that counts instead of the role's.
    fn leaves(
        &self,
        frame: &[u8],
        verdict: Verdict,
        packet: &[u8],
    ) -> (Option<(usize, Vec<u8>)>, Option<&'static str>) {
        let out = match verdict {
            Verdict::Drop => None,
            // Not for this switch.
            Verdict::Pass => Some((HOST_PORT, frame.to_vec())),
            Verdict::Reply => Some((SENDER_PORT, turned(frame, packet, None))),
            Verdict::ToReplica { set, replica } => {
                if self.unknown == Some((set, replica)) {
                    return (None, Some("copy_unresolved"));
                }
                let (way, to) = replica_way(set, replica);
                Some(sent_to(frame, packet, &way, to))
            }
            Verdict::ToClient(to) => match client_way(*to.ip()) {
                Some(way) => Some(sent_to(frame, packet, &way, to)),
                None => {
                    // Still addressed to this host.
                    let same = turned(&turned(frame, packet, None), packet, None);
                    return (Some((HOST_PORT, same)), Some("flair_client_by_host"));
                }
            },
        };
        (out, None)
    }

    /// Passes a packet through both. Returns the native result, and the reason that the switch must count.
    fn handle(
        &mut self,
        packet: &[u8],
        arrival: Arrival,
        what: &dyn Display,
    ) -> (Outcome<Verdict>, &'static str) {
        self.give(packet, arrival);
        let outcome = native::<FlairUnderTest>(&mut self.gate, &self.native, packet, arrival);
        let frame = udp_frame(arrival.from, HERE, packet);
        let expected = (outcome.verdict, outcome.reason, &*outcome.packet);
        let reason = self.frame(&frame, expected, what);
        (outcome, reason)
    }

    /// Compares the registers that have changed since the last comparison.
    fn compare(&mut self, what: &dyn Display) {
        let now = words(self.native.registers());
        for (at, (array, index, word)) in now.iter().enumerate() {
            if self.known.get(at).is_none_or(|known| known.2 != *word) {
                self.running.check(array, *index, *word, what);
            }
        }
        self.known = now;
    }

    fn compare_all(&mut self, what: &dyn Display) {
        self.known.clear();
        self.compare(what);
    }
}

#[test]
fn the_switch_in_p4_passes_every_vector() {
    let cases = cases::<Case>("flair");
    let names: Vec<&str> = cases.iter().map(|case| case.name()).collect();
    let listed = unsupported("flair", "p4", "switch", &names);
    assert!(listed.len() <= UNSUPPORTED_MAX, "it may only shrink");
    let Some(mut running) = start_given("vectors", None) else {
        return;
    };
    let mut known = Words::new();
    let mut given = (0, 0);
    for case in cases.iter().filter(|case| !listed.contains(case.name())) {
        named(case.name(), || {
            let mut both = Both::new(&mut running, case.native().0);
            (both.known, both.given) = (std::mem::take(&mut known), given);
            let mut expected = case.prepare(both.native.registers());
            both.set();
            for at in 0..case.packets() {
                let what = format!("packet {at} of \"{}\"", case.name());
                let step = case.step(at, None);
                let right = (step.verdict, &*step.reason, &*step.out);
                if let Some(damage) = &step.frame {
                    let frame = udp_frame(step.arrival.from, HERE, &step.packet);
                    both.give(&step.packet, step.arrival);
                    both.frame(&damage.of(frame), right, &what);
                } else {
                    let (got, _) = both.handle(&step.packet, step.arrival, &what);
                    assert_eq!((got.verdict, got.reason, &*got.packet), right, "{what}");
                }
                case.check(at, both.native.registers(), &mut expected);
                both.compare(&what);
            }
            both.compare_all(&case.name());
            known = std::mem::take(&mut both.known);
            given = both.given;
        });
    }
    let (passed, total) = (cases.len() - listed.len(), cases.len());
    println!("P4 flair switch: {passed} of {total} vectors");
    running.end::<Flair>();
}

#[test]
fn the_switch_in_p4_equals_the_native_build() {
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let Some(mut running) = start_given("random", Some(UNKNOWN)) else {
        return;
    };
    let native = FlairSwitch::new(NODE, GEOMETRY, INCARNATION);
    let mut both = Both::new(&mut running, native);
    both.unknown = Some(UNKNOWN);
    both.set();
    let mut prng = Prng(seed);
    let mut sequence = Sequence::default();
    let mut met = BTreeSet::new();
    let (count, must_meet) = packets();
    for number in 0..count {
        let what = format!("packet {number} of INBAND_SEED={seed}");
        let mut step = sequence.step(&prng.record());
        tag(&mut step.packet);
        let arrival = Arrival {
            from: step.from,
            now_ns: step.now_ns,
            random: step.random,
        };
        let (outcome, reason) = both.handle(&step.packet, arrival, &what);
        sequence.answered(&outcome.packet);
        met.extend([outcome.reason, reason]);
        if number % COMPARE_EVERY == 0 {
            both.compare(&what);
        }
    }
    both.compare_all(&format!("INBAND_SEED={seed}"));
    if must_meet {
        // Two of 10,000 packets have it: too few to rely on.
        met.insert("flair_time_old");
        let missing = missing::<Flair>("flair_", &[], &met);
        assert!(missing.is_empty(), "not met: {missing:?}");
        assert!(met.contains("copy_unresolved"), "{met:?}");
    }
    running.end::<Flair>();
}

fn counted(switch: &mut SimpleSwitch, reason: &str) -> u64 {
    let is_it = |number: &u32| Flair::reason_name(*number) == Some(reason);
    let number = (0..1024).find(is_it).expect("there is such a reason");
    switch.settle();
    switch.counter("reasons", number as usize)
}

fn packet_of(header: &Header) -> Vec<u8> {
    let mut packet = Vec::new();
    emit(header, b"", b"", &mut packet);
    tag(&mut packet);
    packet
}

fn frame_of(header: &Header) -> Vec<u8> {
    udp_frame(THERE, HERE, &packet_of(header))
}

/// The reason that is counted tells whether session 5 of set 1 is active.
fn reply_that_is_dropped() -> Vec<u8> {
    let mut reply = Header::new(Type::WriteReply, 1, 9);
    (reply.session, reply.flags) = (5, flag::REFRESH);
    frame_of(&reply)
}

/// The program as deployed takes the time and random numbers from the switch.
#[test]
fn the_switchs_own_clock_and_chance() {
    let before = Instant::now();
    let Some(mut running) = start("clock", &[]) else {
        return;
    };
    let since = Instant::now();
    let switch = &mut running.switch;
    // Reads are distributed approximately by weight. Replica 0 is behind no port, the others are unknown.
    add_replica(switch, 1, 0, NO_PORT);
    switch.write("session", 1, 5);
    switch.write("route", 1, 3 << 24 | 0b0111 << 16 | 0b0111 << 8);
    switch.write("weights", 1, u64::from_le_bytes([1, 0, 3, 200, 0, 0, 0, 0]));
    switch.write("deadline_ns", 1, i64::MAX as u64);
    let read = frame_of(&Header::new(Type::Read, 1, 0));
    for _ in 0..READS {
        switch.send(&read, None, "a read");
    }
    let to_first = counted(switch, "flair_read_to_follower");
    assert_eq!(to_first + counted(switch, "copy_unresolved"), READS);
    let near_a_quarter = READS / 5..READS / 3;
    assert!(near_a_quarter.contains(&to_first), "{to_first} of {READS}");
    // Its clock began when it was started.
    let reply = reply_that_is_dropped();
    let later_ns = (before.elapsed() + Duration::from_secs(60)).as_nanos() as u64;
    switch.write("deadline_ns", 1, later_ns);
    switch.send(&reply, None, "a reply in time");
    assert_eq!(counted(switch, "flair_refresh_overtaken"), 1);
    let elapsed_ns = since.elapsed().as_nanos() as u64;
    switch.write("deadline_ns", 1, elapsed_ns);
    switch.send(&reply, None, "a late reply");
    assert_eq!(counted(switch, "flair_reply_no_session"), 1);
}

/// The switch's clock counts microseconds. It rounds down the time that it tells a leader, and rounds up the time that it
/// compares with a session's deadline.
#[test]
fn times_of_the_switchs_own_clock_are_rounded_to_the_safe_side() {
    let Some(mut running) = start("rounding", &[("NOW_US", NOW_US)]) else {
        return;
    };
    let now_ns = NOW_US as u64 * 1000;
    let arrival = Arrival {
        from: THERE,
        now_ns,
        random: 0,
    };
    let mut both = Both::new(&mut running, FlairSwitch::new(NODE, GEOMETRY, INCARNATION));
    let mut install = Header::new(Type::Install, 1, 9);
    (install.session, install.seq, install.client_id) = (5, INCARNATION, 100);
    let packet = packet_of(&install);
    let outcome = native::<FlairUnderTest>(&mut both.gate, &both.native, &packet, arrival);
    assert_eq!(outcome.reason, "flair_installed");
    let told = (outcome.verdict, outcome.reason, &*outcome.packet);
    both.frame(&frame_of(&install), told, &"an INSTALL");
    let switch = &mut running.switch;
    let reply = reply_that_is_dropped();
    for (deadline_ns, reason) in [
        (now_ns + 1000, "flair_refresh_overtaken"),
        (now_ns + 999, "flair_reply_no_session"),
    ] {
        switch.write("deadline_ns", 1, deadline_ns);
        switch.send(&reply, None, reason);
        assert_eq!(counted(switch, reason), 1);
    }
}
