//! SETs over UDP that a leader's packet program proposes: the records are those that the process would submit, and
//! everything else passes unchanged. The role in the process does the same with them.
#![allow(missing_docs)]

use std::net::{Ipv4Addr, SocketAddrV4};

use inband_box::command::Command;
use inband_box::memcached::{parse, Parsed, Request};
use inband_box::objects;
use inband_box::registers::{Client, ORIGIN_ROLE};
use inband_box::role::{Mode, Record, Role, Verdict, View};
use inband_box::soft::{handle_set, soft_with_clients};
use inband_box::xdp::{clients_of, Program, Spec, UdpClients};
use inband_box::Zab;
use inband_ground::soft::Soft;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::xdp::multicast::GroupMaps;
use inband_ground::xdp::rig::udp_frame;
use inband_testing::frame::{may_load_bpf, HERE, NODE, THERE, XDP_PASS, XDP_REDIRECT};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::{groups_of, spec};

const PORT: u16 = 11213;
/// Where GETs pass.
const STRONG_PORT: u16 = 11214;
const REQUESTS: usize = 6_000;
/// Of the node under test.
const EPOCH: u64 = 34;
const WINDOW: u64 = 4;
const REQUEST: u16 = 0x1234;

fn there() -> SocketAddrV4 {
    SocketAddrV4::new(*HERE.ip(), PORT)
}

struct Rig {
    program: Program,
    _groups: GroupMaps,
    native: Soft<Zab>,
}

impl Rig {
    fn new() -> Rig {
        let spec = Spec {
            clients: Some(UdpClients {
                from: (*THERE.ip(), Ipv4Addr::new(255, 255, 255, 0)),
                local: Some(there()),
                strong: Some(SocketAddrV4::new(*HERE.ip(), STRONG_PORT)),
                chunks: 100,
            }),
            ..spec(None)
        };
        let program = spec.load_object(objects::BOX_GETS).unwrap();
        Rig {
            _groups: groups_of(&program),
            program,
            native: soft_with_clients(NODE, spec.capacity),
        }
    }

    /// Has the node begin to lead, with an empty log.
    fn lead(&self, mode: Mode, committed: u64) {
        for registers in [self.program.registers(), self.native.registers()] {
            registers.restart();
        }
        self.lead_on(EPOCH, mode, committed);
    }

    /// The same in this epoch, in the process that was there before.
    fn lead_on(&self, epoch: u64, mode: Mode, committed: u64) {
        for registers in [self.program.registers(), self.native.registers()] {
            registers.restore(&View {
                mode,
                epoch,
                leader: NODE,
                first: 1,
                members: 0b1110,
                quorum: 2,
                window: WINDOW,
                established_at: committed,
                ..View::default()
            });
        }
    }

    /// Returns the record that the role in this process makes of the request, or `None` if it passes it.
    fn run_natively(&self, text: &[u8]) -> Option<Record> {
        let client = Client {
            address: THERE,
            request: 0,
            is_strong: false,
        };
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        let handled = handle_set(&self.native, &client, &datagram(text), &mut buffer, 0);
        if handled.verdict == Verdict::Pass {
            return None;
        }
        assert_eq!(handled.verdict, Verdict::ToOthers);
        let (header, value) = inband_box::wire::parse(&buffer[..handled.len_bytes]).unwrap();
        let record = inband_box::wire::record_of(&header, value);
        assert_eq!(self.native.read(record.zxid).as_ref(), Some(&record));
        let client = Client {
            request: REQUEST,
            ..client
        };
        assert_eq!(self.native.registers().client_of(&record), Some(client));
        Some(record)
    }

    /// Returns the record that the program makes of the request, or `None` if it passes it. The role in this process
    /// makes the same of it.
    fn run(&self, text: &[u8]) -> Option<Record> {
        let record = self.run_to(PORT, text);
        assert_eq!(self.run_natively(text), record, "{}", text.escape_ascii());
        record
    }

    /// The same for the program only, at this port.
    fn run_to(&self, port: u16, text: &[u8]) -> Option<Record> {
        let frame = frame_of(THERE, port, text);
        let last = self.program.registers().view().last;
        let run = self.program.run(&frame, 1).unwrap();
        let what = text.escape_ascii();
        if run.action == XDP_PASS {
            assert_eq!(run.frame, frame, "passed, but changed: {what}");
            assert_eq!(self.program.registers().view().last, last, "{what}");
            return None;
        }
        assert_eq!(run.action, XDP_REDIRECT, "{what}");
        let record = self
            .program
            .registers()
            .record(last + 1)
            .expect("it is there");
        let (header, value) = inband_box::wire::parse(&run.frame[42..]).unwrap();
        assert_eq!(
            inband_box::wire::record_of(&header, value),
            record,
            "{what}"
        );
        assert_eq!(u16::from(NODE), header.node);
        Some(record)
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.program.counters().unwrap();
        counters.get(name).copied().unwrap_or(0)
    }
}

fn datagram(text: &[u8]) -> Vec<u8> {
    let [high, low] = REQUEST.to_be_bytes();
    [&[high, low, 0, 0, 0, 1, 0, 0], text].concat()
}

fn frame_of(from: SocketAddrV4, port: u16, text: &[u8]) -> Vec<u8> {
    udp_frame(from, SocketAddrV4::new(*HERE.ip(), port), &datagram(text))
}

/// The value of the record that the process submits for a `set` that is the whole text.
fn submitted(text: &[u8]) -> Option<Vec<u8>> {
    let Parsed::Whole {
        request:
            Request::Store {
                mode,
                key,
                flags,
                exptime_s,
                value,
                is_quiet: false,
                ..
            },
        ..
    } = parse(text)
    else {
        return None;
    };
    let mut stream = Vec::new();
    let command = Command::Store {
        mode,
        key,
        value,
        flags,
        exptime_s,
        cas: 0,
        may_be_stale: false,
        is_binary_key: false,
    };
    command.encode(&mut stream);
    Some(stream)
}

fn set(key: &[u8], flags: &str, exptime: &str, value: &[u8]) -> Vec<u8> {
    let numbers = format!(" {flags} {exptime} {}\r\n", value.len());
    [b"set ", key, numbers.as_bytes(), value, b"\r\n"].concat()
}

fn random_set(random: &mut StdRng) -> Vec<u8> {
    let len = match random.random_range(0..4) {
        0 => random.random_range(1..=250),
        1 => random.random_range(125..=130),
        _ => random.random_range(1..=20),
    };
    let key: Vec<u8> = (0..len).map(|_| random.random_range(0x21..=0xff)).collect();
    let len = match random.random_range(0..4) {
        0 => random.random_range(0..=1250),
        1 => random.random_range(120..=135),
        2 => 1240 - key.len() + random.random_range(0..=8) - 8,
        _ => random.random_range(0..=20),
    };
    let value: Vec<u8> = (0..len).map(|_| random.random()).collect();
    let mut number = |limit: u64| match random.random_range(0..3) {
        0 => random.random_range(0..=limit),
        1 => (1 << random.random_range(0..32)) - random.random_range(0..=1),
        _ => 0,
    };
    let flags = number(u64::from(u32::MAX)).to_string();
    let exptime = number(i32::MAX as u64).min(i32::MAX as u64).to_string();
    set(&key, &flags, &exptime, &value)
}

/// Random SETs, whole and damaged: a record is the one of the process; what passes is unchanged.
#[test]
fn the_program_proposes_what_the_process_would_submit() {
    if !may_load_bpf() {
        return;
    }
    let rig = Rig::new();
    let mut random = StdRng::seed_from_u64(1715);
    let (mut proposed, mut passed) = (0, 0);
    for _ in 0..REQUESTS {
        rig.lead(Mode::Leading, 0);
        let mut text = random_set(&mut random);
        let is_whole = random.random_range(0..3) > 0;
        if !is_whole {
            let at = random.random_range(0..text.len());
            match random.random_range(0..4) {
                0 => text[at] = random.random(),
                1 => text.truncate(at.max(1)),
                2 => text.insert(at, b" 0\r\n-"[random.random_range(0..5)]),
                _ => text.truncate(text.len() - 1),
            }
        }
        let expected = submitted(&text);
        match rig.run(&text) {
            Some(record) => {
                assert_eq!(Some(record.value), expected, "{}", text.escape_ascii());
                proposed += 1;
            }
            None => {
                let fits = expected.is_some_and(|value| value.len() <= 1248) && text.len() <= 1392;
                assert!(!is_whole || !fits, "{}", text.escape_ascii());
                passed += 1;
            }
        }
    }
    assert!(proposed > REQUESTS / 2 && passed > REQUESTS / 20);
    assert_eq!(rig.counter("sets_proposed"), proposed as u64);
}

#[test]
fn a_set_whose_data_has_another_length_passes() {
    if !may_load_bpf() {
        return;
    }
    let rig = Rig::new();
    rig.lead(Mode::Leading, 0);
    for text in [
        &b"set k 0 0 1\r\nx\r\nset l 0 0 1\r\nx\r\n"[..],
        b"set k 0 0 1\r\nx\r\n\r\n",
        b"set k 0 0 2\r\nx\r\n",
        b"set k 0 0 1\r\nxy\r\n",
        b"set k 0 0 1300\r\nx\r\n",
        b"set k 0 0 -1\r\nx\r\n",
        b"set k 0 0 1 noreply\r\nx\r\n",
        b"set k 0 0 1\nx\r\n",
        b"set k  0 0 1\r\nx\r\n",
        b"set  0 0 1\r\nx\r\n",
        b"set k 4294967296 0 1\r\nx\r\n",
        b"set k 0 2147483648 1\r\nx\r\n",
        b"add k 0 0 1\r\nx\r\n",
    ] {
        assert_eq!(rig.run(text), None, "{}", text.escape_ascii());
    }
    let key = [b'k'; 251];
    assert_eq!(rig.run(&set(&key, "0", "0", b"x")), None);
    assert!(rig.run(&set(&key[1..], "0", "0", b"x")).is_some());
}

/// Each record is the next one of the epoch's session. Only who made a record knows its client.
#[test]
fn only_the_node_that_got_a_set_has_its_client() {
    if !may_load_bpf() {
        return;
    }
    let rig = Rig::new();
    rig.lead(Mode::Leading, 0);
    let clients = clients_of(&rig.program).unwrap();
    for n in 1..=WINDOW {
        let record = rig.run(b"set k 1 2 3\r\nabc\r\n").unwrap();
        let from = (record.origin, record.origin_session, record.origin_seq);
        assert_eq!(from, (ORIGIN_ROLE, EPOCH, n));
        let client = Client {
            address: THERE,
            request: REQUEST,
            is_strong: false,
        };
        assert_eq!(clients.of(&record), Some(client));
        // Of another leader, in the same place of the log; in the same slot; a gateway's.
        let (epoch, zxid) = (EPOCH + 1, record.zxid + 8);
        assert_eq!(
            clients.of(&Record {
                epoch,
                ..record.clone()
            }),
            None
        );
        assert_eq!(
            clients.of(&Record {
                zxid,
                ..record.clone()
            }),
            None
        );
        assert_eq!(
            clients.of(&Record {
                origin: 2,
                ..record
            }),
            None
        );
    }
    // The window is full.
    assert_eq!(rig.run(b"set k 1 2 3\r\nabc\r\n"), None);
    assert_eq!(rig.counter("sets_busy"), 1);
    // The epoch is not established; the node follows; it is idle.
    for (mode, committed) in [(Mode::Leading, 1), (Mode::Following, 0), (Mode::Idle, 0)] {
        rig.lead(mode, committed);
        assert_eq!(rig.run(b"set k 1 2 3\r\nabc\r\n"), None);
    }
    // A stranger's, and a packet that claims to be of such an origin.
    rig.lead(Mode::Leading, 0);
    let frame = frame_of(
        SocketAddrV4::new(Ipv4Addr::new(9, 9, 9, 9), 9),
        PORT,
        b"set k 1 2 3\r\nabc\r\n",
    );
    assert_eq!(rig.program.run(&frame, 1).unwrap().action, XDP_PASS);
    assert_eq!(rig.program.registers().view().last, 0);
}

/// Every node executes a session's records from 1 on: others would never be executed, nor answered.
#[test]
fn sets_are_numbered_from_1_in_each_epoch() {
    if !may_load_bpf() {
        return;
    }
    let rig = Rig::new();
    rig.lead(Mode::Leading, 0);
    for epoch in [EPOCH, EPOCH + 3] {
        rig.lead_on(epoch, Mode::Leading, 0);
        for n in 1..=WINDOW {
            let record = rig.run(b"set k 1 2 3\r\nabc\r\n").unwrap();
            let session = (record.origin_session, record.origin_seq);
            assert_eq!(session, (epoch, n));
        }
    }
}

/// At the port of strong reads SETs are proposed, for a client that is answered from there, and everything else passes
/// uncounted.
#[test]
fn sets_at_the_port_of_strong_reads_are_proposed_too() {
    if !may_load_bpf() {
        return;
    }
    let rig = Rig::new();
    rig.lead(Mode::Leading, 0);
    let clients = clients_of(&rig.program).unwrap();
    let text = b"set k 1 2 3\r\nabc\r\n";
    for (port, is_strong) in [(STRONG_PORT, true), (PORT, false), (STRONG_PORT, true)] {
        let record = rig.run_to(port, text).unwrap();
        assert_eq!(Some(record.value.clone()), submitted(text));
        let client = Client {
            address: THERE,
            request: REQUEST,
            is_strong,
        };
        assert_eq!(clients.of(&record), Some(client), "{port}");
    }
    assert_eq!(rig.run_to(STRONG_PORT, b"get k\r\n"), None);
    assert_eq!(rig.run_to(STRONG_PORT, b"set k 1 2 4\r\nabc\r\n"), None);
    assert_eq!(rig.run_to(STRONG_PORT + 1, text), None);
    assert_eq!(rig.counter("sets_proposed"), 3);
    assert_eq!(rig.counter("sets_other"), 1);
    for gets in ["gets_hit", "gets_miss", "gets_other", "gets_busy"] {
        assert_eq!(rig.counter(gets), 0, "{gets}");
    }
}
