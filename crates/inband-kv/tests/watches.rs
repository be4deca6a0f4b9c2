//! `INBAND.WATCH`: what is pushed, that every change is pushed once and in order although replicas are stopped, and what
//! happens to clients that cannot get the changes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{key_of_each, scratch, wait_for, Served};
use crate::types::{by_checkpoint, Asker};
use inband_kv::limit_hits::LimitHit;
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;

/// What is pushed to a client, except the name and the prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Push {
    revision: String,
    kind: String,
    key: Option<String>,
    value: Option<String>,
}

/// A client that watches a prefix.
struct Watcher {
    client: Asker,
    /// The revision after which it watches.
    from: String,
}

fn words(line: &[&str]) -> Vec<Vec<String>> {
    vec![line.iter().map(|word| (*word).to_owned()).collect()]
}

impl Watcher {
    /// The error, if there was one.
    fn try_start(served: &Served, prefix: &str, from: Option<&str>) -> Result<Self, String> {
        let mut client = Asker::connect(served.address);
        client.ask("HELLO 3");
        let mut request = vec!["INBAND.WATCH", prefix];
        request.extend(from);
        client.send(&words(&request));
        let reply = client.reply(false);
        match reply.strip_prefix('\'') {
            Some(from) => Ok(Self {
                client,
                from: from.trim_end_matches('\'').to_owned(),
            }),
            None => Err(reply),
        }
    }

    #[track_caller]
    fn start(served: &Served, prefix: &str, from: Option<&str>) -> Self {
        Self::try_start(served, prefix, from).unwrap()
    }

    /// The next push, progress included; `None` at the end of the connection.
    fn next(&mut self) -> Option<Push> {
        if self.client.is_over() {
            return None;
        }
        let text = self.client.reply(false);
        let inner = text.strip_prefix(">[").and_then(|t| t.strip_suffix(']'));
        let parts = inner.unwrap_or_else(|| panic!("{text}")).split(' ');
        let mut parts = parts.map(|part| (part != "_").then(|| part.trim_matches('\'').to_owned()));
        assert_eq!(parts.next().unwrap().unwrap(), "inband.watch");
        parts.next().expect("a prefix");
        let push = Push {
            revision: parts.next().unwrap().unwrap(),
            kind: parts.next().unwrap().unwrap(),
            key: parts.next().unwrap(),
            value: parts.next().unwrap(),
        };
        assert_eq!(parts.next(), None);
        Some(push)
    }

    /// The next push as one line, without its revision.
    fn line(&mut self) -> String {
        let push = self.next().expect("a push");
        let part = |part: Option<String>| part.unwrap_or("-".into());
        format!("{} {} {}", push.kind, part(push.key), part(push.value))
    }
}

#[test]
fn changes_of_all_kinds() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = Asker::connect(served.address);
    client.ask("SET a:before 0");
    let mut watcher = Watcher::start(&served, "a:", None);
    for line in [
        "SET b:other 1",
        "SET a:1 x",
        "GET a:1",
        "INCR a:n",
        "SETNX a:1 y",
        "RPUSH a:list 1 2",
        "EXPIRE a:list 100",
        "DEL a:1 a:nosuch b:other",
        "RENAME a:n a:m",
        "LPOP a:list 2",
        "MSET a:2 2 b:2 2 a:3 3",
    ] {
        client.ask(line);
    }
    let expected = [
        "put a:1 x",
        "put a:n 1",
        "put a:list -",
        "put a:list -",
        "delete a:1 -",
        "put a:m 1",
        "delete a:n -",
        "delete a:list -",
        "put a:2 2",
        "put a:3 3",
    ];
    for line in expected {
        assert_eq!(watcher.line(), line);
    }
    // A transaction and a script, each in one instance.
    for line in ["MULTI", "SET a:4 4", "INCR a:4", "DEL a:4", "EXEC"] {
        client.ask(line);
    }
    let pushes: Vec<_> = (0..3).map(|_| watcher.next().unwrap()).collect();
    let instance = |p: &Push| p.revision.split_once('-').unwrap().0.to_owned();
    assert!(pushes.iter().all(|p| instance(p) == instance(&pushes[0])));
    let script = "redis.call('set', KEYS[1], 's') redis.call('del', KEYS[2])";
    client.send(&words(&["EVAL", script, "2", "a:s", "a:2"]));
    client.reply(false);
    assert_eq!(watcher.line(), "put a:s s");
    assert_eq!(watcher.line(), "delete a:2 -");
    // Expiry, of its own accord and by a command that finds the key expired.
    client.ask("SET a:t 1 PX 50");
    assert_eq!(watcher.line(), "put a:t 1");
    assert_eq!(watcher.line(), "expire a:t -");
    // A long value is not pushed.
    client.send(&words(&["SET", "a:long", &"x".repeat(16 * 1024 + 1)]));
    client.reply(false);
    assert_eq!(watcher.line(), "put a:long -");
    client.ask("FLUSHALL");
    assert_eq!(watcher.line(), "flush - -");
    // Everything again, from the beginning.
    let mut again = Watcher::start(&served, "a:", Some(&watcher.from));
    for line in expected {
        assert_eq!(again.line(), line);
    }
    // A client that watches may send commands, and several prefixes may match a key.
    let mut again = Watcher::start(&served, "a:", None);
    assert_eq!(again.client.ask("INBAND.UNWATCH a:"), ":1");
    assert_eq!(again.client.ask("INBAND.UNWATCH a:"), ":0");
    assert!(again.client.ask("INBAND.WATCH a:").starts_with('\''));
    assert!(again.client.ask("INBAND.WATCH a:b").starts_with('\''));
    client.ask("SET a:b:c 1");
    assert_eq!(again.line(), "put a:b:c 1");
    assert_eq!(again.line(), "put a:b:c 1");
    assert_eq!(again.client.ask("INBAND.UNWATCH"), ":2");
    client.ask("SET a:b:c 2");
    assert_eq!(again.client.ask("GET a:b:c"), "'2'");
}

#[test]
fn what_is_refused() {
    let (cluster, dir) = (MemoryCluster::with_partitions(2), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = Asker::connect(served.address);
    let needs = "-ERR INBAND.WATCH needs RESP3; send HELLO 3 first";
    assert_eq!(client.ask("INBAND.WATCH a"), needs);
    client.ask("HELLO 3");
    let arity = "-ERR wrong number of arguments for 'inband.watch' command";
    assert_eq!(client.ask("INBAND.WATCH"), arity);
    assert_eq!(client.ask("INBAND.WATCH a 1 2"), arity);
    let invalid =
        "-ERR invalid revision; use one that INBAND.WATCH has returned or pushed in this cluster";
    assert_eq!(client.ask("INBAND.WATCH begin 0,0"), "'0,0'");
    assert_eq!(client.ask("INBAND.UNWATCH begin"), ":1");
    for revision in ["x", "1", "1,2,3", "1,-", "1,2-x"] {
        assert_eq!(client.ask(&format!("INBAND.WATCH a {revision}")), invalid);
    }
    assert_eq!(client.ask("MULTI"), "+OK");
    assert_eq!(
        client.ask("INBAND.WATCH a"),
        "-ERR INBAND.WATCH is not allowed inside a transaction"
    );
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    let long = "p".repeat(32 * 1024 + 1);
    assert_eq!(
        client.ask(&format!("INBAND.WATCH {long}")),
        "-ERR prefix of 32769 bytes is over the limit of 32768 bytes"
    );
    let before = served.control.status().clients_memory_bytes;
    for n in 0..64 {
        let reply = client.ask(&format!("INBAND.WATCH {n}"));
        assert!(reply.starts_with('\''), "{reply}");
    }
    assert_eq!(
        client.ask("INBAND.WATCH 7"),
        "-ERR this client watches the prefix already; end that with INBAND.UNWATCH"
    );
    let most = "-ERR a client watches at most 64 prefixes";
    assert_eq!(client.ask("INBAND.WATCH 64"), most);
    wait_for("their memory is counted", || {
        served.control.status().clients_memory_bytes > before + 64 * 256
    });
    assert_eq!(
        client.ask("HELLO 2"),
        "-ERR INBAND.WATCH needs RESP3; end it with INBAND.UNWATCH first"
    );
    // All of them end with RESET, and with the connection.
    assert_eq!(client.ask("RESET"), "+RESET");
    let start = || {
        let mut client = Asker::connect(served.address);
        client.ask("HELLO 3");
        (0..64).for_each(|n| drop(client.ask(&format!("INBAND.WATCH {n}"))));
        client
    };
    let mut clients: Vec<_> = (0..16).map(|_| start()).collect();
    let full =
        "-ERR 1024 prefixes are watched at this replica, which is the limit; use another replica";
    client.ask("HELLO 3");
    assert_eq!(client.ask("INBAND.WATCH a"), full);
    clients.pop();
    wait_for("its watches have ended", || {
        client.ask("INBAND.WATCH a") != full
    });
    assert!(served.control.status().hits(LimitHit::Request) >= 3);
}

/// An export takes over the connection: the next connection in its slot watches nothing.
#[test]
fn an_export_ends_watches() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut watcher = Watcher::start(&served, "", None);
    watcher.client.send(&words(&["INBAND.EXPORT"]));
    let mut rest = Vec::new();
    watcher.client.stream().read_to_end(&mut rest).unwrap();
    let mut client = Asker::connect(served.address);
    client.ask("HELLO 3");
    for n in 0..3 {
        assert_eq!(client.ask(&format!("SET k {n}")), "+OK");
        assert_eq!(client.ask("PING"), "+PONG");
    }
    assert_eq!(client.ask("INBAND.UNWATCH"), ":0");
}

/// Applies pushes to a map, as a client does.
fn replay<'p>(pushes: impl IntoIterator<Item = &'p Push>) -> BTreeMap<String, String> {
    let mut map = BTreeMap::new();
    for push in pushes {
        match (&*push.kind, &push.key, &push.value) {
            ("put", Some(key), Some(value)) => drop(map.insert(key.clone(), value.clone())),
            ("delete" | "expire", Some(key), None) => {
                assert!(map.remove(key).is_some(), "{push:?}");
            }
            ("flush", None, None) => map.clear(),
            _ => panic!("{push:?}"),
        }
    }
    map
}

/// Reads until the connection ends, or all of these keys were put. Returns whether they were.
fn collect(watcher: &mut Watcher, keys: &[String], into: &mut Vec<Push>) -> bool {
    let mut missing: BTreeSet<_> = keys.iter().collect();
    while let Some(push) = watcher.next() {
        if push.kind == "put" {
            missing.retain(|key| push.key.as_ref() != Some(*key));
        }
        into.push(push);
        if missing.is_empty() {
            return true;
        }
    }
    false
}

/// What was pushed for each key.
fn by_key(pushes: &[Push]) -> BTreeMap<Option<&str>, Vec<(&str, Option<&str>)>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for push in pushes {
        let of_key = all.entry(push.key.as_deref()).or_default();
        of_key.push((&*push.kind, push.value.as_deref()));
    }
    all
}

/// Ends the writers, also after a panic.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The clients of all replicas write while the replicas are restarted one after the other. A client that continues at
/// another replica each time sees the same as one that was never disturbed.
#[test]
fn every_change_once_and_in_order_although_replicas_stop() {
    for partitions in [1, 3] {
        let cluster = MemoryCluster::with_partitions(partitions);
        let dirs = [scratch(), scratch(), scratch()];
        let [mut first, mut second, third] = Served::start_all(&cluster, &dirs).map(Some);
        let third = third.unwrap();
        let mut undisturbed = Watcher::start(&third, "w:", None);
        let from = undisturbed.from.clone();
        let reader = std::thread::spawn(move || {
            let mut pushes = Vec::new();
            let ends = key_of_each("w:end", partitions);
            let is_whole = collect(&mut undisturbed, &ends, &mut pushes);
            assert!(is_whole, "it was disconnected");
            pushes
        });
        let (is_over, written) = (AtomicBool::new(false), AtomicUsize::new(0));
        let keys: Vec<String> = key_of_each("w:", 3.max(partitions));
        let (mut seen, revision) = std::thread::scope(|scope| {
            for writer in 0..3 {
                let (keys, is_over, written, address) = (&keys, &is_over, &written, third.address);
                scope.spawn(move || {
                    let mut client = Asker::connect(address);
                    for n in 0.. {
                        if is_over.load(Ordering::Relaxed) {
                            return;
                        }
                        let key = |at: usize| &keys[at % keys.len()];
                        let own = format!("w:own:{writer}");
                        let lines = match n % 8 {
                            0..3 => vec![format!("SET {} {writer}.{n}", key(n))],
                            3 => vec![format!("MSET {} m{n} {} m{n}", key(n), key(n + 1))],
                            4 => vec![format!("DEL {} {}", key(n), key(n + 1))],
                            5 => vec![
                                "MULTI".into(),
                                format!("SET {} 1", key(n)),
                                format!("INCR {}", key(n)),
                                "EXEC".into(),
                            ],
                            6 if n % 400 == 6 => vec!["FLUSHALL".into()],
                            6 => vec![format!("SET {own} {n} PX 5")],
                            _ => vec![format!("EVAL return(redis.call('incr',KEYS[1])) 1 {own}")],
                        };
                        for line in lines {
                            let reply = client.ask(&line);
                            assert!(!reply.starts_with("-ERR un"), "{line}: {reply}");
                        }
                        written.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_micros(500));
                    }
                });
            }
            let _ended = Ended(&is_over);
            let mut client = Asker::connect(third.address);
            let mut seen = Vec::new();
            let mut revision = from;
            for round in 0..8 {
                let replica = [&first, &second][round % 2].as_ref().unwrap();
                let mut watcher = Watcher::start(replica, "w:", Some(&revision));
                assert_eq!(watcher.from, revision);
                // Beyond the place in each log at which the replica of the next round was started.
                let marks = key_of_each(&format!("w:round{round}:"), partitions);
                for key in &marks {
                    assert_eq!(client.ask(&format!("SET {key} 1")), "+OK");
                }
                assert!(collect(&mut watcher, &marks, &mut seen));
                revision.clone_from(&seen.last().unwrap().revision);
                // Somewhere in the middle.
                for _ in 0..100 {
                    let push = watcher.next().expect("a push");
                    revision.clone_from(&push.revision);
                    seen.push(push);
                }
                // It is stopped, and what is on its way still comes.
                let (stopped, dir) = match round % 2 {
                    0 => (first.take().unwrap(), dirs[0].path()),
                    _ => (second.take().unwrap(), dirs[1].path()),
                };
                stopped.control.stop();
                assert!(!collect(&mut watcher, &["none".into()], &mut seen));
                revision.clone_from(&seen.last().unwrap().revision);
                let again = stopped.restart(&cluster, dir, ReplicaConfig::default());
                *[&mut first, &mut second][round % 2] = Some(again);
            }
            (seen, revision)
        });
        assert!(written.load(Ordering::Relaxed) > 100);
        let mut client = Asker::connect(third.address);
        // The last change of each partition, when no key is left that is about to expire.
        client.ask("DEL w:own:0 w:own:1 w:own:2");
        let ends = key_of_each("w:end", partitions);
        for key in &ends {
            assert_eq!(client.ask(&format!("SET {key} 1")), "+OK");
        }
        let mut watcher = Watcher::start(first.as_ref().unwrap(), "w:", Some(&revision));
        assert!(collect(&mut watcher, &ends, &mut seen));
        let expected = reader.join().expect("no panic");
        assert_eq!(seen.len(), expected.len());
        if partitions == 1 {
            let differs = seen.iter().zip(&expected).find(|(a, b)| a != b);
            assert_eq!(differs, None);
        } else {
            // The order of each key's changes, and that of all flushes, is the same.
            assert!(by_key(&seen) == by_key(&expected));
        }
        // What the pushes lead to is what is stored.
        let map = replay(&seen);
        assert_eq!(map, replay(&expected));
        assert_eq!(client.ask("DBSIZE"), format!(":{}", map.len()));
        for (key, value) in map {
            assert_eq!(
                client.ask(&format!("GET {key}")),
                format!("'{value}'"),
                "{key}"
            );
        }
    }
}

#[test]
fn a_replica_that_has_not_the_changes_says_so() {
    let cluster = MemoryCluster::new();
    let dirs = [scratch(), scratch()];
    let served = Served::start_all(&cluster, &dirs);
    let mut watcher = Watcher::start(&served[1], "", None);
    let mut client = by_checkpoint(&cluster, &served[0], |client| {
        assert_eq!(client.ask("SET missed 1"), "+OK");
    });
    // Its watchers are disconnected, and cannot resume there.
    assert_eq!(watcher.next(), None);
    assert_eq!(served[1].control.status().hits(LimitHit::LostMessages), 1);
    wait_for("it has the checkpoint", || {
        !served[1].control.status().is_loading
    });
    let refused = Watcher::try_start(&served[1], "", Some(&watcher.from))
        .err()
        .unwrap();
    let expected = format!(
        "-GONE the changes behind revision {} are not kept here",
        watcher.from
    );
    assert!(refused.starts_with(&expected), "{refused}");
    // The other replica still has them.
    let mut watcher = Watcher::start(&served[0], "missed", Some(&watcher.from));
    assert_eq!(watcher.line(), "put missed 1");
    let mut watcher = Watcher::start(&served[1], "", None);
    assert_eq!(client.ask("SET heard 1"), "+OK");
    assert_eq!(watcher.line(), "put heard 1");
}

/// A replica that is behind the revision pushes nothing until it has caught up.
#[test]
fn a_replica_that_lags_does_not_repeat() {
    let cluster = MemoryCluster::new();
    let dirs = [scratch(), scratch()];
    let served = Served::start_all(&cluster, &dirs);
    let mut ahead = Watcher::start(&served[0], "k", None);
    cluster.pace();
    cluster.allow(0, 0, 10_000);
    let mut client = Asker::connect(served[0].address);
    client.ask("SET k 1");
    let revision = ahead.next().unwrap().revision;
    client.ask("SET k 2");
    let mut behind = Watcher::start(&served[1], "k", Some(&revision));
    cluster.unpace();
    assert_eq!(behind.line(), "put k 2");
}

/// Much more than a client may have unread, to one that reads and to one that does not.
#[test]
fn a_client_that_reads_gets_everything_and_others_are_disconnected() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let config = ReplicaConfig {
        changes_bytes_max: 4 << 20,
        ..ReplicaConfig::default()
    };
    let served = Served::start(&cluster, dir.path(), config);
    let mut client = Asker::connect(served.address);
    let value = "v".repeat(10_000);
    let set = |client: &mut Asker, n: usize| {
        assert_eq!(client.ask(&format!("SET k{n} {value}")), "+OK");
    };
    let from = Watcher::start(&served, "", None).from;
    (0..300).for_each(|n| set(&mut client, n));
    let mut reads = Watcher::start(&served, "", Some(&from));
    let mut slow = Watcher::start(&served, "", Some(&from));
    for n in 0..300 {
        assert_eq!(reads.line(), format!("put k{n} {value}"));
    }
    let mut n = 300;
    while served.control.status().hits(LimitHit::Subscriber) == 0 {
        set(&mut client, n);
        assert_eq!(reads.line(), format!("put k{n} {value}"));
        n += 1;
        assert!(n < 10_000, "it would be disconnected");
    }
    let mut rest = Vec::new();
    let _ = slow.client.stream().read_to_end(&mut rest);
    assert!(rest.len() < n * value.len());
    let refused = Watcher::try_start(&served, "", Some(&from)).err().unwrap();
    assert!(refused.starts_with("-GONE"), "{refused}");
    // A client for which nothing is there is told how far it is, so that it can resume.
    let mut other = Watcher::start(&served, "other", None);
    (0..1000).for_each(|n| set(&mut client, n));
    set(&mut client, 0);
    let mut last = other.next().unwrap();
    assert_eq!((&*last.kind, &last.key), ("progress", &None));
    let set_timeout = |watcher: &mut Watcher, ms| {
        let timeout = Some(Duration::from_millis(ms));
        watcher.client.stream().set_read_timeout(timeout).unwrap();
    };
    set_timeout(&mut other, 2_000);
    while let Some(push) = other.next() {
        last = push;
    }
    client.ask("SET other 1");
    let mut again = Watcher::start(&served, "other", Some(&last.revision));
    assert_eq!(again.line(), "put other 1");
    let refused = Watcher::try_start(&served, "other", Some(&other.from));
    assert!(refused.err().unwrap().starts_with("-GONE"));
    set_timeout(&mut again, 200);
    assert_eq!(again.next(), None);
}
