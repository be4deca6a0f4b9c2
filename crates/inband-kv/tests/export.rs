//! Exports all keys from a replica into a cluster with a different number of partitions.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{self, encode, key_of_each, resp, scratch, words, Served, T0_MS};
use inband_host::log::{Origin, ValueKind};
use inband_kv::access::Access;
use inband_kv::export::{ExportError, Summary};
use inband_kv::import::{ask_for_export, import, read, ImportError, ImportOptions};
use inband_kv::limits::EXPORTS_MAX;
use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::replica::ReplicaConfig;
use inband_kv::store::{Outcomes, StoreError};
use inband_kv::testing::MemoryCluster;
use inband_kv::value::{marker, ValueWriter};

fn start(partitions: usize) -> (Served, tempfile::TempDir, MemoryCluster) {
    let (cluster, dir) = (MemoryCluster::with_partitions(partitions), scratch());
    let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    (served, dir, cluster)
}

type Keys = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;

fn keys_of(stream: &[u8]) -> (Keys, Summary) {
    let mut keys = Keys::new();
    let summary = read(stream, &mut |key| {
        let before = keys.insert(key.key.to_vec(), (key.value.to_vec(), key.expire_at_ms));
        assert_eq!(before, None, "each key once");
        Ok(())
    });
    (keys, summary.expect("it is whole"))
}

fn exported(served: &Served) -> Vec<u8> {
    let mut stream = Vec::new();
    let summary = served.control.export(&mut stream).expect("exports");
    assert_eq!(summary.len_bytes, stream.len() as u64);
    assert_eq!(keys_of(&stream).1, summary);
    stream
}

/// A cluster with every kind of record.
fn filled(partitions: usize) -> (Served, tempfile::TempDir, MemoryCluster) {
    let (served, dir, cluster) = start(partitions);
    let mut client = served.client();
    for i in 0..500 {
        client.send(resp(&format!("SET key{i} {}", "v".repeat(i * 3))));
        client.expect("+OK\r\n");
    }
    client.send(resp(&format!("SET large {}", "x".repeat(600_000))));
    client.send(resp(&format!("SET huge {}", "y".repeat(1024 * 1024))));
    client.send(resp("SET expiring 1 PXAT 4000000000000"));
    client.send(resp("SET gone 1 PX 1"));
    client.send("*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\n\r\n\0\r\r\n");
    client.expect("+OK\r\n".repeat(5));
    std::thread::sleep(std::time::Duration::from_millis(5));
    // Advances the time of every partition.
    for i in 0..20 {
        client.send(resp(&format!("SET key{i} {}", "v".repeat(i * 3))));
        client.expect("+OK\r\n");
    }
    client.send(resp("GET gone"));
    client.expect("$-1\r\n");
    (served, dir, cluster)
}

#[test]
fn from_any_number_of_partitions_to_any_other() {
    let (source, _dir, _cluster) = filled(3);
    let stream = exported(&source);
    let (keys, summary) = keys_of(&stream);
    assert_eq!((summary.partitions, summary.keys), (3, 504));
    assert!(summary.time_ms > T0_MS);
    assert_eq!(keys[&b"expiring"[..]], (b"1".to_vec(), 4_000_000_000_000));
    assert_eq!(keys[&b""[..]].0, b"\r\n\0\r");
    assert!(!keys.contains_key(&b"gone"[..]));
    for partitions in [1, 2, 4] {
        let (target, _dir, _cluster) = start(partitions);
        let mut told = 0;
        let progress = &mut |set| told = set;
        let result = import(
            &stream[..],
            target.address,
            ImportOptions::default(),
            progress,
        );
        assert_eq!(result.unwrap(), summary);
        assert_eq!(told, 504);
        let (again, by_target) = keys_of(&exported(&target));
        assert_eq!(again, keys, "{partitions} partitions");
        assert_eq!(by_target.partitions, partitions as u64);
        // It is no longer empty.
        let progress = &mut |_| {};
        let refused = import(
            &stream[..],
            target.address,
            ImportOptions::default(),
            progress,
        );
        assert!(
            matches!(refused, Err(ImportError::NotEmpty(504))),
            "{refused:?}"
        );
        let mut client = target.client();
        client.send("SET key7 other\r\nSET own 1\r\n");
        client.expect("+OK\r\n+OK\r\n");
        let options = ImportOptions {
            overwrite: true,
            ..ImportOptions::default()
        };
        import(&stream[..], target.address, options, progress).unwrap();
        let (again, _) = keys_of(&exported(&target));
        assert_eq!(again.len(), 505);
        assert_eq!(again[&b"key7"[..]], keys[&b"key7"[..]]);
    }
}

/// The stream that a replica sends on request.
fn fetched(address: SocketAddr) -> (Keys, u64) {
    let (about, mut from) = ask_for_export(address, &Access::default()).expect("it is begun");
    let mut stream = Vec::new();
    from.read_to_end(&mut stream).expect("it comes");
    (keys_of(&stream).0, about)
}

#[test]
fn over_the_clients_port() {
    let (source, _dir, _cluster) = filled(3);
    let (keys, about) = fetched(source.address);
    assert_eq!(keys, keys_of(&exported(&source)).0);
    assert!((504..=505).contains(&about), "{about}");
    // In order among the commands of a connection, and not in a transaction.
    let mut client = source.client();
    client.send("MULTI\r\nINBAND.EXPORT\r\nDISCARD\r\nSET last 1\r\nINBAND.EXPORT\r\nGET last\r\n");
    let refused = "-ERR INBAND.EXPORT is not allowed inside a transaction\r\n";
    client.expect(format!("+OK\r\n{refused}+OK\r\n+OK\r\n+OK\r\n"));
    let (keys, _) = keys_of(&client.rest_bytes());
    assert_eq!(keys.len(), 505);
    assert!(keys.contains_key(&b"last"[..]));
}

#[test]
fn an_export_has_what_another_replica_has_answered() {
    for partitions in [1, 3] {
        let cluster = MemoryCluster::with_partitions(partitions);
        let dirs = [scratch(), scratch()];
        let [one, two] = Served::start_all(&cluster, &dirs);
        let mut client = one.client();
        for i in 0..50 {
            client.send(resp(&format!("SET key{i} {i}")));
            client.expect("+OK\r\n");
            let (keys, _) = fetched(two.address);
            assert_eq!(keys.len(), i + 1);
        }
    }
}

#[test]
fn too_many_exports_at_a_time_are_refused() {
    let (source, _dir, _cluster) = start(1);
    let mut client = source.client();
    // More than the socket buffers hold.
    for i in 0..24 {
        client.send(resp(&format!("SET key{i} {}", "v".repeat(1 << 20))));
        client.expect("+OK\r\n");
    }
    let mut begun: Vec<_> = (0..EXPORTS_MAX).map(|_| source.client()).collect();
    for client in &mut begun {
        client.send("INBAND.EXPORT\r\n");
        client.expect("+OK\r\n");
    }
    assert_eq!(
        client.ask("INBAND.EXPORT"),
        "-TRYAGAIN 4 exports are under way; wait for one to end"
    );
    assert_eq!(client.ask("PING"), "+PONG");
    let (keys, _) = keys_of(&begun.pop().expect("one").rest_bytes());
    assert_eq!(keys.len(), 24);
    // An export that is no longer read ends, too.
    drop(begun);
    assert_eq!(fetched(source.address).0.len(), 24);
}

#[test]
fn damage_is_found_out() {
    let (source, _dir, _cluster) = start(1);
    let mut client = source.client();
    for i in 0..20 {
        client.send(resp(&format!("SET key{i} value{i}")));
        client.expect("+OK\r\n");
    }
    let stream = exported(&source);
    let check = |stream: &[u8]| read(stream, &mut |_| Ok(()));
    for len in 0..stream.len() {
        let result = check(&stream[..len]);
        assert!(
            matches!(result, Err(ImportError::Damaged(_))),
            "cut at {len}: {result:?}"
        );
    }
    // The header's description of the source is not part of the data.
    for at in (0..8).chain(24..stream.len()) {
        let mut damaged = stream.clone();
        damaged[at] ^= 0x10;
        let result = check(&damaged);
        assert!(result.is_err(), "byte {at}: {result:?}");
    }
    let mut newer = stream.clone();
    newer[6] = b'4';
    assert!(matches!(check(&newer), Err(ImportError::Version)));
    let longer = [&stream[..], b"x"].concat();
    assert!(matches!(check(&longer), Err(ImportError::Damaged(_))));
    // Nothing of a damaged block is imported.
    let (target, _dir, _cluster) = start(1);
    let mut damaged = stream.clone();
    damaged[40] ^= 1;
    let progress = &mut |_| {};
    let result = import(
        &damaged[..],
        target.address,
        ImportOptions::default(),
        progress,
    );
    assert!(matches!(result, Err(ImportError::Damaged(_))));
    assert_eq!(target.client().ask("DBSIZE"), ":0");
}

#[test]
fn an_empty_store() {
    let (source, _dir, _cluster) = start(2);
    let stream = exported(&source);
    let (keys, summary) = keys_of(&stream);
    assert_eq!((keys.len(), summary.keys), (0, 0));
}

#[test]
fn what_is_in_the_way_of_an_import_is_named() {
    let (source, _dir, _cluster) = start(1);
    assert_eq!(source.client().ask("SET a 1"), "+OK");
    let stream = exported(&source);
    let import_into = |address| {
        let progress = &mut |_| {};
        import(&stream[..], address, ImportOptions::default(), progress).unwrap_err()
    };
    // Another program listens there and sends a greeting.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let greeter = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"220 mail.example ESMTP\r\n").unwrap();
        stream
    });
    let error = import_into(address);
    assert!(matches!(error, ImportError::Protocol(_)), "{error}");
    drop(greeter.join().unwrap());
    // A replica that does not allow the commands, and an address where nothing listens.
    let redis_like = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = redis_like.local_addr().unwrap();
    let refuser = std::thread::spawn(move || {
        let (mut stream, _) = redis_like.accept().unwrap();
        for reply in [":0\r\n", "-NOPERM not you\r\n"] {
            std::io::Read::read(&mut stream, &mut [0; 4096]).unwrap();
            std::io::Write::write_all(&mut stream, reply.as_bytes()).unwrap();
        }
    });
    let error = import_into(address);
    assert!(
        matches!(&error, ImportError::Refused { reply, .. } if reply == "-NOPERM not you"),
        "{error}"
    );
    refuser.join().unwrap();
    assert!(matches!(import_into(address), ImportError::Io(_)));
}

#[test]
fn an_export_under_load_holds_no_half_command() {
    let (served, _dir, _cluster) = start(3);
    let group = key_of_each("g", 3);
    let is_done = Arc::new(AtomicBool::new(false));
    let (done, keys, mut client) = (is_done.clone(), group.clone(), served.client());
    let writer = std::thread::spawn(move || {
        for i in 0.. {
            if done.load(Ordering::Acquire) {
                return;
            }
            let pairs: Vec<_> = keys.iter().map(|key| format!("{key} {i}")).collect();
            client.send(resp(&format!("MSET {}", pairs.join(" "))));
            client.expect("+OK\r\n");
        }
    });
    let mut seen = BTreeSet::new();
    common::wait_for("the writer has begun", || {
        !keys_of(&exported(&served)).0.is_empty()
    });
    common::wait_for("exports at many moments", || {
        let (keys, _) = keys_of(&exported(&served));
        let values: Vec<_> = group.iter().map(|key| &keys[key.as_bytes()].0).collect();
        assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
        seen.insert(values[0].clone());
        seen.len() >= 30
    });
    is_done.store(true, Ordering::Release);
    writer.join().unwrap();
}

#[test]
fn a_store_in_the_middle_of_a_recovery_is_not_exported() {
    let dir = scratch();
    let open = || {
        Machine::open(MachineConfig {
            dirs: vec![dir.path().to_path_buf()],
            partitions: 2,
            sync: false,
        })
        .unwrap()
    };
    let origin = |client_seq, kind| Origin {
        client_id: 1,
        client_seq,
        client_low: client_seq,
        kind,
    };
    let group = key_of_each("g", 2);
    let line = format!("MSET {} 1 {} 1", group[0], group[1]);
    let mut writer = ValueWriter::new();
    writer.push(&encode(&words(&line), None).unwrap());
    let several = writer.finish(T0_MS).to_vec();
    let marker = marker(1).to_vec();
    let deliver = |machine: &mut Machine, log: usize| {
        let value = if log == 2 { &several } else { &marker };
        let applied = machine.store(log).applied();
        let open = origin(0, ValueKind::OpenSession);
        if applied == 0 {
            machine.bursts()[log].push(1, open, None, &[]);
        }
        if applied < 2 {
            let command = origin(1, ValueKind::Command);
            machine.bursts()[log].push(2, command, None, value);
        }
        machine.run(&mut Outcomes::default())
    };
    let mut machine = open();
    deliver(&mut machine, 2).unwrap();
    deliver(&mut machine, 0).unwrap();
    // The burst before the marker and the first partition succeed; everything after fails.
    machine.faults().fail_after(2);
    let result = deliver(&mut machine, 1);
    assert!(matches!(result, Err(StoreError::Fault)), "{result:?}");
    drop(machine);
    let mut machine = open();
    let result = machine.shared().export(Vec::new());
    assert!(
        matches!(result, Err(ExportError::HalfApplied { entry: 1 })),
        "{result:?}"
    );
    deliver(&mut machine, 1).unwrap();
    let mut stream = Vec::new();
    machine.shared().export(&mut stream).unwrap();
    let (keys, _) = keys_of(&stream);
    assert_eq!(keys.len(), 2);
}

/// A client that has not read its replies requests an export: nothing else waits for it to read.
#[test]
fn an_export_to_a_client_that_does_not_read_stops_nobody() {
    let (served, _dir, _cluster) = start(3);
    let keys_of_store = key_of_each("k", 3);
    let keys = &keys_of_store;
    let mut other = served.client();
    other.send(resp(&format!("SET {} {}", keys[0], "x".repeat(60_000))));
    other.expect("+OK\r\n");
    let mut deaf = served.client();
    deaf.send("CLIENT SETNAME deaf\r\n");
    deaf.expect("+OK\r\n");
    // Until replies are queued that the network does not accept.
    let unsent = |other: &mut common::Client| {
        other.send("CLIENT LIST\r\n");
        let len: usize = other.line()[1..].parse().unwrap();
        let mut list = vec![0; len + 2];
        other.stream.read_exact(&mut list).unwrap();
        let list = String::from_utf8(list).unwrap();
        let line = list.lines().find(|line| line.contains("name=deaf"));
        line.unwrap()
            .split_once(" obl=")
            .unwrap()
            .1
            .split(' ')
            .next()
            != Some("0")
    };
    while !unsent(&mut other) {
        deaf.send(resp(&format!("GET {}", keys[0])));
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    deaf.send("INBAND.EXPORT\r\n");
    let (begun, mut longest) = (Instant::now(), Duration::ZERO);
    while begun.elapsed() < Duration::from_millis(600) {
        let asked = Instant::now();
        assert_eq!(other.ask(&format!("SET {} 1", keys[1])), "+OK");
        longest = longest.max(asked.elapsed());
    }
    // Less than the 60 s after which a client that reads nothing is disconnected.
    assert!(longest < Duration::from_secs(20), "{longest:?}");
    // Once it reads, it gets everything.
    let all = deaf.rest_bytes();
    let begin = b"+OK\r\nIBEXPT1\n";
    let at = all.windows(begin.len()).position(|bytes| bytes == begin);
    let (keys, _) = keys_of(&all[at.expect("the export has begun") + 5..]);
    assert!(keys.contains_key(keys_of_store[0].as_bytes()));
}
