use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::command::Batch;

const OWN: (u8, u64) = (2, 7);

struct Log {
    machine: Machine,
    record: Record,
}

impl Log {
    fn new() -> Log {
        let record = Record {
            origin: OWN.0,
            origin_session: OWN.1,
            time_ms: 1_700_000_000_000,
            ..Record::default()
        };
        let machine = Machine::new(OWN, Table::new(20_000).expect("memory"));
        Log { machine, record }
    }

    fn next(&mut self, value: Vec<u8>) -> Vec<Outcome> {
        self.record.zxid += 1;
        self.record.origin_seq += 1;
        self.record.value = value;
        self.machine
            .apply(&self.record)
            .expect("it is applied")
            .outcomes
    }

    fn all(&mut self, commands: &[Command]) -> Vec<Outcome> {
        let mut batch = Batch::default();
        commands.iter().for_each(|command| batch.push(command));
        let mut values = Vec::new();
        batch.take(|value| values.push(value));
        values
            .into_iter()
            .flat_map(|value| self.next(value))
            .collect()
    }

    fn one(&mut self, command: Command) -> Outcome {
        let mut outcomes = self.all(&[command]);
        assert_eq!(outcomes.len(), 1);
        outcomes.remove(0)
    }

    fn pass(&mut self, ms: u64) {
        let tick = Record {
            zxid: self.record.zxid + 1,
            time_ms: self.record.time_ms + ms,
            ..Record::default()
        };
        assert_eq!(
            self.machine.apply(&tick).expect("applied"),
            Applied::default()
        );
        (self.record.zxid, self.record.time_ms) = (tick.zxid, tick.time_ms);
    }

    fn has(&self, key: &[u8]) -> bool {
        self.machine.reader().get(key).is_some()
    }
}

fn set<'a>(key: &'a [u8], value: &'a [u8], exptime_s: i32) -> Command<'a> {
    Command::Store {
        mode: Mode::Set,
        key,
        value,
        flags: 5,
        exptime_s,
        cas: 0,
        may_be_stale: false,
        is_binary_key: false,
    }
}

#[test]
fn expiry_is_exact_and_by_the_log_alone() {
    let mut log = Log::new();
    let day = 24 * 60 * 60;
    let now_s = (log.record.time_ms / 1000) as i32;
    log.all(&[
        set(b"never", b"", 0),
        set(b"second", b"", 1),
        set(b"month", b"", 30 * day),
        set(b"date", b"", now_s + 40 * day),
        set(b"past", b"", 30 * day + 1),
        set(b"negative", b"", -1),
    ]);
    assert!(!log.has(b"past") && !log.has(b"negative"));
    log.pass(999);
    assert!(log.has(b"second"));
    log.pass(1);
    assert!(!log.has(b"second"));
    let ms = |days: i32| days as u64 * day as u64 * 1000;
    log.pass(ms(30) - 1001);
    assert!(log.has(b"month"));
    log.pass(1);
    assert!(!log.has(b"month") && log.has(b"date"));
    log.pass(ms(10) - 1);
    assert!(log.has(b"date"));
    log.pass(1);
    assert!(!log.has(b"date") && log.has(b"never"));
    assert!(!log.machine.needs_time());
    // Time never goes backwards.
    let time_ms = log.machine.time_ms();
    log.record.time_ms -= 5000;
    log.one(set(b"k", b"", 1));
    assert_eq!(log.machine.time_ms(), time_ms);
}

#[test]
fn a_record_is_executed_once_and_in_its_place() {
    let mut log = Log::new();
    let add = |n| Command::Arithmetic {
        key: b"n",
        is_increment: true,
        delta: n,
        cas: 0,
        create: Some((0, 0)),
        exptime_s: None,
    };
    let mut value = Vec::new();
    add(1).encode(&mut value);
    log.next(value.clone());
    log.next(value.clone());
    let read = |log: &Log| log.machine.reader().get(b"n").expect("it is there").value;
    assert_eq!(read(&log), b"1");
    // A repeated record, one too far ahead, and records of an older session change nothing.
    for (session, seq) in [(7, 2), (7, 1), (7, 4), (6, 1), (6, 2)] {
        log.record.origin_session = session;
        log.record.origin_seq = seq - 1;
        assert_eq!(log.next(value.clone()), []);
        assert_eq!(read(&log), b"1", "{session} {seq}");
    }
    // A newer session opens only with its first record; then the older one is over.
    for (session, seq, then) in [(8, 2, b"1"), (8, 1, b"2"), (8, 2, b"3"), (7, 3, b"3")] {
        log.record.origin_session = session;
        log.record.origin_seq = seq - 1;
        log.next(value.clone());
        assert_eq!(&read(&log)[..], then, "{session} {seq}");
    }
}

#[test]
fn a_long_value_spans_records_and_a_snapshot_between_them() {
    let mut log = Log::new();
    let value: Vec<u8> = (0..VALUE_LEN_BYTES_MAX).map(|n| (n % 253) as u8).collect();
    let mut batch = Batch::default();
    batch.push(&set(b"before", b"x", 0));
    batch.push(&set(b"long", &value, 0));
    batch.push(&set(b"after", b"y", 100));
    let mut values = Vec::new();
    batch.take(|value| values.push(value));
    assert!(values.len() > 800);
    let mut outcomes = Vec::new();
    for (n, value) in values.into_iter().enumerate() {
        if n == 400 {
            log.machine.begin_snapshot();
            let snapshot = log.machine.go_on_with_snapshot(usize::MAX >> 1);
            let snapshot = snapshot.expect("all at once");
            assert_eq!(snapshot.zxid, log.machine.applied());
            let mut other = Machine::new(OWN, Table::new(20_000).expect("memory"));
            other.restore(&snapshot.bytes).expect("it is whole");
            assert_eq!(other.digest(), log.machine.digest());
            log.machine = other;
        }
        outcomes.extend(log.next(value));
    }
    let stored = [1, 2, 3].map(|cas| Outcome::Stored { cas });
    assert_eq!(outcomes, stored);
    assert_eq!(
        log.machine.reader().get(b"long").expect("there").value,
        value
    );
}

#[test]
fn flush_all_waits_for_its_time() {
    let mut log = Log::new();
    log.one(set(b"a", b"", 0));
    log.one(Command::FlushAll { exptime_s: 2 });
    log.one(set(b"b", b"", 0));
    log.pass(1999);
    assert!(log.has(b"a") && log.has(b"b") && log.machine.needs_time());
    log.pass(1);
    assert!(!log.has(b"a") && !log.has(b"b") && !log.machine.needs_time());
    log.one(set(b"c", b"", 0));
    log.pass(5000);
    assert!(log.has(b"c"));
    log.one(Command::FlushAll { exptime_s: 0 });
    assert!(!log.has(b"c"));
}

#[test]
fn a_full_table_refuses_and_keeps_what_it_has() {
    let mut log = Log::new();
    log.machine = Machine::new(OWN, Table::new(100).expect("memory"));
    log.one(Command::Open { chunks: 10 });
    let long = [b'x'; 1000];
    let is_stored = |outcome| matches!(outcome, Outcome::Stored { .. });
    assert!(is_stored(log.one(set(b"a", &long, 0))));
    assert!(is_stored(log.one(set(b"b", b"old", 0))));
    // 6 chunks are in use; another 5 exceed the limit, although this table has them.
    let digest = log.machine.table().digest();
    assert_eq!(log.one(set(b"b", &long, 0)), Outcome::Full);
    assert_eq!(log.machine.table().digest(), digest);
    assert_eq!(log.machine.reader().get(b"b").expect("there").value, b"old");
    let mut small = Machine::new((1, 1), Table::new(9).expect("memory"));
    let mut value = Vec::new();
    Command::Open { chunks: 10 }.encode(&mut value);
    let record = Record {
        zxid: 1,
        origin: 2,
        origin_session: 7,
        origin_seq: 1,
        value,
        ..Record::default()
    };
    let error = small.apply(&record).expect_err("it is too small");
    assert!(error.to_string().contains("--memory"), "{error}");
}

#[test]
fn numbers_are_read_as_memcached_reads_them() {
    for (text, number) in [
        (&b"12"[..], Some(12)),
        (b"  +12  ", Some(12)),
        (b"12 x", Some(12)),
        (b"12x", None),
        (b"", None),
        (b"-1", None),
        (b"-18446744073709551615", Some(1)),
        (b"18446744073709551615", Some(u64::MAX)),
        (b"18446744073709551616", None),
        (b"x", None),
    ] {
        assert_eq!(parse_number(text), number, "{}", text.escape_ascii());
    }
}

/// A node that installs a snapshot at some point and one that executes everything are equal at every zxid. Bytes that
/// are not commands stop only their own session.
#[test]
fn equal_logs_make_equal_machines() {
    let mut random = StdRng::seed_from_u64(3);
    let new = |node| Machine::new((node, 1), Table::new(300).expect("memory"));
    let mut machines = [new(1), new(2), new(3)];
    let mut seqs = [0_u64; 4];
    let mut log: Vec<Record> = Vec::new();
    let (mut restored, mut longest) = (0, 0);
    for zxid in 1..8_000_u64 {
        let origin = random.random_range(0..4_u8);
        let mut value = Vec::new();
        for _ in 0..random.random_range(0..4) {
            let key = [b'k', random.random_range(0..40)];
            let long = vec![b'1'; random.random_range(0..600)];
            let exptime_s = random.random_range(-1..6);
            let command = match random.random_range(0..12) {
                0..=4 => set(&key, &long, exptime_s),
                5 => Command::Delete {
                    key: &key,
                    cas: None,
                },
                6 => Command::Invalidate {
                    key: &key,
                    cas: None,
                    exptime_s: None,
                },
                7 => Command::Touch {
                    key: &key,
                    exptime_s,
                },
                8 => Command::Arithmetic {
                    key: &key,
                    is_increment: random.random(),
                    delta: random.random(),
                    cas: 0,
                    create: random.random_bool(0.5).then_some((9, exptime_s)),
                    exptime_s: None,
                },
                9..=10 => Command::Fetch {
                    key: &key,
                    create_exptime_s: random.random_bool(0.5).then_some(exptime_s),
                    exptime_s: random.random_bool(0.5).then_some(exptime_s),
                    recache_s: Some(3),
                    touches_first: random.random(),
                    is_binary_key: false,
                    marks_read: true,
                    takes_token: true,
                },
                _ if random.random_bool(0.05) => Command::FlushAll { exptime_s },
                _ => set(&key, b"5", 0),
            };
            command.encode(&mut value);
        }
        if random.random_bool(0.0005) {
            value = vec![0xff; 40];
        }
        seqs[usize::from(origin)] += u64::from(random.random_bool(0.99));
        let record = Record {
            zxid,
            origin,
            time_ms: zxid * 40,
            origin_session: 1 + zxid / 3000,
            origin_seq: seqs[usize::from(origin)],
            value,
            ..Record::default()
        };
        if zxid % 3000 == 2999 {
            seqs = [0; 4];
        }
        for machine in &mut machines {
            machine.apply(&record).expect("it is applied");
        }
        log.push(record);
        longest = longest.max(machines[0].table().len());
        if zxid % 500 == 0 {
            machines[0].begin_snapshot();
        }
        // The snapshot is made while records are applied; the log after it makes the machines equal again.
        if let Some(snapshot) = machines[0].go_on_with_snapshot(8) {
            restored += 1;
            assert!(snapshot.zxid < zxid, "records were applied meanwhile");
            let cut = random.random_range(0..snapshot.bytes.len());
            assert!(machines[2].restore(&snapshot.bytes[..cut]).is_err());
            machines[2].restore(&snapshot.bytes).expect("it is whole");
            assert_eq!(machines[2].applied(), snapshot.zxid);
            for record in &log[snapshot.zxid as usize..] {
                machines[2].apply(record).expect("it is applied");
            }
        }
        let digests = machines.each_ref().map(Machine::digest);
        assert!(
            digests.iter().all(|digest| *digest == digests[0]),
            "at {zxid}"
        );
    }
    assert_eq!(restored, 15);
    assert!(longest > 5, "{longest}");
}

/// At a start the node then gets the table from the others. With another error it does not start.
#[test]
fn a_damaged_snapshot_is_said_to_be_damaged_wherever_the_damage_is() {
    let mut log = Log::new();
    log.one(Command::Open { chunks: 20_000 });
    log.one(Command::Touch {
        key: b"k",
        exptime_s: 0,
    });
    log.machine.begin_snapshot();
    let whole = log
        .machine
        .go_on_with_snapshot(usize::MAX / 2)
        .expect("done");
    let empty = || Machine::new(OWN, Table::new(20_000).expect("memory"));
    empty().restore(&whole.bytes).expect("it is whole");
    let mut others = Vec::new();
    for bit in 0..8 * whole.bytes.len() {
        let mut bytes = whole.bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        match empty().restore(&bytes) {
            Err(MachineError::Damaged) => {}
            other => others.push((bit, format!("{other:?}"))),
        }
    }
    assert!(others.is_empty(), "{others:#?}");
}
