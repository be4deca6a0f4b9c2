//! What is applied while something is being written: it is read as if everything were written, and nothing counts as
//! written before it is.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use inband_kv::command::Command;
use inband_kv::control::ReplicaControl;
use inband_kv::export::ExportError;
use inband_kv::import;
use inband_kv::limits::{
    RECORD_CACHE_BYTES_MAX, UNWRITTEN_BEHIND_INSTANCES_MAX, UNWRITTEN_INSTANCES_MAX,
};
use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::replica::{Replica, ReplicaConfig, ReplicaError};
use inband_kv::store::StoreError;
use inband_kv::testing::MemoryCluster;
use inband_resp::reply::Reply;
use proptest::prelude::*;

use crate::common::world::{exec, World};
use crate::common::{
    self, any_apart, encode, open, resp, scratch, show, wait_for, words, Apart, Client, Log,
    Served, T0_MS,
};

/// A machine whose writes go step by step.
fn open_apart(dir: &std::path::Path) -> Machine {
    let mut machine = open(dir);
    machine.defer_writes();
    machine
}

/// A machine and its log; its writes go step by step.
struct Layered {
    machine: Machine,
    log: Log,
    now_ms: u64,
    _dir: tempfile::TempDir,
}

impl Layered {
    fn new() -> Self {
        let dir = scratch();
        Self {
            machine: open_apart(dir.path()),
            log: Log::default(),
            now_ms: T0_MS,
            _dir: dir,
        }
    }

    #[track_caller]
    fn script(&mut self, text: &str) {
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(ms) = line.strip_prefix('@') {
                self.now_ms = T0_MS + ms.parse::<u64>().expect("a number");
                continue;
            }
            let (command, expected) = line.split_once(" -> ").expect("an arrow");
            let command = encode(&words(command), None).expect("parses");
            self.log.push(self.now_ms, &[command]);
            let replies = self.log.apply(&mut self.machine, 1);
            assert_eq!(show(replies.last().expect("a reply")), expected, "{line}");
        }
    }
}

/// Every way to find a key looks at what is new, then at what is being written, then at what is written.
#[test]
fn reads_go_through_what_is_being_written() {
    for is_written in [false, true] {
        let mut layered = Layered::new();
        layered.script(
            "SET replaced 1 -> OK
             SET twice 1 -> OK
             SET deleted 1 -> OK
             SET deleted-now 1 -> OK
             SET kept 1 -> OK
             SET expires-old 1 PX 100 -> OK",
        );
        layered.machine.flush().unwrap();
        layered.script(
            "SET replaced 2 -> OK
             SET twice 2 -> OK
             DEL deleted -> 1
             SET new 2 -> OK
             SET new-deleted 2 -> OK
             SET expires-being-written 2 PX 200 -> OK
             PERSIST expires-old -> 1",
        );
        layered.machine.begin_write().unwrap();
        if is_written {
            layered.machine.step_write(false);
        }
        layered.script(
            "SET twice 3 -> OK
             DEL deleted-now new-deleted -> 2
             SET expires-new 3 PX 300 -> OK
             MGET replaced twice deleted deleted-now new new-deleted kept -> ['2' '3' nil nil '2' nil '1']
             DBSIZE -> 7
             EVAL return(redis.call('incr',KEYS[1])) 1 replaced -> 3
             KEYS expires-being* -> ['expires-being-written']
             KEYS dele* -> []
             KEYS repl* -> ['replaced']
             KEYS new* -> ['new']
             SETNX deleted 3 -> 1
             @150
             DBSIZE -> 8
             GET expires-old -> '1'
             @250
             GET expires-being-written -> nil
             DBSIZE -> 7
             @350
             GET expires-new -> nil
             DBSIZE -> 6",
        );
        assert_eq!(layered.machine.written(), [7]);
        let expected = ["deleted", "expires-old", "kept", "new", "replaced", "twice"];
        for count in [1, 3, 100] {
            assert_eq!(scanned(&layered.machine, count), expected);
        }
        layered.machine.flush().unwrap();
        assert_eq!(scanned(&layered.machine, 100), expected);
    }
}

/// The keys that a scan in pages of `count` finds, in order.
fn scanned(machine: &Machine, count: usize) -> Vec<String> {
    let (mut cursor, mut keys) = (0, Vec::new());
    loop {
        let page = machine.scan(cursor, count).unwrap();
        keys.extend(
            page.keys
                .into_iter()
                .map(|key| String::from_utf8(key).unwrap()),
        );
        cursor = page.cursor;
        if cursor == 0 {
            keys.sort();
            return keys;
        }
    }
}

/// `FLUSHALL` hides what is being written, and what is written once that has ended.
#[test]
fn what_is_deleted_with_all_does_not_come_back() {
    for (flushed_in, is_written) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut layered = Layered::new();
        let flush = "FLUSHALL -> OK";
        layered.script("SET a 1 PX 500 -> OK\nSET b 1 -> OK");
        layered.machine.flush().unwrap();
        layered.script("SET a 2 PX 400 -> OK\nSET c 2 PX 300 -> OK");
        if flushed_in == 0 {
            layered.script(flush);
        }
        layered.machine.begin_write().unwrap();
        if flushed_in == 1 {
            layered.script(flush);
        }
        if is_written {
            layered.machine.step_write(false);
        }
        layered
            .script("MGET a b c -> [nil nil nil]\nKEYS * -> []\nDBSIZE -> 0\nSET b 3 PX 100 -> OK");
        layered.machine.wait_for_write().unwrap();
        layered.script(
            "MGET a b c -> [nil '3' nil]
             KEYS * -> ['b']
             @350
             DBSIZE -> 0",
        );
        assert!(layered.machine.scan(0, 100).unwrap().keys.is_empty());
        layered.machine.flush().unwrap();
        assert!(layered.machine.scan(0, 100).unwrap().keys.is_empty());
    }
}

/// Nothing counts as written before its end is known, and a crash finds the position before or after, with its data.
#[test]
fn a_write_counts_when_it_has_ended() {
    let (dir, mut log) = (scratch(), Log::default());
    let mut machine = open_apart(dir.path());
    log.push_lines(T0_MS, &["SET a 1"]);
    log.apply(&mut machine, 1);
    machine.begin_write().unwrap();
    assert!(machine.is_writing() && !machine.end_write().unwrap());
    log.push_lines(T0_MS, &["SET a 2"]);
    log.apply(&mut machine, 1);
    // One at a time.
    machine.begin_write().unwrap();
    assert_eq!((machine.written(), machine.unwritten()), (vec![0], 3));
    drop(machine);
    let mut machine = open_apart(dir.path());
    assert_eq!(machine.applied(), [0]);
    log.prefix(2).apply(&mut machine, 1);
    machine.begin_write().unwrap();
    machine.step_write(false);
    // It has ended, and that was not noted.
    assert_eq!(machine.written(), [0]);
    drop(machine);
    let mut machine = open_apart(dir.path());
    assert_eq!((machine.applied(), machine.keys()), (vec![2], 1));
    log.apply(&mut machine, 1);
    machine.begin_write().unwrap();
    machine.step_write(false);
    assert!(machine.end_write().unwrap() && !machine.is_writing());
    assert_eq!((machine.written(), machine.unwritten()), (vec![3], 0));
}

/// A reader of written data gets everything that was applied, or an error, even after the machine has ended: clients may
/// have received an acknowledgement.
#[test]
fn after_the_end_there_is_everything_or_an_error() {
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Last {
        Unwritten,
        Begun,
        /// Its end was not noted.
        Written,
        Failed,
    }
    for last in [Last::Unwritten, Last::Begun, Last::Written, Last::Failed] {
        let mut layered = Layered::new();
        layered.script("SET a 1 -> OK");
        layered.machine.flush().unwrap();
        layered.script("SET a 2 -> OK");
        let shared = layered.machine.shared();
        if last != Last::Unwritten {
            layered.machine.begin_write().unwrap();
        }
        if last == Last::Failed {
            layered.machine.faults().fail_after(0);
        }
        if matches!(last, Last::Written | Last::Failed) {
            layered.machine.step_write(false);
        }
        drop(layered.machine);
        let (mut stream, mut values) = (Vec::new(), Vec::new());
        let exported = shared.export(&mut stream);
        let (digest, synced) = (shared.digest(), shared.sync_applied());
        if last == Last::Written {
            import::read(&stream[..], &mut |key| {
                values.push(key.value.to_vec());
                Ok(())
            })
            .unwrap();
            assert_eq!((exported.unwrap().keys, values), (1, vec![b"2".to_vec()]));
            digest.unwrap();
            synced.unwrap();
            continue;
        }
        assert!(
            matches!(exported, Err(ExportError::Store(StoreError::Ended))),
            "{last:?}: {exported:?}"
        );
        assert!(
            matches!(digest, Err(StoreError::Ended)),
            "{last:?}: {digest:?}"
        );
        assert!(
            matches!(synced, Err(StoreError::Ended)),
            "{last:?}: {synced:?}"
        );
    }
}

/// After the write of one log has failed, those of the others are not written, and the machine stops.
#[test]
fn a_write_that_fails_stops_the_machine() {
    let mut world = World::new(2, 3);
    for at in 0..20 {
        world.decide_line(&format!("SET k{at} 1"), 2);
    }
    world.deliver_all(2);
    let before = world.machine(2).written();
    let machine = world.machine(2);
    machine.begin_write().unwrap();
    machine.faults().fail_after(0);
    machine.step_write(false);
    machine.faults().fail_after(u64::MAX);
    machine.step_write(false);
    let ended = machine.end_write();
    assert!(matches!(ended, Err(StoreError::Fault)), "{ended:?}");
    assert_eq!(machine.written(), before);
    let flushed = machine.flush();
    assert!(matches!(flushed, Err(StoreError::Stopped)), "{flushed:?}");
    world.crash(2, StoreError::Fault);
    assert_eq!(world.machine(2).applied(), before);
    world.settle();
}

#[derive(Debug, Clone)]
enum Step {
    /// Commands in one value, so much later.
    Value(Vec<String>, u64),
    Write(Apart),
    Flush,
    Crash,
}

fn any_line() -> impl Strategy<Value = String> {
    let key = || (0..8u8).prop_map(|k| format!("k{k}"));
    prop_oneof![
        6 => key().prop_map(|k| format!("GET {k}")),
        6 => (key(), 0..50i64).prop_map(|(k, v)| format!("SET {k} {v}")),
        5 => (key(), 0..50i64, 1..40u64).prop_map(|(k, v, t)| format!("SET {k} {v} PX {t}")),
        2 => (key(), 0..50i64).prop_map(|(k, v)| format!("SETNX {k} {v}")),
        3 => (key(), key()).prop_map(|(a, b)| format!("DEL {a} {b}")),
        3 => (key(), -9..9i64).prop_map(|(k, d)| format!("INCRBY {k} {d}")),
        2 => (key(), 1..40u64).prop_map(|(k, t)| format!("PEXPIRE {k} {t}")),
        2 => key().prop_map(|k| format!("PERSIST {k}")),
        2 => key().prop_map(|k| format!("HINCRBY h{k} f 1")),
        2 => key().prop_map(|k| format!("RPUSH l{k} x")),
        1 => key().prop_map(|k| format!("LPOP l{k}")),
        2 => key().prop_map(|k| format!("EVAL return(redis.call('incr',KEYS[1])) 1 s{k}")),
        2 => Just("KEYS *".to_string()),
        2 => Just("DBSIZE".to_string()),
        1 => Just("FLUSHALL".to_string()),
        3 => (key(), key()).prop_map(|(a, b)| format!("RENAME {a} {b}")),
        2 => key().prop_map(|k| format!("GETDEL {k}")),
        2 => (key(), 1..40u64).prop_map(|(k, t)| format!("GETEX {k} PX {t}")),
        2 => (key(), 0..300u64).prop_map(|(k, at)| format!("SETRANGE {k} {at} x")),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let lines = prop::collection::vec(any_line(), 1..4);
    // More keys expire at once than one value deletes.
    let crowd = (1..40u64).prop_map(|ms| (0..50).map(|k| format!("SET m{k} 1 PX {ms}")).collect());
    prop_oneof![
        20 => (lines, 0..15u64).prop_map(|(lines, ms)| Step::Value(lines, ms)),
        2 => (crowd, 0..15u64).prop_map(|(lines, ms)| Step::Value(lines, ms)),
        2 => (0..50u64).prop_map(|ms| Step::Value(Vec::new(), ms)),
        12 => any_apart().prop_map(Step::Write),
        1 => Just(Step::Flush),
        2 => Just(Step::Crash),
    ]
}

/// Replies in readable form; the order of keys is none.
fn shown(replies: &[Reply]) -> Vec<String> {
    let show_sorted = |reply: &Reply| match reply {
        Reply::Array(items) => {
            let mut items: Vec<String> = items.iter().map(show).collect();
            items.sort();
            items.join(" ")
        }
        other => show(other),
    };
    replies.iter().map(show_sorted).collect()
}

/// What this replica answers without the log.
fn read_all(machine: &mut Machine, clock_ms: u64) -> BTreeMap<String, Option<String>> {
    let mut reader = machine.reader(0, clock_ms).unwrap();
    let keys = (0..8).map(|k| format!("k{k}"));
    let read = |key: String| {
        let mut command = BytesMut::new();
        Command::Get(key.as_bytes()).encode(None, &mut command);
        let reply = reader.read(&command).unwrap();
        (key, reply.as_ref().map(show))
    };
    keys.map(read).collect()
}

proptest! {
    #![proptest_config(common::cases(40))]

    /// A store whose writes may begin, be done and end at any time answers like one that writes everything at once, and
    /// is equal to it in the end, whenever its process crashes.
    #[test]
    fn a_write_apart_changes_no_reply(steps in prop::collection::vec(any_step(), 20..150)) {
        let (plain_dir, dir) = (scratch(), scratch());
        let (mut plain, mut layered) = (open(plain_dir.path()), open_apart(dir.path()));
        let mut log = Log::default();
        log.apply(&mut plain, 1);
        log.apply(&mut layered, 1);
        let mut now_ms = T0_MS;
        for step in steps {
            match step {
                Step::Value(lines, ms) => {
                    now_ms += ms;
                    let lines: Vec<&str> = lines.iter().map(|line| &**line).collect();
                    log.push_lines(now_ms, &lines);
                    let expected = shown(&log.apply(&mut plain, 1));
                    prop_assert_eq!(shown(&log.apply(&mut layered, 1)), expected);
                }
                Step::Write(how) => how.act(&mut layered).unwrap(),
                Step::Flush => layered.flush().unwrap(),
                Step::Crash => {
                    let written = layered.written()[0];
                    drop(layered);
                    layered = open_apart(dir.path());
                    prop_assert!(layered.applied()[0] >= written);
                    let whole = scratch();
                    let mut prefix = open(whole.path());
                    log.prefix(layered.applied()[0] as usize).apply(&mut prefix, 1);
                    prop_assert_eq!(layered.digest()?, prefix.digest()?);
                    log.apply(&mut layered, 7);
                }
            }
            prop_assert_eq!(layered.keys(), plain.keys());
            prop_assert_eq!(read_all(&mut layered, now_ms), read_all(&mut plain, now_ms));
        }
        layered.flush().unwrap();
        prop_assert_eq!(layered.digest()?, plain.digest()?);
    }
}

/// Writes wait while it exists, so that a replica can always stop.
struct Held(Arc<ReplicaControl>);

impl Held {
    fn begin(control: &Arc<ReplicaControl>) -> Self {
        control.faults().hold(true);
        Self(control.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.faults().hold(false);
    }
}

/// Clients are served while a write takes long. Acceptors keep what is not written, and what needs everything
/// written waits.
#[test]
fn a_slow_write_holds_up_no_client() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = served.client();
    assert_eq!(client.ask("SET a 0"), "+OK");
    let held = Held::begin(&served.control);
    // The first one after that may still be written.
    let told = || cluster.applied(0, 0);
    let mut last = told();
    for round in 1..=300 {
        client.send(resp(&format!("SET a {round}")));
        client.expect("+OK\r\n");
        client.send(resp("GET a"));
        let value = round.to_string();
        client.expect(format!("${}\r\n{value}\r\n", value.len()));
        if round == 100 {
            std::thread::sleep(Duration::from_millis(50));
            last = told();
        }
    }
    assert_eq!(client.ask("DBSIZE"), ":1");
    assert!(served.control.status().applied_instance > 300);
    assert_eq!(told(), last, "the log was told of what is not written");
    assert!(last < 150);
    let control = served.control.clone();
    let digest = std::thread::spawn(move || control.digest().unwrap());
    std::thread::sleep(Duration::from_millis(50));
    assert!(!digest.is_finished());
    drop(held);
    let (applied, _) = digest.join().unwrap();
    assert!(applied[0] > 300);
    wait_for("the log is told of everything", || {
        told() == served.control.status().applied_instance
    });
    served.stop();
}

/// Records that commands only look at are not kept because others are being written.
#[test]
fn a_slow_write_keeps_no_more_than_what_is_unwritten() {
    const VALUES: u64 = 100;
    let (dir, mut log) = (scratch(), Log::default());
    let mut machine = open_apart(dir.path());
    let mut apply = |machine: &mut Machine, line: &str| {
        log.push_lines(T0_MS, &[line]);
        log.apply(machine, 1);
    };
    for n in 0..VALUES {
        apply(&mut machine, &format!("SETRANGE k{n} 1048575 x"));
    }
    machine.flush().unwrap();
    apply(&mut machine, "SET x 1");
    machine.begin_write().unwrap();
    for n in 0..VALUES {
        apply(&mut machine, &format!("SETNX k{n} 1"));
    }
    let cached = machine.cached_bytes();
    assert!(cached <= RECORD_CACHE_BYTES_MAX + (2 << 20), "{cached}");
    assert!(cached > RECORD_CACHE_BYTES_MAX / 4, "it would be full");
}

/// How far what is applied may be ahead of what is written has a limit: then the replica waits.
#[test]
fn a_replica_waits_for_a_write_that_lags_too_far_behind() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = served.client();
    assert_eq!(client.ask("SET a 0"), "+OK");
    let held = Held::begin(&served.control);
    let line = resp(&format!("SET a {}", "v".repeat(900)));
    let mut stream = client.stream.try_clone().unwrap();
    let count = 8 * UNWRITTEN_BEHIND_INSTANCES_MAX as usize;
    let sends = std::thread::spawn(move || stream.write_all(line.repeat(count).as_bytes()));
    let applied = || served.control.status().applied_instance;
    // It says how much it has applied at the end of a turn, and may wait in the middle of one.
    let mut before = 0;
    wait_for("it waits", || {
        before = applied();
        std::thread::sleep(Duration::from_secs(1));
        before > UNWRITTEN_INSTANCES_MAX && applied() == before
    });
    assert!(before < 3 * UNWRITTEN_BEHIND_INSTANCES_MAX, "{before}");
    drop(held);
    sends.join().unwrap().unwrap();
    (0..count).for_each(|_| client.expect("+OK\r\n"));
    wait_for("everything is written", || {
        cluster.applied(0, 0) == applied()
    });
    served.stop();
}

/// A replica whose write has failed ends with the reason, and has told its log of nothing that is not written: the next
/// process has every acknowledged write.
#[test]
fn a_replica_ends_when_a_write_has_failed() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let log = Box::new(cluster.join(&[0]).unwrap());
    let machine = Machine::open(MachineConfig::single(dir.path())).unwrap();
    let config = ReplicaConfig::default();
    let mut replica = Replica::new(config, machine, log, vec![listener], None).unwrap();
    let control = replica.control();
    let told = cluster.clone();
    let client = std::thread::spawn(move || {
        let mut client = Client::connect(address);
        assert_eq!(client.ask("SET a 1"), "+OK");
        wait_for("it is written", || {
            told.applied(0, 0) == control.status().applied_instance
        });
        control.faults().fail_after(0);
        let mut acknowledged = 1;
        let mut replies = BufReader::new(client.stream.try_clone().unwrap());
        loop {
            let mut reply = String::new();
            let is_sent = client.stream.write_all(b"INCR a\r\n").is_ok();
            let is_read = is_sent && replies.read_line(&mut reply).is_ok();
            if !is_read || !reply.starts_with(':') {
                break;
            }
            acknowledged += 1;
        }
        acknowledged
    });
    let ended = replica.run();
    assert!(
        matches!(ended, Err(ReplicaError::Store(StoreError::Fault))),
        "{ended:?}"
    );
    assert_eq!(cluster.applied(0, 0), replica.machine().written()[0]);
    drop(replica);
    let acknowledged: u64 = client.join().unwrap();
    assert!(acknowledged > 1);
    let next = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = next.client();
    wait_for("everything is there", || {
        let value = client.ask("INCRBY a 0");
        value
            .strip_prefix(':')
            .is_some_and(|value| value.parse::<u64>().unwrap() >= acknowledged)
    });
    next.stop();
}

/// A transaction over what is new, what is being written and what is written.
#[test]
fn a_transaction_sees_one_state() {
    let (dir, mut log) = (scratch(), Log::default());
    let mut machine = open_apart(dir.path());
    log.push_lines(T0_MS, &["SET a 1", "SET b 1", "SET c 1"]);
    log.apply(&mut machine, 1);
    machine.flush().unwrap();
    log.push_lines(T0_MS, &["INCR b", "INCR c"]);
    log.apply(&mut machine, 1);
    machine.begin_write().unwrap();
    log.push_lines(T0_MS, &["INCR c"]);
    log.apply(&mut machine, 1);
    let lines = ["INCR a", "INCR b", "INCR c", "MGET a b c"].map(String::from);
    log.push(T0_MS, &[exec(&lines)]);
    let replies = log.apply(&mut machine, 1);
    assert_eq!(show(&replies[0]), "[2 3 4 ['2' '3' '4']]");
    drop(machine);
    let mut machine = open_apart(dir.path());
    log.apply(&mut machine, 3);
    machine.flush().unwrap();
    log.push_lines(T0_MS, &["MGET a b c"]);
    assert_eq!(show(&log.apply(&mut machine, 1)[0]), "['2' '3' '4']");
}
