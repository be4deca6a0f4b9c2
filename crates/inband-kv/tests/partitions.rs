//! Several partitions: where their data is, and how connections use them.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::{self, key_of_each, resp, wait_for, Served, T0_MS};
use inband_kv::limit_hits::LimitHit;
use inband_kv::limits::PARTITION_STUCK_MS;
use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::replica::ReplicaConfig;
use inband_kv::store::StoreError;
use inband_kv::testing::MemoryCluster;

fn open(dirs: &[&PathBuf], partitions: usize) -> Result<Machine, StoreError> {
    Machine::open(MachineConfig {
        dirs: dirs.iter().map(|dir| dir.to_path_buf()).collect(),
        partitions,
        sync: false,
    })
}

#[test]
fn stores_lie_where_they_should() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let machine = open(&[&one, &two], 4).unwrap();
    let paths: Vec<_> = (0..5)
        .map(|log| machine.store(log).path().to_path_buf())
        .collect();
    let expected = [
        "one/p0/db-0",
        "two/p1/db-0",
        "one/p2/db-0",
        "two/p3/db-0",
        "one/m/db-0",
    ];
    assert_eq!(paths, expected.map(|path| dir.path().join(path)));
    drop(machine);
    assert_eq!(Machine::partitions_in(&one).unwrap(), Some(4));
    assert_eq!(Machine::partitions_in(dir.path()).unwrap(), None);
    for asked in [1, 2, 8] {
        let error = open(&[&one, &two], asked).err().expect("it is refused");
        assert!(
            matches!(error, StoreError::Partitions { found: 4, asked: a, .. } if a == asked),
            "{error}"
        );
        assert!(error.to_string().contains("export"), "{error}");
    }
    // The refused attempts created nothing.
    assert!(!one.join("db-0").exists() && !one.join("p4").exists());
    // Directories in a different order, or one of them missing.
    let error = open(&[&one], 4).err().expect("it is refused");
    assert!(matches!(error, StoreError::Missing { .. }), "{error}");
    let error = open(&[&two, &one], 4).err().expect("it is refused");
    assert!(matches!(error, StoreError::NotActive { .. }), "{error}");
    std::fs::rename(one.join("p2"), one.join("p")).unwrap();
    std::fs::rename(one.join("p0"), one.join("p2")).unwrap();
    std::fs::rename(one.join("p"), one.join("p0")).unwrap();
    let error = open(&[&one, &two], 4).err().expect("it is refused");
    assert!(matches!(error, StoreError::WrongPlace { .. }), "{error}");
    assert!(matches!(open(&[], 1), Err(StoreError::NoDirectory)));
    assert!(matches!(
        open(&[&one], 0),
        Err(StoreError::PartitionCount(0))
    ));
}

#[test]
fn one_partition_of_data_is_not_four() {
    let dir = tempfile::tempdir().unwrap();
    let one = dir.path().to_path_buf();
    drop(open(&[&one], 1).unwrap());
    let error = open(&[&one], 4).err().expect("it is refused");
    assert!(
        matches!(
            error,
            StoreError::Partitions {
                found: 1,
                asked: 4,
                ..
            }
        ),
        "{error}"
    );
    drop(open(&[&one], 1).unwrap());
}

#[test]
fn data_without_their_first_directory_are_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let mut machine = open(&[&one, &two], 2).unwrap();
    let mut log = common::Log::default();
    log.push_lines(T0_MS, &["SET a 1"]);
    for (at, value) in log.values.iter().enumerate() {
        let instance = at as u64 + 1;
        machine.bursts()[1].push(instance, value.origin, None, &value.bytes);
    }
    machine.run(&mut Default::default()).unwrap();
    drop(machine);
    // The first directory's disk is not mounted: there is an empty mount point in its place.
    std::fs::rename(&one, dir.path().join("away")).unwrap();
    let error = open(&[&one, &two], 2).err().expect("it is refused");
    assert!(matches!(error, StoreError::NotActive { .. }), "{error}");
    std::fs::remove_dir_all(&one).unwrap();
    std::fs::rename(dir.path().join("away"), &one).unwrap();
    assert_eq!(open(&[&one, &two], 2).unwrap().applied(), [0, 2, 0]);
}

struct Three {
    served: Served,
    cluster: MemoryCluster,
    keys: Vec<String>,
    _dir: tempfile::TempDir,
}

fn three() -> Three {
    let (cluster, dir) = (
        MemoryCluster::with_partitions(3),
        tempfile::tempdir().unwrap(),
    );
    Three {
        served: Served::start(&cluster, dir.path(), ReplicaConfig::default()),
        cluster,
        keys: key_of_each("k", 3),
        _dir: dir,
    }
}

#[test]
fn replies_keep_their_order_over_partitions() {
    let three = three();
    let mut client = three.served.client();
    let (mut sent, mut expected) = (String::new(), String::new());
    for i in 0..3000 {
        let key = &three.keys[i % 3];
        sent += &resp(&format!("SET {key} {i}"));
        expected += "+OK\r\n";
        if i % 7 == 0 {
            sent += &resp(&format!("GET {key}"));
            expected += &format!("${}\r\n{i}\r\n", i.to_string().len());
        }
        if i % 50 == 0 {
            sent += "PING\r\nFOO\r\n";
            expected += "+PONG\r\n-ERR unknown command 'FOO', with args beginning with: \r\n";
        }
    }
    let mut writer = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        std::io::Write::write_all(&mut writer, sent.as_bytes()).unwrap();
    });
    client.expect(expected);
    sender.join().unwrap();
}

#[test]
fn a_partition_that_waits_does_not_stop_the_others() {
    let three = three();
    let mut client = three.served.client();
    let [a, b, c] = [&three.keys[0], &three.keys[1], &three.keys[2]];
    three.cluster.hold_log(1);
    let line = |command: &str, key: &str| resp(&format!("{command} {key}"));
    client.send(
        [
            line("INCR", b),
            line("INCR", a),
            line("INCR", c),
            line("INCR", a),
        ]
        .concat(),
    );
    wait_for("it is held", || three.cluster.held() == 1);
    // The others are decided although their replies wait.
    let mut other = three.served.client();
    wait_for("both are applied", || {
        other.ask(&format!("GET {a}"));
        other.line() == "2"
    });
    client.send([line("INCR", b), line("INCR", c), "PING\r\n".into()].concat());
    wait_for("all is read", || {
        three.served.control.status().values_in_flight == 1
    });
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(three.cluster.held(), 1, "one undecided value a partition");
    three.cluster.release_log_reversed(1);
    client.expect(":1\r\n:1\r\n:1\r\n:2\r\n:2\r\n:2\r\n+PONG\r\n");
}

#[test]
fn time_goes_on_in_each_partition_by_itself() {
    let three = three();
    let mut client = three.served.client();
    for key in &three.keys {
        assert_eq!(client.ask(&format!("SET {key} 1 PX 60000")), "+OK");
    }
    let before: Vec<u64> = (0..3).map(|p| three.cluster.last_instance_of(p)).collect();
    three
        .served
        .clock_offset_ms
        .store(61_000, std::sync::atomic::Ordering::Relaxed);
    // A command in one partition advances only that partition's time.
    assert_eq!(client.ask(&format!("EXISTS {}", three.keys[2])), ":0");
    wait_for("all keys are deleted", || {
        three.served.control.status().keys == 0
    });
    for (partition, before) in before.into_iter().enumerate() {
        let now = three.cluster.last_instance_of(partition);
        assert_eq!(now, before + 1, "one value in partition {partition}");
    }
}

#[test]
fn a_scan_goes_through_all_partitions() {
    let three = three();
    let mut client = three.served.client();
    let names: Vec<String> = (0..200).map(|i| format!("key{i}")).collect();
    client.send(
        names
            .iter()
            .map(|name| resp(&format!("SET {name} v")))
            .collect::<String>(),
    );
    client.expect("+OK\r\n".repeat(names.len()));
    let (mut found, mut cursor) = (Vec::new(), String::from("0"));
    loop {
        client.send(resp(&format!("SCAN {cursor} COUNT 7")));
        assert_eq!(client.line(), "*2");
        client.line();
        cursor = client.line();
        let number: u64 = cursor.parse().unwrap();
        assert!(number < 1 << 53, "{number} does not fit a double");
        let count: usize = client.line()[1..].parse().unwrap();
        for _ in 0..count {
            client.line();
            found.push(client.line());
        }
        if cursor == "0" {
            break;
        }
    }
    found.sort();
    let mut names = names;
    names.sort();
    assert_eq!(found, names);
    // A cursor beyond all partitions finds nothing.
    client.send(resp(&format!("SCAN {}", u64::MAX)));
    client.expect("*2\r\n$1\r\n0\r\n*0\r\n");
}

#[test]
fn a_synced_replica_reports_what_it_has_applied() {
    let (cluster, dir) = (MemoryCluster::with_partitions(2), common::scratch());
    let machine = MachineConfig {
        dirs: vec![dir.path().to_path_buf()],
        partitions: 2,
        sync: true,
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let served = Served::start_with(&cluster, machine, ReplicaConfig::default(), listener);
    let (mut client, keys) = (served.client(), key_of_each("k", 2));
    for i in 0..20 {
        client.send(resp(&format!("SET {} {i}", keys[0])));
        client.send(resp(&format!("MSET {} {i} {} {i}", keys[0], keys[1])));
        client.expect("+OK\r\n+OK\r\n");
    }
    wait_for("all is synced and reported", || {
        (0..3).all(|log| cluster.applied(0, log) == cluster.last_instance_of(log))
    });
    assert!(cluster.applied(0, 2) > 20);
    served.stop();
}

/// A partition without a leader: commands for it wait, cross-partition commands are refused, and those for the other
/// partitions proceed.
#[test]
fn a_stuck_partition_stops_only_what_needs_it() {
    let three = three();
    three.cluster.hold_log(1);
    let mut clients: Vec<_> = (0..4).map(|_| three.served.client()).collect();
    clients[0].send(resp(&format!("SET {} 1", three.keys[1])));
    wait_for("it is held", || three.cluster.held() > 0);
    std::thread::sleep(Duration::from_millis(PARTITION_STUCK_MS + 200));
    for line in [
        "DBSIZE".to_owned(),
        "KEYS *".to_owned(),
        format!("MGET {} {}", three.keys[0], three.keys[2]),
    ] {
        let reply = clients[1].ask(&line);
        assert!(
            reply.starts_with("-TRYAGAIN not applied: partition 1 has decided nothing for"),
            "{reply}"
        );
    }
    clients[1].send(resp("INBAND.EXPORT"));
    assert!(clients[1]
        .line()
        .starts_with("-TRYAGAIN not applied: partition 1"));
    for partition in [0, 2] {
        assert_eq!(
            clients[2].ask(&format!("SET {} 1", three.keys[partition])),
            "+OK"
        );
    }
    let hits = three.served.control.status().hits(LimitHit::Several);
    assert_eq!(hits, 3);
    three.cluster.release_log_reversed(1);
    assert_eq!(clients[0].line(), "+OK");
    assert_eq!(clients[3].ask("DBSIZE"), ":3");
}

/// The same with a cross-partition command before it: commands after it are refused, and it ends.
#[test]
fn a_command_that_waits_for_a_stuck_partition_holds_up_no_others() {
    let three = three();
    three.cluster.hold_log(1);
    let mut clients: Vec<_> = (0..3).map(|_| three.served.client()).collect();
    clients[0].send(resp("DBSIZE"));
    wait_for("it is held", || three.cluster.held() > 0);
    std::thread::sleep(Duration::from_millis(PARTITION_STUCK_MS + 200));
    let reply = clients[1].ask(&format!("MGET {} {}", three.keys[0], three.keys[2]));
    assert!(
        reply.starts_with("-TRYAGAIN not applied: partition 1 has decided nothing for"),
        "{reply}"
    );
    three.cluster.release_log_reversed(1);
    assert_eq!(clients[0].line(), ":0");
    assert_eq!(clients[2].ask("DBSIZE"), ":0");
}

/// A replica that one partition's log does not reach keeps a bounded part of the other logs, and catches up in the end.
#[test]
fn what_is_delivered_while_a_partition_waits_is_bounded() {
    const BOUND: usize = 256 * 1024;
    /// What one poll may add before the log is paused.
    const BURST: usize = 256 * 1500;
    let cluster = MemoryCluster::with_partitions(2);
    let dirs = [common::scratch(), common::scratch()];
    let ahead = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    let config = ReplicaConfig {
        delivered_bytes_max: BOUND,
        ..ReplicaConfig::default()
    };
    let behind = Served::start(&cluster, dirs[1].path(), config);
    let keys = key_of_each("k", 2);
    cluster.pace();
    for (replica, log) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)] {
        cluster.allow(replica, log, usize::MAX / 2);
    }
    let mut client = ahead.client();
    let value = "x".repeat(1000);
    let over_both = resp(&format!("MSET {} 1 {} {value}", keys[0], keys[1]));
    let over_one = resp(&format!("SET {} {value}", keys[0]));
    let mut most = 0;
    for _ in 0..30 {
        client.send(over_both.repeat(50) + &over_one.repeat(50));
        client.expect("+OK\r\n".repeat(100));
        most = most.max(behind.control.status().delivered_bytes as usize);
    }
    assert!(most > BOUND, "{most}");
    assert!(most < 2 * (BOUND + BURST), "{most}");
    cluster.unpace();
    wait_for("it has caught up", || {
        behind.control.digest().unwrap() == ahead.control.digest().unwrap()
    });
    wait_for("nothing waits", || {
        behind.control.status().delivered_bytes == 0
    });
}

/// The log of cross-partition commands is paused on one replica while another replica, which has more of it, decides a
/// marker beyond that point.
#[test]
fn a_marker_beyond_the_place_of_a_pause_stops_nobody() {
    const BOUND: usize = 256 * 1024;
    const VALUE_LEN_BYTES: usize = 200_000;
    let cluster = MemoryCluster::with_partitions(2);
    let dirs = [common::scratch(), common::scratch()];
    let ahead = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    let config = ReplicaConfig {
        delivered_bytes_max: BOUND,
        // It submits no markers of its own, which would cover less.
        replica_index: 1_000,
        ..ReplicaConfig::default()
    };
    let behind = Served::start(&cluster, dirs[1].path(), config);
    let keys = key_of_each("k", 2);
    let value = "x".repeat(VALUE_LEN_BYTES);
    let over_both = resp(&format!("MSET {} 1 {} {value}", keys[0], keys[1]));
    let mut clients: Vec<_> = (0..3).map(|_| ahead.client()).collect();
    let delivered_bytes = |of: &Served| of.control.status().delivered_bytes as usize;
    (0..2).for_each(|partition| cluster.hold_log(partition));
    for (before, client) in clients.iter_mut().enumerate() {
        client.send(over_both.clone());
        wait_for("one replica has the command", || {
            delivered_bytes(&ahead) > (before + 1) * VALUE_LEN_BYTES
        });
        // One more than the other replica accepts.
        wait_for("the other one has it, or has paused", || {
            delivered_bytes(&behind) > BOUND.min((before + 1) * VALUE_LEN_BYTES)
        });
    }
    wait_for("each has its markers", || {
        cluster.held() >= 2 * clients.len()
    });
    assert!(delivered_bytes(&behind) < 3 * VALUE_LEN_BYTES);
    // The highest marker comes first.
    (0..2).for_each(|partition| cluster.release_log_reversed(partition));
    for client in &mut clients {
        client.expect("+OK\r\n");
    }
    wait_for("it has caught up", || {
        behind.control.digest().unwrap() == ahead.control.digest().unwrap()
    });
    // Published counters may be older than the digest.
    wait_for("nothing waits", || delivered_bytes(&behind) == 0);
}
