//! The store as a state machine: the same log produces the same state, whatever happens around it.

use std::collections::BTreeMap;

use crate::common::world::exec;
use crate::common::{self, deliver, encode, open, show, words, Bench, Log, T0_MS};
use inband_host::log::{Decided, Origin, Ticket, ValueKind};
use inband_host::session::Verdict;
use inband_kv::command::SessionStamp;
use inband_kv::limits::{STORED_VALUE_LEN_BYTES_MAX, TRANSACTION_WRITTEN_BYTES_MAX};
use inband_kv::store::{Outcomes, StoreError};
use inband_resp::reply::Reply;
use proptest::prelude::*;

/// A minimal model of Redis strings.
#[derive(Default)]
struct Model {
    keys: BTreeMap<String, (String, Option<u64>)>,
    now_ms: u64,
}

impl Model {
    fn run(&mut self, line: &str) -> String {
        let now_ms = self.now_ms;
        self.keys
            .retain(|_, (_, at)| at.is_none_or(|at| at > now_ms));
        let words: Vec<&str> = line.split(' ').collect();
        let key = words.get(1).unwrap_or(&"").to_string();
        let old = self.keys.get(&key).cloned();
        let number = |text: &str| text.parse::<i64>().expect("a number");
        let quoted = |value: Option<&(String, Option<u64>)>| {
            value.map_or("nil".into(), |(value, _)| format!("'{value}'"))
        };
        match words[0] {
            "GET" => quoted(old.as_ref()),
            "SET" if words.len() == 5 => {
                let at = now_ms + number(words[4]) as u64;
                self.keys.insert(key, (words[2].into(), Some(at)));
                "OK".into()
            }
            "SET" => {
                self.keys.insert(key, (words[2].into(), None));
                "OK".into()
            }
            "SETNX" if old.is_some() => "0".into(),
            "SETNX" => {
                self.keys.insert(key, (words[2].into(), None));
                "1".into()
            }
            "GETDEL" => {
                self.keys.remove(&key);
                quoted(old.as_ref())
            }
            "DEL" => {
                let gone = words[1..]
                    .iter()
                    .filter(|k| self.keys.remove(**k).is_some());
                gone.count().to_string()
            }
            "INCRBY" => {
                let (value, at) = old.unwrap_or(("0".into(), None));
                match value.parse::<i64>() {
                    Err(_) => "-ERR value is not an integer or out of range".into(),
                    Ok(value) => {
                        let sum = (value + number(words[2])).to_string();
                        self.keys.insert(key, (sum.clone(), at));
                        sum
                    }
                }
            }
            "APPEND" => {
                let (value, at) = old.unwrap_or_default();
                let value = value + words[2];
                let len = value.len();
                self.keys.insert(key, (value, at));
                len.to_string()
            }
            "PEXPIRE" => match old {
                None => "0".into(),
                Some((value, _)) => {
                    let at = now_ms + number(words[2]) as u64;
                    self.keys.insert(key, (value, Some(at)));
                    "1".into()
                }
            },
            "PERSIST" => match old {
                Some((value, Some(_))) => {
                    self.keys.insert(key, (value, None));
                    "1".into()
                }
                _ => "0".into(),
            },
            "PTTL" => match old {
                None => "-2".into(),
                Some((_, None)) => "-1".into(),
                Some((_, Some(at))) => (at - now_ms).to_string(),
            },
            "FLUSHALL" => {
                self.keys.clear();
                "OK".into()
            }
            other => panic!("the model does not know {other}"),
        }
    }
}

fn any_line() -> impl Strategy<Value = String> {
    let key = || (0..6u8).prop_map(|k| format!("k{k}"));
    prop_oneof![
        6 => key().prop_map(|k| format!("GET {k}")),
        6 => (key(), 0..50i64).prop_map(|(k, v)| format!("SET {k} {v}")),
        4 => (key(), 0..50i64, 1..40u64).prop_map(|(k, v, t)| format!("SET {k} {v} PX {t}")),
        3 => (key(), 0..50i64).prop_map(|(k, v)| format!("SETNX {k} {v}")),
        2 => key().prop_map(|k| format!("GETDEL {k}")),
        2 => (key(), key()).prop_map(|(a, b)| format!("DEL {a} {b}")),
        3 => (key(), -9..9i64).prop_map(|(k, d)| format!("INCRBY {k} {d}")),
        3 => (key(), "[a-c]{1,3}").prop_map(|(k, v)| format!("APPEND {k} {v}")),
        3 => (key(), 1..40u64).prop_map(|(k, t)| format!("PEXPIRE {k} {t}")),
        2 => key().prop_map(|k| format!("PERSIST {k}")),
        3 => key().prop_map(|k| format!("PTTL {k}")),
        1 => Just("FLUSHALL".to_string()),
    ]
}

proptest! {
    #![proptest_config(common::cases(10))]

    /// Random commands against the model: bursts of any length, with or without restarts between them, produce the same
    /// replies and the same state.
    #[test]
    fn agrees_with_the_model_however_it_is_cut(
        steps in prop::collection::vec((any_line(), 0..15u64), 1..200),
        values_len in 1..5usize,
        burst_len in 1..20usize,
        restart_at in 0..40usize,
    ) {
        let mut model = Model { now_ms: T0_MS, ..Model::default() };
        let mut log = Log::default();
        let mut expected = Vec::new();
        for value in steps.chunks(values_len) {
            model.now_ms += value[0].1;
            let commands: Vec<_> = value
                .iter()
                .map(|(line, _)| {
                    expected.push(model.run(line));
                    encode(&words(line), None).expect("parses")
                })
                .collect();
            log.push(model.now_ms, &commands);
        }
        let (one, two) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let mut store = open(one.path());
        let replies: Vec<String> = log.apply(&mut store, 1).iter().map(show).collect();
        prop_assert_eq!(&replies, &expected);

        let mut other = open(two.path());
        let start = log.prefix(restart_at);
        let mut replies: Vec<String> = start.apply(&mut other, burst_len).iter().map(show).collect();
        drop(other);
        let mut other = open(two.path());
        replies.extend(log.apply(&mut other, burst_len).iter().map(show));
        prop_assert_eq!(&replies, &expected);
        prop_assert_eq!(other.digest()?, store.digest()?);
        prop_assert_eq!(other.store(0).keys(), store.store(0).keys());

        // No deleted key is there, and every live one is.
        let mut keys = store.scan(0, 100)?.keys;
        keys.sort();
        let now_ms = store.store(0).time_ms();
        model.keys.retain(|_, (_, at)| at.is_none_or(|at| at > now_ms));
        let expected: Vec<Vec<u8>> = model.keys.keys().map(|k| k.clone().into_bytes()).collect();
        prop_assert_eq!(keys, expected);
    }
}

#[test]
fn a_replayed_instance_is_skipped_and_a_gap_refused() {
    let mut bench = Bench::default();
    bench.run("INCR n");
    bench.run("INCR n");
    let applied = bench.store().applied();
    let value = bench.log.values.last().unwrap().clone();
    let decided = |instance, origin| Decided {
        instance,
        origin,
        ticket: Some(Ticket(1)),
        value: &value.bytes,
    };
    let mut outcomes = Outcomes::default();
    deliver(
        &mut bench.machine,
        decided(applied, value.origin),
        &mut outcomes,
    )
    .unwrap();
    // Its proposer learns that it was decided.
    assert_eq!(outcomes.values[0].verdict, Verdict::Duplicate);
    assert_eq!(
        (outcomes.values[0].reply_count, bench.store().applied()),
        (0, applied)
    );
    outcomes.values.clear();
    // The same value in another instance is a duplicate.
    deliver(
        &mut bench.machine,
        decided(applied + 1, value.origin),
        &mut outcomes,
    )
    .unwrap();
    assert_eq!(outcomes.values[0].verdict, Verdict::Duplicate);
    assert_eq!(
        (outcomes.values[0].reply_count, bench.store().applied()),
        (0, applied + 1)
    );
    let gap = deliver(
        &mut bench.machine,
        decided(applied + 9, value.origin),
        &mut outcomes,
    );
    assert!(matches!(gap, Err(StoreError::OutOfOrder { .. })));
    let after = bench.machine.run(&mut outcomes);
    assert!(matches!(after, Err(StoreError::Stopped)));
}

#[test]
fn refused_noop_and_malformed_values_only_advance() {
    let mut bench = Bench::default();
    bench.run("SET a 1");
    let at = |bench: &Bench| bench.store().applied() + 1;
    let command = ValueKind::Command;
    let stranger = Origin {
        client_id: 999,
        client_seq: 1,
        client_low: 1,
        kind: command,
    };
    let noop = Origin {
        kind: ValueKind::Noop,
        ..stranger
    };
    let own = Origin {
        client_id: 1,
        client_seq: 50,
        client_low: 50,
        kind: command,
    };
    let tick = {
        let mut writer = inband_kv::value::ValueWriter::new();
        writer.finish(T0_MS + 5).to_vec()
    };
    for (origin, value, verdict) in [
        (stranger, &tick[..], Verdict::Refused),
        (noop, &[][..], Verdict::Nothing),
        (own, &tick[..3], Verdict::Apply),
        (own, &tick[..], Verdict::Duplicate),
    ] {
        let mut outcomes = Outcomes::default();
        let instance = at(&bench);
        let decided = Decided {
            instance,
            origin,
            ticket: Some(Ticket(3)),
            value,
        };
        deliver(&mut bench.machine, decided, &mut outcomes).unwrap();
        assert_eq!(outcomes.values[0].verdict, verdict);
        assert_eq!(
            (bench.store().applied(), bench.store().time_ms()),
            (instance, T0_MS)
        );
    }
    // A value of a newer version stops the replica rather than making it diverge.
    let mut newer = tick.clone();
    newer[0] = 200;
    let origin = Origin {
        client_seq: 51,
        ..own
    };
    let decided = Decided {
        instance: at(&bench),
        origin,
        ticket: None,
        value: &newer,
    };
    let result = deliver(&mut bench.machine, decided, &mut Outcomes::default());
    assert!(
        matches!(result, Err(StoreError::Value { .. })),
        "{result:?}"
    );
}

#[test]
fn proposer_sessions_survive_a_restart_and_expire() {
    let mut bench = Bench::default();
    bench.run("SET a 1");
    for _ in 0..inband_host::session::SESSIONS_MAX {
        let kind = ValueKind::OpenSession;
        let origin = Origin {
            client_id: 5,
            client_seq: 0,
            client_low: 0,
            kind,
        };
        bench.log.values.push(common::Value {
            origin,
            bytes: Vec::new(),
        });
    }
    let late = {
        let mut writer = inband_kv::value::ValueWriter::new();
        writer.push(&encode(&words("SET a late"), None).unwrap());
        let kind = ValueKind::Command;
        let origin = Origin {
            client_id: 1,
            client_seq: 9,
            client_low: 9,
            kind,
        };
        common::Value {
            origin,
            bytes: writer.finish(T0_MS).to_vec(),
        }
    };
    bench.log.values.push(late);
    bench.log.apply(&mut bench.machine, 500);
    let digest = bench.machine.digest().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut other = open(dir.path());
    for _ in 0..3 {
        let part = bench.log.prefix(other.store(0).applied() as usize + 1500);
        part.apply(&mut other, 7);
        drop(other);
        other = open(dir.path());
    }
    bench.log.apply(&mut other, 7);
    assert_eq!(other.digest().unwrap(), digest);
    assert_eq!(other.scan(0, 10).unwrap().keys, [b"a".to_vec()]);
}

#[test]
fn a_session_command_is_applied_once() {
    let mut bench = Bench::default();
    let Reply::Integer(id) = bench.run("INBAND.SESSION NEW") else {
        panic!("no session")
    };
    let id = id as u64;
    let stamp = |seq, low| Some(SessionStamp { id, seq, low });
    assert_eq!(show(&bench.run_stamped("INCR n", stamp(1, 1))), "1");
    assert_eq!(show(&bench.run_stamped("INCR n", stamp(1, 1))), "1");
    assert_eq!(show(&bench.run_stamped("GET n", stamp(2, 1))), "'1'");
    bench.run("INCR n");
    // A read that was answered keeps its reply.
    assert_eq!(show(&bench.run_stamped("GET n", stamp(2, 1))), "'1'");
    assert_eq!(show(&bench.run_stamped("FLUSHALL", stamp(3, 3))), "OK");
    // Sessions are not keys.
    assert_eq!(show(&bench.run_stamped("FLUSHALL", stamp(3, 3))), "OK");
    bench.run("INCR n");
    assert!(show(&bench.run_stamped("INCR n", stamp(1, 1))).starts_with("-FORGOTTEN"));
    let unknown = Some(SessionStamp {
        id: id + 5,
        seq: 1,
        low: 1,
    });
    assert!(show(&bench.run_stamped("INCR n", unknown)).starts_with("-NOSESSION"));
    assert_eq!(show(&bench.run("GET n")), "'1'");
    // The state survives a restart.
    let digest = bench.machine.digest().unwrap();
    bench.reopen();
    assert_eq!(bench.machine.digest().unwrap(), digest);
    assert_eq!(show(&bench.run_stamped("FLUSHALL", stamp(3, 3))), "OK");
    assert_eq!(show(&bench.run("GET n")), "'1'");
    // An idle session expires by replicated time.
    bench.now_ms += inband_kv::limits::CLIENT_SESSION_IDLE_MS_MAX + 1;
    bench.tick();
    assert_eq!(bench.store().client_sessions(), 0);
    assert!(show(&bench.run_stamped("INCR n", stamp(9, 9))).starts_with("-NOSESSION"));
    assert_eq!(show(&bench.run("INBAND.SESSION NEW")), (id + 1).to_string());
}

#[test]
fn a_scan_over_changing_keys_returns_those_that_stay() {
    let mut bench = Bench::default();
    let lines: Vec<String> = (0..400).map(|i| format!("SET stay{i} v")).collect();
    for line in &lines {
        bench.log.push_lines(T0_MS, &[line]);
    }
    bench.log.apply(&mut bench.machine, 50);
    let (mut found, mut cursor, mut round) = (Vec::new(), 0, 0);
    loop {
        let page = bench.machine.scan(cursor, 7).unwrap();
        found.extend(page.keys);
        for i in 0..5 {
            bench
                .log
                .push_lines(T0_MS, &[&format!("SET come{round}-{i} v"), "DEL come1-1"]);
            bench
                .log
                .push_lines(T0_MS, &[&format!("DEL come{}-{i}", round / 2)]);
        }
        bench.log.apply(&mut bench.machine, 50);
        round += 1;
        cursor = page.cursor;
        if cursor == 0 {
            break;
        }
    }
    for i in 0..400 {
        let key = format!("stay{i}").into_bytes();
        assert_eq!(found.iter().filter(|k| **k == key).count(), 1, "stay{i}");
    }
}

#[test]
fn flushall_within_a_burst_hides_what_is_stored() {
    let mut bench = Bench::default();
    bench.run("MSET a 1 b 2");
    bench.run("SET t 1 PX 100");
    bench.log.push_lines(
        T0_MS,
        &["SET c 3", "FLUSHALL", "GET a", "SETNX b 9", "DBSIZE"],
    );
    bench
        .log
        .push_lines(T0_MS, &["SET t 2 PX 100", "FLUSHALL", "SET z 1 PX 50"]);
    bench
        .log
        .push_lines(T0_MS + 60, &["DBSIZE", "GET z", "GET b"]);
    let replies = bench.log.apply(&mut bench.machine, 10);
    let shown: Vec<_> = replies.iter().map(show).collect();
    let expected = [
        "OK", "OK", "nil", "1", "1", "OK", "OK", "OK", "0", "nil", "nil",
    ];
    assert_eq!(shown, expected);
    assert!(bench.machine.scan(0, 10).unwrap().keys.is_empty());
    bench.reopen();
    assert_eq!(
        (bench.store().keys(), bench.store().earliest_expiry_ms()),
        (0, u64::MAX)
    );
}

/// Copies a directory, as a kill of the process would leave the disk.
fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), &to).unwrap();
        }
    }
}

#[test]
fn a_killed_process_neither_loses_nor_repeats() {
    let mut bench = Bench::default();
    for i in 0..30 {
        bench.run("INCR n");
        bench.run(&format!("SET k{i} v PX {}", 100 + i));
        bench.now_ms += 7;
        if i % 10 != 9 {
            continue;
        }
        // The store is neither closed nor flushed: only the write-ahead log exists.
        let after = tempfile::tempdir().unwrap();
        copy_dir(bench.dir.path(), after.path());
        let mut survivor = open(after.path());
        assert_eq!(survivor.store(0).applied(), bench.store().applied());
        assert_eq!(survivor.digest().unwrap(), bench.machine.digest().unwrap());
        bench.run("INCR n");
        bench.log.apply(&mut survivor, 10);
        assert_eq!(survivor.digest().unwrap(), bench.machine.digest().unwrap());
    }
    assert_eq!(show(&bench.run("GET n")), "'33'");
}

#[test]
fn what_is_not_written_is_delivered_again() {
    let mut bench = Bench::default();
    bench.machine.defer_writes();
    bench.run("SET a 1 PX 100");
    bench.machine.flush().unwrap();
    let written = bench.machine.written();
    assert_eq!(written, bench.machine.applied());
    // Readers see everything, although none of it is in the database.
    let lines = [
        "SET a 2",
        "APPEND a 3",
        "FLUSHALL",
        "SETNX b 4",
        "GET b",
        "KEYS *",
    ];
    let replies: Vec<_> = lines.iter().map(|line| show(&bench.run(line))).collect();
    assert_eq!(replies, ["OK", "2", "OK", "1", "'4'", "['b']"]);
    assert_eq!(bench.machine.written(), written);
    assert_eq!(bench.machine.unwritten(), lines.len() as u64);
    bench.reopen();
    assert_eq!(bench.machine.applied(), written);
    bench.log.apply(&mut bench.machine, 10);
    assert_eq!(show(&bench.run("DBSIZE")), "1");
    let dir = tempfile::tempdir().unwrap();
    let mut other = open(dir.path());
    bench.log.apply(&mut other, 10);
    assert_eq!(other.digest().unwrap(), bench.machine.digest().unwrap());
}

#[test]
fn others_see_all_that_is_applied() {
    let mut bench = Bench::default();
    bench.machine.defer_writes();
    bench.run("SET a 1");
    let shared = bench.machine.shared();
    let reader = std::thread::spawn(move || shared.digest());
    // It waits for the next turn of the machine, in which everything is written.
    let mut turns = 0;
    while !reader.is_finished() {
        bench.run("INCR n");
        turns += 1;
    }
    let (applied, _) = reader.join().unwrap().unwrap();
    assert!(applied[0] >= 2 && applied[0] <= bench.machine.applied()[0]);
    assert!(turns > 0);
    // After the machine's end a reader neither waits nor gets less than was applied.
    let shared = bench.machine.shared();
    bench.run("SET b 1");
    drop(bench.machine);
    let digest = shared.digest();
    assert!(matches!(digest, Err(StoreError::Ended)), "{digest:?}");
}

/// Short commands that create long values: `SETRANGE` far beyond the end.
fn grow(keys: std::ops::Range<usize>) -> Vec<String> {
    keys.map(|key| format!("SETRANGE k{key} {} x", STORED_VALUE_LEN_BYTES_MAX - 1))
        .collect()
}

#[test]
fn what_a_transaction_writes_is_bounded() {
    let mut log = Log::default();
    let limit = TRANSACTION_WRITTEN_BYTES_MAX / STORED_VALUE_LEN_BYTES_MAX;
    let mut lines = grow(0..limit + 3);
    lines.push("STRLEN k0".into());
    log.push(T0_MS, &[exec(&lines)]);
    // Rewriting a long value writes all of it.
    let renew: Vec<_> = (0..limit + 1).map(|_| "PEXPIRE k1 1000".into()).collect();
    log.push(T0_MS, &[exec(&renew)]);
    log.push(T0_MS, &[exec(&["SETRANGE k1 0 y".into()])]);
    let digests = [1, 2].map(|burst_len| {
        let dir = common::scratch();
        let mut machine = open(dir.path());
        let replies: Vec<_> = log
            .apply(&mut machine, burst_len)
            .iter()
            .map(show)
            .collect();
        let refused = format!("-ERR transaction has written {TRANSACTION_WRITTEN_BYTES_MAX} bytes");
        assert_eq!(replies[0].matches("1048576").count(), limit + 1);
        assert_eq!(replies[0].matches(&refused).count(), 3, "{}", replies[0]);
        assert_eq!(replies[1].matches(&refused).count(), 1, "{}", replies[1]);
        assert_eq!(replies[2], "[1048576]");
        assert_eq!(machine.keys(), limit as u64);
        machine.digest().unwrap()
    });
    assert_eq!(digests[0], digests[1]);
}

/// A machine that defers its writes keeps no more in memory than necessary, however much is delivered at once.
#[test]
fn long_values_are_written_early() {
    let mut log = Log::default();
    for value in 0..4 {
        let lines = grow(20 * value..20 * (value + 1));
        log.push_lines(T0_MS, &lines.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let dir = common::scratch();
    let mut machine = open(dir.path());
    machine.defer_writes();
    assert_eq!(log.apply(&mut machine, 10).len(), 80);
    // Two values amount to 40 MiB, which is over the limit.
    assert_eq!((machine.written()[0], machine.unwritten()), (5, 0));
    drop(machine);
    let mut machine = open(dir.path());
    machine.defer_writes();
    log.push_lines(T0_MS, &["SET k0 1"]);
    log.apply(&mut machine, 10);
    assert_eq!((machine.written()[0], machine.unwritten()), (5, 1));
    assert_eq!(machine.keys(), 80);
}
