//! GETs over UDP that the packet program answers: the replies are the process's, and everything else passes unchanged.
#![allow(missing_docs)]

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use inband_box::memcached::reply::value;
use inband_box::memcached::udp::DATAGRAM_BYTES_MAX;
use inband_box::objects;
use inband_box::store::{Meta, Table};
use inband_box::xdp::{table_of, Program, Spec, UdpClients};
use inband_ground::xdp::rig::udp_frame;
use inband_testing::frame::{
    check_turned, half, may_load_bpf, FRAME_LEN_BYTES, HERE, THERE, XDP_PASS, XDP_TX,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::spec;

const PORT: u16 = 11213;
const CHUNKS: u64 = 4_000;
const REQUESTS: usize = 20_000;
/// A correct build is watched for this long; a wrong one must be caught within `CATCH_WITHIN`.
const WATCH: Duration = Duration::from_secs(2);
const CATCH_WITHIN: Duration = Duration::from_secs(60);

fn there() -> SocketAddrV4 {
    SocketAddrV4::new(*HERE.ip(), PORT)
}

/// A program with an empty table.
fn program(object: &[u8]) -> (Program, Table) {
    let spec = Spec {
        clients: Some(UdpClients {
            from: (*THERE.ip(), Ipv4Addr::new(255, 255, 255, 0)),
            local: Some(there()),
            strong: None,
            chunks: CHUNKS,
        }),
        ..spec(None)
    };
    let program = spec.load_object(object).unwrap();
    let table = Table::in_region(table_of(&program).unwrap(), CHUNKS);
    (program, table)
}

fn frame_of(request: u16, text: &[u8]) -> Vec<u8> {
    let [high, low] = request.to_be_bytes();
    let mut frame = udp_frame(
        THERE,
        there(),
        &[&[high, low, 0, 0, 0, 1, 0, 0], text].concat(),
    );
    set_udp_checksum(&mut frame);
    frame
}

/// The sum over pseudo header, UDP header and payload; 0xffff if the frame's checksum is correct.
fn udp_sum(frame: &[u8]) -> u16 {
    let mut bytes = frame[26..].to_vec();
    bytes.truncate(8 + usize::from(half(frame, 38)));
    let len = half(frame, 38);
    if bytes.len() % 2 == 1 {
        bytes.push(0);
    }
    let mut sum = 17 + u32::from(len);
    for at in (0..bytes.len()).step_by(2) {
        sum += u32::from(half(&bytes, at));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn set_udp_checksum(frame: &mut [u8]) {
    frame[40..42].fill(0);
    let sum = !udp_sum(frame);
    frame[40..42].copy_from_slice(&sum.max(1).to_be_bytes());
}

/// The process's reply to `get KEY`.
pub fn reply_of(table: &Table, key: &[u8]) -> Vec<u8> {
    let mut reply = Vec::new();
    if let Some(item) = table.get(key) {
        value(&mut reply, key, &item, false);
    }
    reply.extend_from_slice(b"END\r\n");
    reply
}

/// Checks that the program's reply to the frame is this text, or that it passes the frame if it is `None`.
fn check(program: &Program, frame: &[u8], expected: Option<&[u8]>) {
    let run = program.run(frame, 1).unwrap();
    let what = frame[FRAME_LEN_BYTES..].escape_ascii();
    let Some(text) = expected else {
        assert_eq!(run.action, XDP_PASS, "{what}");
        assert_eq!(run.frame, frame, "passed, but changed");
        return;
    };
    assert_eq!(run.action, XDP_TX, "{what}");
    check_turned(frame, &run.frame);
    assert_eq!(run.frame[14..16], [0x45, 0], "version, type of service");
    let ip_len = usize::from(half(&run.frame, 16));
    assert_eq!(ip_len, 28 + 8 + text.len(), "{what}");
    assert_eq!(usize::from(half(&run.frame, 38)), ip_len - 20);
    assert!(run.frame.len() == 14 + ip_len || run.frame.len() <= 60);
    assert_ne!(half(&run.frame, 40), 0, "no checksum");
    assert_eq!(udp_sum(&run.frame), 0xffff, "UDP checksum: {what}");
    assert_eq!(run.frame[42..50], frame[42..50], "memcached's header");
    let reply = &run.frame[50..14 + ip_len];
    assert!(
        reply == text,
        "{what}: {} instead of {}",
        reply.escape_ascii(),
        text.escape_ascii()
    );
}

fn counted(program: &Program, name: &str) -> u64 {
    program.counters().unwrap().get(name).copied().unwrap_or(0)
}

fn random_key(random: &mut StdRng) -> Vec<u8> {
    let len = match random.random_range(0..4) {
        0 => random.random_range(1..=250),
        1 => random.random_range(180..=190),
        _ => random.random_range(1..=20),
    };
    (0..len).map(|_| random.random_range(0x21..=0xff)).collect()
}

/// Random tables and requests: every GET of one key whose reply fits is answered as the process would.
#[test]
fn the_program_answers_as_the_process_does() {
    if !may_load_bpf() {
        return;
    }
    let (program, mut table) = program(objects::BOX_GETS);
    let mut random = StdRng::seed_from_u64(1714);
    let mut keys: Vec<Vec<u8>> = (0..300).map(|_| random_key(&mut random)).collect();
    // The boundaries of words and chunks, and of what fits a datagram.
    for len in [1, 7, 8, 9, 15, 16, 17, 183, 184, 185, 247, 248, 249, 250] {
        keys.push(vec![b'a' + (len % 26) as u8; len]);
    }
    let (mut hits, mut misses, mut long) = (0, 0, 0);
    for request in 0..REQUESTS {
        let key = &keys[random.random_range(0..keys.len())];
        match random.random_range(0..10) {
            0..=2 => {
                let room = DATAGRAM_BYTES_MAX - 8 - 6 - key.len() - 7;
                let len = match random.random_range(0..5) {
                    0 => random.random_range(0..=300),
                    1 => room.saturating_sub(random.random_range(0..20)),
                    2 => random.random_range(1000..5000),
                    3 => (184 + 240 * random.random_range(0..5_usize))
                        .saturating_sub(key.len() + random.random_range(0..3)),
                    _ => random.random_range(0..10),
                };
                let value: Vec<u8> = (0..len).map(|_| random.random()).collect();
                let meta = Meta {
                    flags: match random.random_range(0..4) {
                        0 => random.random(),
                        1 => 10_u32.pow(random.random_range(0..10)) - random.random_range(0..=1),
                        _ => 0,
                    },
                    marks: random.random_range(0..8),
                    cas: random.random(),
                    ..Meta::default()
                };
                let _ = table.put(key, &value, &meta);
            }
            3 => drop(table.remove(key)),
            _ => {}
        }
        let text = [b"get ", &key[..], b"\r\n"].concat();
        let reply = reply_of(&table, key);
        let fits = reply.len() + 8 <= DATAGRAM_BYTES_MAX;
        match (fits, reply.len() > 5) {
            (false, _) => long += 1,
            (true, true) => hits += 1,
            (true, false) => misses += 1,
        }
        let expected = fits.then_some(&reply[..]);
        check(&program, &frame_of(request as u16, &text), expected);
    }
    assert!(
        hits > 1000 && misses > 1000 && long > 100,
        "{hits}, {misses}, {long}"
    );
    for (name, expected) in [
        ("gets_hit", hits),
        ("gets_miss", misses),
        ("gets_long", long),
        ("gets_busy", 0),
    ] {
        assert_eq!(counted(&program, name), expected, "{name}");
    }
}

/// A read by the program marks the item as one by the process does.
#[test]
fn a_get_marks_the_item_as_read() {
    if !may_load_bpf() {
        return;
    }
    let (program, mut table) = program(objects::BOX_GETS);
    table.put(b"k", b"value", &Meta::default()).unwrap();
    table.publish(1, 77_500);
    assert_eq!(table.get(b"k").unwrap().read_s, 0);
    let reply = b"VALUE k 0 5\r\nvalue\r\nEND\r\n";
    check(&program, &frame_of(1, b"get k\r\n"), Some(reply));
    assert_eq!(table.get(b"k").unwrap().read_s, 77);
}

/// Everything but a GET of one key from a permitted client passes unchanged: random damage, and each rule by itself.
#[test]
fn everything_else_passes() {
    if !may_load_bpf() {
        return;
    }
    let (program, mut table) = program(objects::BOX_GETS);
    table.put(b"key", b"value", &Meta::default()).unwrap();
    let reply = b"VALUE key 0 5\r\nvalue\r\nEND\r\n";
    let good = frame_of(7, b"get key\r\n");
    check(&program, &good, Some(reply));
    for text in [
        &b"get key\n"[..],
        b"get key",
        b"get \r\n",
        b"get\r\n",
        b"get  key\r\n",
        b"get key \r\n",
        b"get key other\r\n",
        b"get key\r\nget key\r\n",
        b"get k\tey\r\n",
        b"get k\0y\r\n",
        b"gets key\r\n",
        b"GET key\r\n",
        b"mg key v\r\n",
        b"set key 0 0 1\r\nx\r\n",
        b"delete key\r\n",
        b"VALUE key 0 5\r\nvalue\r\nEND\r\n",
        b"END\r\n",
        b"ERROR\r\n",
        b"",
        &[b"get ", &[b'k'; 251][..], b"\r\n"].concat(),
        &[b"get ", &[b'k'; 1000][..], b"\r\n"].concat(),
    ] {
        check(&program, &frame_of(7, text), None);
    }
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        set_udp_checksum(&mut frame);
        frame
    };
    // memcached's header: the second datagram, one of two, not reserved.
    for at in [44, 45, 46, 47, 48, 49] {
        check(&program, &changed(&|frame| frame[at] ^= 2), None);
    }
    // A group's hardware address. Another sender's network, destination, port, protocol; an IP option, a fragment, a VLAN, IPv6.
    for (at, bits) in [
        (0, 1),
        (28, 1),
        (33, 1),
        (37, 1),
        (23, 1),
        (14, 3),
        (20, 0x20),
        (21, 1),
        (12, 0x80),
    ] {
        check(&program, &changed(&|frame| frame[at] ^= bits), None);
    }
    let vlan = [&good[..12], &[0x81, 0, 0, 5], &good[12..]].concat();
    check(&program, &vlan, None);
    // Lengths that contradict each other, and a frame that ends early.
    for (at, byte) in [(17, 1), (17, 0xff), (39, 1), (39, 0xff)] {
        let grow = |frame: &mut Vec<u8>| frame[at] = frame[at].wrapping_add(byte);
        let mut frame = good.clone();
        grow(&mut frame);
        check(&program, &frame, None);
    }
    for len in FRAME_LEN_BYTES..good.len() {
        check(&program, &good[..len], None);
    }
    // A damaged payload, without a new checksum. Without a checksum, or with an unfinished one, nobody can notice.
    for at in 42..good.len() {
        for bit in 0..8 {
            let mut frame = good.clone();
            frame[at] ^= 1 << bit;
            check(&program, &frame, None);
        }
    }
    for check_sum in [0, unfinished(&good)] {
        let mut frame = good.clone();
        frame[40..42].copy_from_slice(&u16::to_be_bytes(check_sum));
        check(&program, &frame, Some(reply));
    }
    // Ethernet pads short frames.
    let mut padded = good.clone();
    padded.resize(60.max(good.len() + 3), 0xee);
    check(&program, &padded, Some(reply));
    let mut random = StdRng::seed_from_u64(3);
    for _ in 0..REQUESTS {
        let mut frame = good.clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..frame.len());
            frame[at] = random.random();
        }
        let run = program.run(&frame, 1).unwrap();
        assert!(run.frame.len() <= good.len() + 40, "amplified");
        assert!(run.action == XDP_TX || run.frame == frame);
    }
}

/// The unfinished checksum of a packet that this machine has created: the sum of the pseudo header.
fn unfinished(frame: &[u8]) -> u16 {
    let mut sum = 17 + u32::from(half(frame, 38));
    for at in (26..34).step_by(2) {
        sum += u32::from(half(frame, at));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A table that does not exist yet, or is being replaced, answers nothing.
#[test]
fn a_table_that_is_replaced_answers_nothing() {
    if !may_load_bpf() {
        return;
    }
    let (program, mut table) = program(objects::BOX_GETS);
    for n in 0..300_u32 {
        let key = format!("key-{n}");
        table
            .put(key.as_bytes(), b"value", &Meta::default())
            .unwrap();
    }
    table.begin_copy(Vec::new());
    let copy = table.go_on_copying(1 << 20).unwrap();
    let over = AtomicBool::new(false);
    let (answered, passed) = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut answered, mut passed) = (0_u64, 0_u64);
            // Once the table is no longer replaced, it answers.
            while !over.load(Ordering::Acquire) || answered == 0 {
                let key = format!("key-{}", (answered + passed) % 300);
                let frame = frame_of(1, format!("get {key}\r\n").as_bytes());
                let run = program.run(&frame, 1).unwrap();
                match run.action {
                    XDP_TX => {
                        let expected = format!("VALUE {key} 0 5\r\nvalue\r\nEND\r\n");
                        assert!(run.frame[50..].starts_with(expected.as_bytes()));
                        answered += 1;
                    }
                    _ => passed += 1,
                }
            }
            (answered, passed)
        });
        let deadline = Instant::now() + CATCH_WITHIN;
        while counted(&program, "gets_busy") < 10 && Instant::now() < deadline {
            assert!(table.replace(&copy));
        }
        over.store(true, Ordering::Release);
        reader.join().unwrap()
    });
    eprintln!("{answered} answered, {passed} passed");
    assert!(passed >= 10 && answered > 0);
}

/// One thread changes values of one byte repeated, whose length, flags and bytes follow from each other; others ask.
/// Returns how many replies were seen, or a torn one.
fn torn(object: &[u8], time: Duration) -> Result<u64, String> {
    const KEYS: u8 = 4;
    let (program, mut table) = program(object);
    let over = AtomicBool::new(false);
    let length = |byte: u8| 1 + usize::from(byte) * 5;
    let key = |n: u8| [b'k', b'0' + n];
    let watch = |n: u8| {
        let mut seen = 0_u64;
        let text = [b"get ", &key(n)[..], b"\r\n"].concat();
        let frame = frame_of(n.into(), &text);
        while !over.load(Ordering::Relaxed) {
            let run = program.run(&frame, 1).unwrap();
            if run.action != XDP_TX {
                continue;
            }
            let reply = &run.frame[50..14 + usize::from(half(&run.frame, 16))];
            if reply == b"END\r\n" {
                continue;
            }
            seen += 1;
            let byte = reply[reply.len() - 8];
            let value = vec![byte; length(byte)];
            let head = format!("VALUE k{} {byte} {}\r\n", n, value.len());
            let expected = [head.as_bytes(), &value, b"\r\nEND\r\n"].concat();
            if reply != expected {
                return Err(reply.escape_ascii().to_string());
            }
        }
        Ok(seen)
    };
    thread::scope(|scope| {
        let watchers = [scope.spawn(|| watch(0)), scope.spawn(|| watch(1))];
        let mut random = StdRng::seed_from_u64(5);
        let end = Instant::now() + time;
        while Instant::now() < end && !watchers.iter().any(|watcher| watcher.is_finished()) {
            for _ in 0..1000 {
                let key = key(random.random_range(0..KEYS));
                let byte = random.random_range(0..255_u8);
                let meta = Meta {
                    flags: byte.into(),
                    ..Meta::default()
                };
                match random.random_bool(0.1) {
                    true => drop(table.remove(&key)),
                    false => drop(table.put(&key, &vec![byte; length(byte)], &meta)),
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        let results = watchers.map(|watcher| watcher.join().unwrap());
        results.into_iter().sum()
    })
}

/// The program never answers with half a change; a build that does not check the sequence word does.
#[test]
fn no_reply_is_torn() {
    if !may_load_bpf() {
        return;
    }
    for object in [objects::BOX_GETS, objects::BOX_GETS_SLOW] {
        let seen = torn(object, WATCH).unwrap();
        assert!(seen > 0, "nothing was read");
        eprintln!("{seen} replies");
    }
    let caught = torn(objects::BOX_GETS_TORN, CATCH_WITHIN);
    assert!(caught.is_err(), "not caught: {caught:?}");
}
