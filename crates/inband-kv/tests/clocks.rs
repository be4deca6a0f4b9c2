//! Replicated time when hosts' clocks are wrong, with replicas that query each other over TCP.

use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{scratch, wait_for, Served, TestClocks};
use inband_kv::machine::MachineConfig;
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;

/// Years ahead.
const FAR_MS: i64 = 500_000_000_000;

/// Replicas' times differ by less than this.
const OFF_MS: u64 = 300;

struct Replicas {
    cluster: MemoryCluster,
    dirs: Vec<tempfile::TempDir>,
    clocks: Vec<TestClocks>,
    served: Vec<Served>,
}

impl Replicas {
    /// Replicas whose wall clocks are ahead by these amounts.
    fn start(wall_ahead_ms: &[i64]) -> Self {
        let mut replicas = Self {
            cluster: MemoryCluster::new(),
            dirs: wall_ahead_ms.iter().map(|_| scratch()).collect(),
            clocks: wall_ahead_ms
                .iter()
                .map(|_| TestClocks::default())
                .collect(),
            served: Vec::new(),
        };
        for (clocks, ahead_ms) in replicas.clocks.iter().zip(wall_ahead_ms) {
            clocks.wall_ahead_ms.store(*ahead_ms, Ordering::Relaxed);
        }
        replicas.start_all();
        replicas
    }

    fn start_all(&mut self) {
        let port = |_: &_| TcpListener::bind("127.0.0.1:0").unwrap();
        let listeners: Vec<TcpListener> = self.dirs.iter().map(port).collect();
        let address = |listener: &TcpListener| listener.local_addr().unwrap();
        for at in 0..listeners.len() {
            let others = (0..listeners.len()).filter(|other| *other != at);
            let peers = others.map(|other| address(&listeners[other])).collect();
            self.cluster.set_peers_of_next(at, peers);
        }
        for (at, listener) in listeners.into_iter().enumerate() {
            self.served.push(Served::start_at(
                &self.cluster,
                MachineConfig::single(self.dirs[at].path()),
                ReplicaConfig::default(),
                TcpListener::bind("127.0.0.1:0").unwrap(),
                listener,
                self.clocks[at].clone(),
            ));
        }
    }

    /// Stops everything for `ms`, then starts it again.
    fn stop_for(&mut self, ms: u64) {
        for served in self.served.drain(..) {
            served.stop();
        }
        self.pass(ms);
        self.start_all();
    }

    fn pass(&self, ms: u64) {
        for clocks in &self.clocks {
            clocks.passed_ms.fetch_add(ms, Ordering::Relaxed);
        }
    }
}

/// A client sets a lock of 50 s at one replica; another replica's clock is 60 s ahead.
#[test]
fn a_lock_does_not_end_by_another_replicas_clock() {
    let replicas = Replicas::start(&[0, 0, 60_000]);
    let mut client = replicas.served[0].client();
    let mut wrong = replicas.served[2].client();
    assert_eq!(client.ask("SET lock me PX 50000 NX"), "+OK");
    // On a machine that stalls, the others' clocks are known a moment later.
    wait_for("the clocks agree", || {
        wrong.ask("SET probe 1 PX 50000") == "+OK"
    });
    assert_eq!(wrong.ask("SET lock you PX 50000 NX"), "$-1");
    assert_eq!(wrong.ask("INCR n"), ":1");
    assert_eq!(client.ask("GET lock"), "$2");
    assert_eq!(client.line(), "me");
    let left: u64 = wrong.ask("PTTL lock")[1..].parse().unwrap();
    assert!((30_000..=50_000).contains(&left), "{left} ms are left");
    let skew_ms = replicas.served[2].control.status().clock_skew_ms.unwrap();
    // An answer that took a second is half a second off.
    assert!((55_000..=65_000).contains(&skew_ms), "{skew_ms}");
    let mut asks = replicas.served[2].client();
    asks.send("INFO inband\r\nQUIT\r\n");
    let told = asks.rest();
    assert!(
        told.contains("clock_skew_ms:6") || told.contains("clock_skew_ms:5"),
        "{told}"
    );
    replicas.pass(50_000 + OFF_MS);
    assert_eq!(wrong.ask("SET lock you PX 50000 NX"), "+OK");
}

/// A wall clock jumps to 2040 and back while its replica runs.
#[test]
fn a_clock_that_jumps_moves_nothing() {
    let replicas = Replicas::start(&[0, 0, 0]);
    let mut client = replicas.served[0].client();
    let mut wrong = replicas.served[2].client();
    assert_eq!(client.ask("SET a 1 PX 600000"), "+OK");
    for ahead_ms in [FAR_MS, -FAR_MS, 0] {
        let clock = &replicas.clocks[2].wall_ahead_ms;
        clock.store(ahead_ms, Ordering::Relaxed);
        assert_eq!(wrong.ask("SET b 1 PX 50000"), "+OK");
        assert_eq!(client.ask("GET a"), "$1");
        assert_eq!(client.line(), "1");
        assert_eq!(client.ask("GET b"), "$1");
        assert_eq!(client.line(), "1");
    }
    replicas.pass(50_000 + OFF_MS);
    assert_eq!(client.ask("EXISTS a b"), ":1");
}

/// After a full stop, time matches the majority's clocks, and keys have expired meanwhile.
#[test]
fn one_wrong_clock_at_boot_moves_nothing() {
    for ahead_ms in [FAR_MS, 6_000, -FAR_MS] {
        let mut replicas = Replicas::start(&[0, 0, 0]);
        let mut client = replicas.served[1].client();
        assert_eq!(client.ask("SET a 1 PX 3600000"), "+OK");
        assert_eq!(client.ask("SET b 1 PX 7200000"), "+OK");
        let clock = &replicas.clocks[0].wall_ahead_ms;
        clock.store(ahead_ms, Ordering::Relaxed);
        replicas.stop_for(3_600_000);
        let mut wrong = replicas.served[0].client();
        let mut said = String::new();
        // Until it has heard both others, two clocks do not agree.
        wait_for("a majority of the clocks agrees", || {
            said = wrong.ask("EXISTS a b");
            !said.starts_with("-CLOCK")
        });
        assert_eq!(said, ":1", "{ahead_ms} ms ahead");
        assert_eq!(wrong.ask("SET c 1 PX 50000"), "+OK");
        let mut right = replicas.served[1].client();
        let left: u64 = right.ask("PTTL b")[1..].parse().unwrap();
        assert!((3_590_000..=3_600_000).contains(&left), "{left} ms left");
        assert_eq!(right.ask("EXISTS c"), ":1");
        replicas.pass(50_000 + OFF_MS);
        assert_eq!(right.ask("EXISTS b c"), ":1");
    }
}

/// Two replicas with different clocks: it is impossible to tell which is right.
#[test]
fn clocks_that_do_not_agree_are_named_and_can_be_set() {
    let replicas = Replicas::start(&[0, 6_000]);
    let mut client = replicas.served[0].client();
    wait_for("they have heard of each other", || {
        replicas
            .served
            .iter()
            .all(|s| s.control.status().clock_refusal.is_some())
    });
    let said = client.ask("SET a 1 PX 5000");
    assert!(
        said.starts_with("-CLOCK the replicas' clocks do not agree"),
        "{said}"
    );
    assert!(
        said.contains("60") && said.contains("limit is 1000 ms"),
        "{said}"
    );
    assert_eq!(client.ask("PING"), "+PONG");
    replicas.clocks[1]
        .wall_ahead_ms
        .store(100, Ordering::Relaxed);
    wait_for("they agree", || client.ask("SET a 1 PX 5000") == "+OK");
}

/// There are no writes for an hour; then a client sets a key at a replica that has just started.
#[test]
fn time_has_passed_while_nobody_wrote() {
    let mut replicas = Replicas::start(&[0, 0, 0]);
    let mut client = replicas.served[0].client();
    assert_eq!(client.ask("SET a 1 PX 3700000"), "+OK");
    replicas.pass(3_600_000);
    std::thread::sleep(Duration::from_millis(20));
    let left: u64 = client.ask("PTTL a")[1..].parse().unwrap();
    assert!((80_000..=100_000).contains(&left), "{left} ms are left");
    replicas.stop_for(0);
    let mut client = replicas.served[2].client();
    assert_eq!(client.ask("SET b 1 PX 50000"), "+OK");
    replicas.pass(30_000);
    assert_eq!(replicas.served[0].client().ask("EXISTS a b"), ":2");
    replicas.pass(20_000 + OFF_MS);
    assert_eq!(replicas.served[1].client().ask("EXISTS a b"), ":1");
}
