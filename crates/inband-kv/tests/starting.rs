//! Clients that connect before the store is open, and go on when it is.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use inband_kv::control::ReplicaControl;
use inband_kv::limit_hits::LimitHit;
use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::replica::{Replica, ReplicaConfig};
use inband_kv::starting::{Clients, Starting};
use inband_kv::testing::MemoryCluster;
use inband_resp::password::Password;
use inband_resp::timeouts::ClientTimeouts;

use crate::common::{open, scratch, wait_for, Client, Served};

const LOADING: &str = "-LOADING Inband is opening its store; try again or use another replica";

fn store(dir: &Path) -> MachineConfig {
    MachineConfig {
        dirs: vec![dir.to_path_buf()],
        partitions: 1,
        sync: false,
    }
}

fn start(config: &ReplicaConfig, dir: &Path) -> (Starting, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let clients = Clients::listen(config, vec![listener]).expect("sockets");
    let starting = Starting::start(config, &store(dir), clients).expect("a thread");
    (starting, address)
}

/// The replica that follows; it ends when the value is dropped.
struct Following(Arc<ReplicaControl>, Option<std::thread::JoinHandle<()>>);

impl Following {
    fn start(starting: Starting, config: ReplicaConfig, dir: &Path) -> Self {
        let store = store(dir);
        let (started, control) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let cluster = MemoryCluster::new();
            let machine = Machine::open(store).expect("a store");
            let log = Box::new(cluster.join(&machine.applied()).expect("a log"));
            let clients = starting.finish().expect("the clients");
            let mut replica = Replica::of(config, machine, log, clients, None).expect("a replica");
            started.send(replica.control()).expect("it is awaited");
            replica.run().expect("it runs");
        });
        Self(control.recv().expect("it started"), Some(thread))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.0.stop();
        if let Some(thread) = self.1.take() {
            thread.join().expect("it ended");
        }
    }
}

#[test]
fn clients_are_told_and_go_on_when_the_store_is_open() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = ReplicaConfig::default();
    let (starting, address) = start(&config, dir.path());
    let mut client = Client::connect(address);
    // As Redis answers them while it loads.
    for line in [
        "PING",
        "GET a",
        "SET a 1",
        "SCAN 0",
        "KEYS *",
        "EVAL return 0",
        "EVALSHA ffffffffffffffffffffffffffffffffffffffff 0",
        "BLPOP a 0",
        "WATCH a",
        "CLUSTER INFO",
        "INBAND.EXPORT",
    ] {
        assert_eq!(client.ask(line), LOADING, "{line}");
    }
    client.send("INFO persistence\r\n");
    client.expect("$43\r\n# Persistence\r\nloading:1\r\nasync_loading:0\r\n\r\n");
    assert_eq!(client.ask("CLIENT SETNAME me"), "+OK");
    assert_eq!(client.ask("SELECT 0"), "+OK");
    assert_eq!(client.ask("CLIENT UNBLOCK 1"), ":0");
    assert!(client.ask("NOSUCH").starts_with("-ERR unknown command"));
    assert!(client.ask("GET").starts_with("-ERR wrong number"));
    assert_eq!(client.ask("MULTI"), "+OK");
    assert_eq!(client.ask("SET a 1"), LOADING);
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    let mut leaver = Client::connect(address);
    leaver.send("QUIT\r\n");
    assert_eq!(leaver.rest(), "+OK\r\n");
    // Many at once, and half of a request.
    client.send("GET a\r\n".repeat(2000));
    for _ in 0..2000 {
        assert_eq!(client.line(), LOADING);
    }
    client.send("SET a");

    let following = Following::start(starting, config, dir.path());
    client.send(" 1\r\n");
    assert_eq!(client.line(), "+OK");
    client.send("CLIENT GETNAME\r\n");
    client.expect("$2\r\nme\r\n");
    assert_eq!(client.ask("PING"), "+PONG");
    client.send("INFO persistence\r\n");
    client.expect("$43\r\n# Persistence\r\nloading:0\r\nasync_loading:0\r\n\r\n");
    assert_eq!(Client::connect(address).ask("INCR a"), ":2");
    // Published after the reply is sent.
    wait_for("what was before is counted, too", || {
        let status = following.0.status();
        status.connections_total == 3 && status.requests_total > 2000
    });
}

#[test]
fn limits_and_passwords_hold_before_the_store_is_open() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("password");
    std::fs::write(&file, "secret\n").expect("written");
    let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, owner_only).expect("set");
    let config = ReplicaConfig {
        clients_max: 3,
        password: Some(Password::read(&file).expect("a password")),
        timeouts: ClientTimeouts {
            incomplete: Duration::from_secs(5),
            password: Duration::from_secs(5),
            ..ReplicaConfig::default().timeouts
        },
        ..ReplicaConfig::default()
    };
    let data = dir.path().join("data");
    let (starting, address) = start(&config, &data);
    let mut client = Client::connect(address);
    assert_eq!(client.ask("PING"), "-NOAUTH Authentication required.");
    assert!(client.ask("AUTH wrong").starts_with("-WRONGPASS"));
    assert_eq!(client.ask("AUTH secret"), "+OK");
    assert_eq!(client.ask("PING"), LOADING);
    // One says nothing, one stops in the middle of a request, one is too many.
    let mut silent = Client::connect(address);
    let mut half = Client::connect(address);
    assert_eq!(half.ask("AUTH secret"), "+OK");
    let mut surplus = Client::connect(address);
    assert_eq!(surplus.rest(), "-ERR max number of clients reached\r\n");
    half.send("*2\r\n$3\r\nGET");
    assert_eq!(silent.rest(), "");
    assert_eq!(half.rest(), "");

    let following = Following::start(starting, config, &data);
    assert_eq!(client.ask("SET a 1"), "+OK");
    let hits = |hit| following.0.status().hits(hit);
    for hit in [
        LimitHit::Password,
        LimitHit::Unauthenticated,
        LimitHit::Incomplete,
        LimitHit::Clients,
    ] {
        assert_eq!(hits(hit), 1, "{hit:?}");
    }
    wait_for("only one is left", || {
        following.0.status().connected_clients == 1
    });
}

const BEHIND: &str = "-LOADING Inband is catching up with the log";

#[test]
fn a_replica_that_is_behind_refuses_commands_until_it_has_caught_up() {
    for partitions in [1, 3] {
        let cluster = MemoryCluster::with_partitions(partitions);
        let dirs = [scratch(), scratch()];
        let one = Served::start(&cluster, dirs[0].path(), ReplicaConfig::default());
        let mut first = one.client();
        for n in 0..20 {
            assert_eq!(first.ask(&format!("SET k{n} 1")), "+OK");
        }
        // The second replica gets nothing.
        cluster.pace();
        (0..partitions).for_each(|log| cluster.allow(0, log, 10_000));
        let two = Served::start(&cluster, dirs[1].path(), ReplicaConfig::default());
        let mut client = two.client();
        wait_for("it is behind", || client.ask("PING").starts_with(BEHIND));
        for line in ["GET k0", "SET k0 2", "SCAN 0", "BLPOP l 0", "WATCH k0"] {
            let reply = client.ask(line);
            assert!(reply.starts_with(BEHIND), "{line}: {reply}");
        }
        client.send("INFO persistence\r\n");
        client.expect("$43\r\n# Persistence\r\nloading:1\r\nasync_loading:0\r\n\r\n");
        assert_eq!(client.ask("CLIENT SETNAME me"), "+OK");
        assert_eq!(first.ask("SET k0 3"), "+OK");
        assert_eq!(first.ask("PING"), "+PONG");
        cluster.unpace();
        wait_for("it has caught up", || client.ask("PING") == "+PONG");
        client.send("GET k0\r\n");
        client.expect("$1\r\n3\r\n");
        assert!(!two.control.status().is_behind);
    }
}

/// As after SIGSTOP and SIGCONT.
#[test]
fn a_replica_that_was_stopped_may_be_behind() {
    let (cluster, dir) = (MemoryCluster::new(), scratch());
    let machine = open(dir.path());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let mut log = cluster.join(&[0]).expect("a log");
    // It asks at its start, then after the pause, and then again.
    let failure = inband_host::log::SubmitFailure::NotApplied("no majority answered");
    log.fail_next_reads(20, failure);
    let config = ReplicaConfig::default();
    let mut replica =
        Replica::new(config, machine, Box::new(log), vec![listener], None).expect("a replica");
    let control = replica.control();
    let mut run = |until: &dyn Fn() -> bool| {
        wait_for("the replica's state", || {
            replica
                .poll_once(Duration::from_millis(10))
                .expect("it runs");
            until()
        });
    };
    let mut client = Client::connect(address);
    run(&|| control.status().is_behind);
    run(&|| !control.status().is_behind);
    client.send("PING\r\n");
    run(&|| control.status().requests_total == 1);
    client.expect("+PONG\r\n");
    cluster.pace();
    cluster.decide_noops(5);
    std::thread::sleep(Duration::from_millis(2100));
    run(&|| control.status().is_behind);
    client.send("PING\r\n");
    run(&|| control.status().requests_total == 2);
    assert!(client.line().starts_with(BEHIND));
    cluster.unpace();
    run(&|| !control.status().is_behind);
}
