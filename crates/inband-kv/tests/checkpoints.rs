//! State transfer between replicas, with intact and damaged streams.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{self, open, wait_for, Bench, Served};
use inband_kv::checkpoint::TransferError;
use inband_kv::checkpoint_client::Fetch;
use inband_kv::checkpoint_server::CheckpointServer;
use inband_kv::replica::ReplicaConfig;
use inband_kv::store::{Position, StoreError};
use inband_kv::testing::MemoryCluster;
use inband_transport::certificates::{Authority, CertificateFiles};
use inband_transport::tls::Transport;

/// A store with every kind of record.
fn filled() -> Bench {
    let mut bench = Bench::default();
    for i in 0..500 {
        bench
            .log
            .push_lines(bench.now_ms, &[&format!("SET k{i} {}", "v".repeat(i))]);
    }
    bench.log.apply(&mut bench.machine, 50);
    bench.run("SET t 1 PX 1000");
    bench.run("INBAND.SESSION NEW");
    bench
}

fn serve(bench: &Bench) -> CheckpointServer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (dbs, outgoing) = (bench.machine.shared(), bench.machine.outgoing());
    CheckpointServer::start(
        listener,
        dbs,
        outgoing,
        Default::default(),
        Default::default(),
        Transport::plain(),
        None,
    )
    .unwrap()
}

fn fetch(peers: &[SocketAddr], applied: u64, into: &[PathBuf]) -> Result<(), TransferError> {
    let (received_bytes, total_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let fetch = Fetch {
        peers,
        positions: &[Position { applied, entry: 0 }],
        into,
        received_bytes: &received_bytes,
        total_bytes: &total_bytes,
        transport: &Transport::plain(),
        stop: &AtomicBool::new(false),
    };
    let outcome = fetch.run();
    if outcome.is_ok() {
        let received_bytes = received_bytes.load(Ordering::Relaxed);
        assert!(received_bytes > 0);
        assert_eq!(received_bytes, total_bytes.load(Ordering::Relaxed));
    }
    outcome
}

#[test]
fn a_checkpoint_moves_over_loopback() {
    let mut bench = filled();
    let server = serve(&bench);
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    bench.log.prefix(20).apply(&mut store, 5);
    // The first peer does not exist.
    let peers = [SocketAddr::from(([127, 0, 0, 1], 1)), server.address()];
    fetch(&peers, store.store(0).applied(), &store.incoming()).unwrap();
    let applied = bench.store().applied();
    assert_eq!(store.install().unwrap(), [(0, applied)]);
    assert_eq!(store.digest().unwrap(), bench.machine.digest().unwrap());
    assert!(!store.incoming()[0].exists());
    // It continues from there, and the state survives a restart.
    bench.run("SET after 1");
    bench.log.apply(&mut store, 1);
    assert_eq!(store.digest().unwrap(), bench.machine.digest().unwrap());
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.digest().unwrap(), bench.machine.digest().unwrap());
    assert_eq!(store.store(0).keys(), 502);
    // A peer that is not ahead refuses.
    let refused = fetch(
        &[server.address()],
        store.store(0).applied(),
        &store.incoming(),
    );
    assert!(
        matches!(refused, Err(TransferError::Refused(_))),
        "{refused:?}"
    );
    assert!(matches!(
        fetch(&[], 0, &store.incoming()),
        Err(TransferError::NoPeers)
    ));
    wait_for("nothing is left behind", || {
        std::fs::read_dir(&bench.machine.outgoing()[0])
            .unwrap()
            .next()
            .is_none()
    });
}

/// Asks for a checkpoint, in one write: a server that refuses it closes the connection at the first byte, and a second write
/// would fail.
fn ask_for_checkpoint(server: SocketAddr) -> TcpStream {
    let mut request = b"IBCKPT2\n".to_vec();
    for number in [1u64, 0, 0] {
        request.extend(number.to_be_bytes());
    }
    let mut stream = TcpStream::connect(server).unwrap();
    stream.write_all(&request).unwrap();
    stream
}

/// Records what a server sends.
fn record(server: &CheckpointServer) -> Vec<u8> {
    let mut stream = ask_for_checkpoint(server.address());
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Serves recorded bytes once.
fn replay(bytes: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 32]).unwrap();
        // The client may have closed the connection before the end.
        let _ = stream.write_all(&bytes);
    });
    address
}

#[test]
fn a_damaged_stream_is_found_out() {
    let bench = filled();
    let bytes = record(&serve(&bench));
    let dir = tempfile::tempdir().unwrap();
    let into = open(dir.path()).incoming();
    assert!(fetch(&[replay(bytes.clone())], 0, &into).is_ok());
    let mut damages: Vec<Vec<u8>> = Vec::new();
    for cut in [0, 5, 20, bytes.len() / 2, bytes.len() - 1] {
        damages.push(bytes[..cut].to_vec());
    }
    // The transfer itself detects a flipped bit anywhere except in the announced instance.
    let places = (0..9)
        .chain(33..76)
        .chain((76..bytes.len()).step_by(bytes.len() / 30));
    for at in places {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        damages.push(damaged);
    }
    for damaged in damages {
        let outcome = fetch(&[replay(damaged.clone())], 0, &into);
        let at = damaged.iter().zip(&bytes).position(|(a, b)| a != b);
        assert!(
            outcome.is_err(),
            "damage at {at:?} of {} bytes",
            damaged.len()
        );
    }
    // After all that, an intact one is fetched and installed.
    let mut store = open(dir.path());
    assert_eq!(store.store(0).applied(), 0);
    fetch(&[replay(bytes)], 0, &store.incoming()).unwrap();
    store.install().unwrap();
    assert_eq!(store.digest().unwrap(), bench.machine.digest().unwrap());
}

#[test]
fn a_crash_while_installing_leaves_one_of_the_two() {
    let bench = filled();
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    bench.log.prefix(20).apply(&mut store, 5);
    let (old, new) = (store.digest().unwrap(), bench.machine.digest().unwrap());
    // Crash while receiving: an incomplete directory.
    std::fs::create_dir_all(&store.incoming()[0]).unwrap();
    std::fs::write(store.incoming()[0].join("CURRENT"), b"half").unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.digest().unwrap(), old);
    assert!(!store.incoming()[0].exists());
    // Crash after the rename, before activation.
    let shared = bench.machine.shared();
    shared.checkpoint(&[dir.path().join("db-1")]).unwrap();
    drop(store);
    let mut store = open(dir.path());
    assert_eq!(store.digest().unwrap(), old);
    assert!(!dir.path().join("db-1").exists());
    // Crash after activation, before the old one is removed.
    let incoming = store.incoming();
    shared.checkpoint(&incoming).unwrap();
    store.install().unwrap();
    std::fs::create_dir_all(dir.path().join("db-0")).unwrap();
    drop(store);
    let mut store = open(dir.path());
    assert_eq!(store.digest().unwrap(), new);
    assert!(!dir.path().join("db-0").exists());
    // An older checkpoint is not installed.
    shared.checkpoint(&incoming).unwrap();
    let refused = store.install();
    assert!(
        matches!(refused, Err(StoreError::CheckpointTooOld { .. })),
        "{refused:?}"
    );
    assert_eq!(store.digest().unwrap(), new);
}

#[test]
fn a_replica_that_is_too_far_behind_catches_up() {
    let cluster = MemoryCluster::new();
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let one = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    let mut client = one.client();
    for i in 0..300 {
        assert_eq!(client.ask(&format!("SET k{i} v")), "+OK");
    }
    cluster.keep_entries(10);
    assert_eq!(client.ask("INCR n"), ":1");
    // No peer serves yet: the late one reports that it is loading.
    let two = Served::start(&cluster, dirs[1].path(), ReplicaConfig::default());
    wait_for("it is loading", || two.control.status().is_loading);
    let mut early = two.client();
    cluster.set_checkpoint_peers(vec![one.checkpoint_address]);
    wait_for("it is installed", || {
        two.control.status().checkpoints_installed_total == 1
    });
    assert_eq!(early.ask("GET n"), "$1");
    assert_eq!(early.line(), "1");
    assert_eq!(early.ask("DBSIZE"), ":301");
    wait_for("both are equal", || {
        one.control.digest().unwrap() == two.control.digest().unwrap()
    });
    assert_eq!(one.control.status().checkpoints_served_total, 1);
    wait_for("the log knows who sends", || {
        cluster.checkpoint_senders() == 1
    });
    assert!(two.control.status().loading_bytes > 0);
}

#[test]
fn clients_are_told_while_loading() {
    let cluster = MemoryCluster::new();
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let one = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
    let mut client = one.client();
    assert_eq!(client.ask("SET a 1"), "+OK");
    let mut waiting = one.client();
    assert_eq!(waiting.ask("PING"), "+PONG");
    cluster.hold();
    waiting.send("INCR a\r\nINCR a\r\nPING\r\n");
    wait_for("it is held", || cluster.held() == 1);
    // The values that it needs next are trimmed before it sees them.
    cluster.keep_entries(1);
    cluster.decide_noops(50);
    wait_for("it is loading", || one.control.status().is_loading);
    for line in ["GET a", "SET a 2", "INCR a", "SCAN 0", "KEYS *", "DBSIZE"] {
        let reply = client.ask(line);
        assert!(
            reply.starts_with("-LOADING Inband is loading a checkpoint"),
            "{line}: {reply}"
        );
    }
    client.send("GET a\r\n".repeat(2000));
    for _ in 0..2000 {
        assert!(client.line().starts_with("-LOADING"));
    }
    assert!(client.ask("PING").starts_with("-LOADING"));
    client.send("INFO persistence\r\n");
    client.expect("$43\r\n# Persistence\r\nloading:1\r\nasync_loading:0\r\n\r\n");
    // A client that connects now is told as well.
    let mut late = one.client();
    assert!(late.ask("GET a").starts_with("-LOADING"));
    assert!(late.ask("PING").starts_with("-LOADING"));
    // An up-to-date peer appears.
    let mut peer = open(dirs[1].path());
    one.control.sync().unwrap();
    // Its history does not contain our proposer's session, so the proposer must open another one.
    let mut log = common::Log::after_holes(5);
    for i in 0..200 {
        log.push_lines(common::T0_MS, &[&format!("SET k{i} v")]);
    }
    log.apply(&mut peer, 100);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (dbs, outgoing) = (peer.shared(), peer.outgoing());
    let server = CheckpointServer::start(
        listener,
        dbs,
        outgoing,
        Default::default(),
        Default::default(),
        Transport::plain(),
        None,
    )
    .unwrap();
    cluster.decide_noops(154);
    cluster.set_checkpoint_peers(vec![server.address()]);
    wait_for("it is installed", || {
        one.control.status().checkpoints_installed_total == 1
    });
    cluster.keep_entries(1000);
    cluster.release_reversed();
    wait_for("it goes on from there", || {
        one.control.status().applied_instance > 206
    });
    for _ in 0..2 {
        assert!(waiting
            .line()
            .starts_with("-UNKNOWN outcome unknown: this replica loaded"));
    }
    assert_eq!(waiting.line(), "+PONG");
    assert_eq!(client.ask("STRLEN k0"), ":1");
    assert_eq!(late.ask("STRLEN k0"), ":1");
}

#[test]
fn a_replica_serves_again_if_what_was_missing_is_found_after_a_failed_transfer() {
    let cluster = MemoryCluster::new();
    let dir = tempfile::tempdir().unwrap();
    let one = Served::start(&cluster, dir.path(), ReplicaConfig::default());
    let mut client = one.client();
    assert_eq!(client.ask("SET a 1"), "+OK");
    // No replica has a checkpoint.
    cluster.set_missing(true);
    wait_for("it is loading", || one.control.status().is_loading);
    assert!(client.ask("GET a").starts_with("-LOADING"));
    cluster.set_missing(false);
    wait_for("it serves", || !one.control.status().is_loading);
    assert_eq!(client.ask("INCR a"), ":2");
}

/// The transport of a replica of the cluster whose CA is in this directory.
fn certified(authority: &std::path::Path, node: u8) -> Transport {
    let authority_of = Authority::open_or_make(authority, "test").unwrap();
    let file = |name: &str| authority.join(format!("{node}-{name}"));
    let files = CertificateFiles {
        ca: file("ca.pem"),
        certificate: file("certificate.pem"),
        key: file("key.pem"),
    };
    authority_of.issue(node, &[], &files).unwrap();
    Transport::mutual(&files).unwrap()
}

#[test]
fn checkpoints_go_to_replicas_with_a_certificate_only() {
    let (cluster, authority) = (MemoryCluster::new(), tempfile::tempdir().unwrap());
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let config = |node| ReplicaConfig {
        transport: certified(authority.path(), node),
        ..ReplicaConfig::default()
    };
    let one_config = config(1);
    let counters = one_config.transport.counters();
    let one = Served::start(&cluster, dirs[0].path(), one_config);
    let mut client = one.client();
    for i in 0..300 {
        assert_eq!(client.ask(&format!("SET k{i} {}", "v".repeat(1000))), "+OK");
    }
    one.control.sync().unwrap();
    // A host that speaks the protocol but has no certificate gets nothing but an alert.
    let mut stream = ask_for_checkpoint(one.checkpoint_address);
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got);
    assert!(got.len() < 16, "{got:?}");
    // One with a certificate from another CA.
    let elsewhere = tempfile::tempdir().unwrap();
    let foreign = certified(elsewhere.path(), 2);
    let incoming = [dirs[1].path().join("incoming")];
    let (received_bytes, total_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let fetch = Fetch {
        peers: &[one.checkpoint_address],
        positions: &[Position {
            applied: 0,
            entry: 0,
        }],
        into: &incoming,
        received_bytes: &received_bytes,
        total_bytes: &total_bytes,
        transport: &foreign,
        stop: &AtomicBool::new(false),
    };
    assert!(matches!(fetch.run(), Err(TransferError::Io(_))));
    assert_eq!(one.control.status().checkpoints_served_total, 0);
    wait_for("both are counted", || {
        counters.all().iter().map(|(_, count)| count).sum::<u64>() == 2
    });
    // A replica of the cluster.
    cluster.keep_entries(10);
    cluster.set_checkpoint_peers(vec![one.checkpoint_address]);
    let two = Served::start(&cluster, dirs[1].path(), config(2));
    wait_for("it is installed", || {
        two.control.status().checkpoints_installed_total == 1
    });
    wait_for("both are equal", || {
        one.control.digest().unwrap() == two.control.digest().unwrap()
    });
}
