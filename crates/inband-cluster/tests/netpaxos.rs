//! A cluster of NetPaxos: requests are delivered in one order while every kind of process fails.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use inband_cluster::client::{Answer, Client as RespClient};
use inband_cluster::command::SystemCommand;
use inband_cluster::netpaxos::{NetPaxos, Options};
use inband_cluster::scratch::retry;
use inband_cluster::socket::{self, Request};
use inband_cluster::supervisor::{host_dir, Supervisor};
use inband_host::config::{Dataplane, Durability};
use inband_netpaxos::client::Client;
use inband_netpaxos::learner::KEPT_MAX;
use inband_netpaxos::proposer::Outcome;
use inband_netpaxos::status::{log_at, status_at, Applied};
use inband_netpaxos::storage;

pub const LIMIT: Duration = Duration::from_secs(60);
/// How often [`submit_until`] asks whether it is enough. That may mean to ask every process, and takes a while.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// For a whole window of requests on a busy machine.
const LONG_LIMIT: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(50);
pub const LEARNERS: u8 = 2;

pub fn program() -> PathBuf {
    inband_testing::build("inband-netpaxos")
}

pub fn options(durability: Durability, accept_loss: bool) -> Options {
    Options {
        minions: 4,
        learners: LEARNERS,
        serializers: 3,
        dataplane: Dataplane::Udp,
        durability,
        no_key: false,
        accept_loss,
        resp: ([127, 0, 0, 1], 0).into(),
        log_only: true,
        ..Options::default()
    }
}

pub fn start_with(dir: &Path, options: &Options) -> Result<Supervisor<NetPaxos>> {
    let mut spec = NetPaxos::spec(options, dir)?;
    spec.program = Some(program());
    Supervisor::start(spec)
}

pub fn start(
    dir: &Path,
    durability: Durability,
    accept_loss: bool,
) -> Result<Supervisor<NetPaxos>> {
    start_with(dir, &options(durability, accept_loss))
}

/// Starts a cluster with a store at each learner.
pub fn start_store(
    dir: &Path,
    durability: Durability,
    learners: u8,
) -> Result<Supervisor<NetPaxos>> {
    let log_only = options(durability, false);
    start_with(
        dir,
        &Options {
            learners,
            log_only: false,
            ..log_only
        },
    )
}

/// Returns a Redis client of a learner.
pub fn store_of(cluster: &Supervisor<NetPaxos>, learner: u8) -> RespClient {
    let address = cluster.status().cluster.resp[usize::from(learner) - 1];
    let connect = || {
        let mut client = RespClient::connect(address, LIMIT)?;
        let pong = client.ask(&["PING"])?;
        ensure!(pong == Answer::Status("PONG".into()), "{pong:?}");
        Ok(client)
    };
    retry(LIMIT, connect).expect("the learner serves")
}

pub fn set(client: &mut RespClient, key: &str, value: &str) {
    let ok = client.ask(&["SET", key, value]).expect("answered");
    assert_eq!(ok, Answer::Status("OK".into()), "SET {key}");
}

pub fn get(client: &mut RespClient, key: &str) -> Answer {
    client.ask(&["GET", key]).expect("answered")
}

/// Every value is delivered.
pub fn submit(cluster: &Supervisor<NetPaxos>, values: &[&str]) {
    let mut client = Client::connect(&cluster.status().cluster, LIMIT).expect("a session");
    let bytes = values.iter().map(|value| value.as_bytes());
    for outcome in client.submit_all(bytes, LIMIT).expect("sent") {
        assert!(matches!(outcome, Outcome::Delivered(_)), "{outcome:?}");
    }
}

/// Returns what Prometheus gets at this address.
fn scrape(address: SocketAddr) -> String {
    let mut socket = TcpStream::connect(address).expect("it listens");
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    socket.write_all(request.as_bytes()).expect("sent");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("read");
    text
}

/// Returns a metric of a process; `labels` are those before `node`.
fn metric(text: &str, name: &str, labels: &str, node: &str) -> u64 {
    let line = format!("inband_netpaxos_{name}{{{labels}node=\"{node}\"}} ");
    let value = text.lines().find_map(|text| text.strip_prefix(&line));
    let value = value.unwrap_or_else(|| panic!("no {line} in {text}"));
    value.parse().expect("a number")
}

#[test]
fn prometheus_finds_every_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start_store(dir.path(), Durability::Memory, LEARNERS).expect("a new store");
    let mut store = store_of(&cluster, 1);
    (0..5).for_each(|n| set(&mut store, &n.to_string(), "value"));
    let status = cluster.status();
    assert_eq!(status.metrics.len(), status.processes.len());
    assert!(status.metrics.values().all(|at| at.ip().is_loopback()));
    let text = |process: &str| scrape(status.metrics[process]);
    let event = |process: &str, name: &str| {
        let labels = format!("event=\"{name}\",");
        metric(&text(process), "events_total", &labels, process)
    };
    assert!(event("learner/1", "decided_fast") + event("learner/1", "decided_by_others") >= 5);
    assert!(event("learner/1", "positions_asked") > 0);
    assert_eq!(metric(&text("learner/1"), "store_keys", "", "learner/1"), 5);
    assert!(event("storage/2", "votes_fast") >= 5);
    assert_eq!(event("storage/2", "numbers_refused"), 0);
    assert_eq!(metric(&text("storage/2"), "gaps_open", "", "storage/2"), 0);
    assert!(metric(&text("minion/3"), "position", "", "minion/3") >= 5);
    assert!(
        text("minion/3").contains("inband_netpaxos_dataplane{dataplane=\"udp\",node=\"minion/3\"")
    );
    // A process that was restarted has its address again.
    cluster.kill("storage/2").expect("killed");
    cluster.restart("storage/2").expect("restarted");
    let has_begun = || {
        let generation = event("storage/2", "generation");
        ensure!(generation == 1, "generation {generation}");
        Ok(())
    };
    retry(LIMIT, has_begun).expect("its second generation");
}

/// Starts a process as an operator would by hand, which must fail. Returns what it says.
pub fn refused_by_hand(cluster: &Path, own: &Path, args: &[&str]) -> String {
    let mut process = std::process::Command::new(program());
    process.args(args).arg("--cluster").arg(cluster);
    let ran = process.arg("--data").arg(own).output().expect("it runs");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(!ran.status.success(), "{args:?}: {said}");
    said
}

/// What each learner has delivered, once all have as much.
pub fn logs(cluster: &Supervisor<NetPaxos>, count: usize) -> Vec<Vec<Applied>> {
    let sockets = cluster.status().cluster.sockets;
    let read = || -> Result<Vec<Vec<Applied>>> {
        let logs = (1..=LEARNERS).map(|n| Ok(log_at(&sockets[&format!("learner/{n}")], 1)?.0));
        let logs = logs.collect::<Result<Vec<_>>>()?;
        for log in &logs {
            ensure!(log.len() == count, "{} of {count} are delivered", log.len());
        }
        Ok(logs)
    };
    retry(LIMIT, read).expect("all learners deliver all")
}

pub fn all_serve(cluster: &Supervisor<NetPaxos>) {
    let serving = || {
        let nodes = cluster.status().nodes;
        let serving = nodes.iter().filter(|node| node.state == "serving").count();
        ensure!(serving == 4, "{serving} storage servers serve: {nodes:?}");
        Ok(())
    };
    retry(LIMIT, serving).expect("all storage servers serve");
}

#[test]
fn a_log_outlives_every_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), Durability::Memory, false).expect("a new log");
    // Equal bytes are different requests.
    submit(&cluster, &["a", "a", "b"]);
    let mut count = 3;
    for host in ["serializer/1", "minion/2", "storage/3", "learner/1"] {
        cluster.kill(host).expect("killed");
        submit(&cluster, &[host, "while it is down"]);
        cluster.restart(host).expect("restarted");
        all_serve(&cluster);
        submit(&cluster, &["again"]);
        count += 3;
    }
    let logs = logs(&cluster, count);
    assert_eq!(logs[0], logs[1]);
    let values: Vec<_> = logs[0].iter().map(|(_, value)| value.as_slice()).collect();
    let of = |value: &str| values.iter().filter(|v| **v == value.as_bytes()).count();
    assert_eq!((of("a"), of("b"), of("again")), (2, 1, 4));

    // The command line takes no second storage server away unless it is told to.
    let ask = |host: &str| {
        let role = host.to_owned();
        let force = false;
        socket::done::<NetPaxos>(dir.path(), &Request::Restart { role, force })
    };
    cluster.kill("storage/1").expect("killed");
    let refused = format!("{:#}", ask("storage/2").expect_err("only three serve"));
    assert!(refused.contains("--force"), "{refused}");
    drop(cluster);

    let refused = start(dir.path(), Durability::Memory, false)
        .map(drop)
        .unwrap_err();
    assert!(format!("{refused:#}").contains("--accept-loss"));
    let cluster =
        start(dir.path(), Durability::Memory, true).expect("told to begin with an empty log");
    submit(&cluster, &["first"]);
}

#[test]
fn no_request_fails_when_serializers_and_minions_are_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), Durability::Memory, false).expect("a new log");
    let sockets = cluster.status().cluster.sockets;
    let delivered = || {
        let log = status_at(&sockets["learner/1"]);
        log.map_or(0, |status| status.position)
    };
    let killed_all = AtomicBool::new(false);
    let outcomes = thread::scope(|scope| {
        // Requests under way at every kill.
        let load = scope.spawn(|| {
            let mut client = Client::connect(&cluster.status().cluster, LIMIT).expect("a session");
            let mut outcomes = BTreeMap::new();
            let mut sent = 0;
            while !killed_all.load(Ordering::Acquire) || outcomes.len() < sent {
                while !killed_all.load(Ordering::Acquire)
                    && sent < outcomes.len() + 8
                    && client.is_ready()
                {
                    sent += 1;
                    let number = client.submit(sent.to_string().as_bytes(), LIMIT);
                    assert_eq!(number, sent as u64, "a session counts from 1");
                }
                outcomes.extend(client.poll(LIMIT).expect("its socket works"));
            }
            outcomes
        });
        // The first two are those that the client uses, one after the other.
        for host in ["serializer/1", "serializer/2", "minion/1"] {
            let before = delivered();
            let is_under_load = || {
                ensure!(delivered() > before, "nothing is delivered");
                Ok(())
            };
            retry(LIMIT, is_under_load).expect("requests are under way");
            cluster.kill(host).expect("killed");
        }
        killed_all.store(true, Ordering::Release);
        load.join().expect("it does not panic")
    });
    let is_delivered = |outcome: &&Outcome| matches!(outcome, Outcome::Delivered(_));
    assert_eq!(
        outcomes.values().filter(is_delivered).count(),
        outcomes.len()
    );
    let expected: BTreeSet<Vec<u8>> = outcomes.keys().map(|n| n.to_string().into()).collect();
    for learner in 1..=LEARNERS {
        let socket = &sockets[&format!("learner/{learner}")];
        let read = || {
            let values = all_values(socket)?;
            ensure!(
                values.len() >= expected.len(),
                "{} are delivered",
                values.len()
            );
            Ok(values)
        };
        let values = retry(LIMIT, read).expect("it delivers all");
        let different: BTreeSet<Vec<u8>> = values.iter().cloned().collect();
        assert_eq!((values.len(), &different), (expected.len(), &expected));
    }
}

/// All values that a learner has applied.
fn all_values(socket: &Path) -> Result<Vec<Vec<u8>>> {
    let mut values = Vec::new();
    let mut from = 1;
    loop {
        let (log, next) = log_at(socket, from)?;
        if log.is_empty() {
            return Ok(values);
        }
        values.extend(log.into_iter().map(|(_, value)| value));
        from = next;
    }
}

#[test]
fn a_log_on_disk_outlives_the_cluster() {
    let dir = tempfile::tempdir().expect("a directory");
    let begin = || start(dir.path(), Durability::Sync, false).expect("it starts");
    let cluster = begin();
    submit(&cluster, &["before", "before"]);
    cluster.kill("storage/1").expect("killed");
    cluster.kill("storage/2").expect("killed");
    cluster.restart("storage/1").expect("restarted");
    cluster.restart("storage/2").expect("restarted");
    all_serve(&cluster);
    let before = logs(&cluster, 2);
    drop(cluster);
    let cluster = begin();
    submit(&cluster, &["after"]);
    let after = logs(&cluster, 3);
    assert_eq!(after[0], after[1]);
    assert_eq!(after[0][..2], before[0][..]);
}

/// By order and equality alone, as in the paper: for a log; for a store only if the user says that it may be lost.
#[test]
fn a_store_by_order_alone_is_refused_unless_its_loss_is_accepted() {
    let dir = tempfile::tempdir().expect("a directory");
    let faithful = |log_only, unsafe_ordering| Options {
        faithful: true,
        unsafe_ordering,
        log_only,
        ..options(Durability::Memory, true)
    };
    let refused = start_with(dir.path(), &faithful(false, false)).map(drop);
    let refused = format!("{:#}", refused.expect_err("learners may disagree"));
    assert!(refused.contains("--unsafe-ordering"), "{refused}");

    let cluster = start_with(dir.path(), &faithful(true, false)).expect("a log");
    submit(&cluster, &["a", "b"]);
    let all = logs(&cluster, 2);
    assert_eq!(all[0], all[1]);
    // The learner itself refuses, too.
    let file = dir.path().join("cluster.json");
    let text = std::fs::read_to_string(&file).expect("written");
    drop(cluster);
    let mut file_of_store: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    file_of_store["resp"] = serde_json::json!(["127.0.0.1:0", "127.0.0.1:0"]);
    std::fs::write(&file, file_of_store.to_string()).expect("written");
    let own = dir.path().join("own");
    let said = refused_by_hand(dir.path(), &own, &["learner", "--number=1", "--faithful"]);
    assert!(said.contains("--unsafe-ordering"), "{said}");
    std::fs::write(&file, text).expect("written");

    let cluster = start_with(dir.path(), &faithful(false, true)).expect("its loss is accepted");
    for words in [
        NetPaxos::notice(&cluster.status()),
        NetPaxos::in_words(&cluster.status()),
    ] {
        assert!(words.contains("UNSAFE ORDERING"), "{words}");
    }
    let log = host_dir(dir.path(), "learner/1").join("log");
    let log = std::fs::read_to_string(log).expect("its output");
    assert!(log.contains("WARNING"), "{log}");
    set(&mut store_of(&cluster, 1), "key", "value");
    let value = get(&mut store_of(&cluster, 2), "key");
    assert_eq!(value, Answer::Text("value".into()));
    drop(cluster);
    let safe = options(Durability::Sync, true);
    let cluster = start_with(dir.path(), &safe).expect("a new log");
    assert!(!NetPaxos::in_words(&cluster.status()).contains("UNSAFE"));
    drop(cluster);
    let former = Options {
        faithful: true,
        ..options(Durability::Sync, false)
    };
    let refused = start_with(dir.path(), &former).map(drop);
    let refused = format!("{:#}", refused.expect_err("it was a safe one"));
    assert!(refused.contains("without it"), "{refused}");
}

/// Submits values until `is_enough`, and waits for the outcomes of all of them. Returns how many there were.
fn submit_until(
    cluster: &Supervisor<NetPaxos>,
    mut is_enough: impl FnMut(u64) -> bool,
    mut then: impl FnMut(),
) -> u64 {
    let mut client = Client::connect(&cluster.status().cluster, LONG_LIMIT).expect("a session");
    let (mut sent, mut delivered) = (0, 0);
    let mut poll = |client: &mut Client| {
        for (_, outcome) in client.poll(POLL).expect("its socket works") {
            assert!(matches!(outcome, Outcome::Delivered(_)), "{outcome:?}");
            delivered += 1;
        }
        delivered
    };
    let mut checked = Instant::now();
    loop {
        while client.is_ready() {
            client.submit(b"v", LONG_LIMIT);
            sent += 1;
        }
        poll(&mut client);
        if checked.elapsed() >= CHECK_INTERVAL {
            checked = Instant::now();
            if is_enough(sent) {
                break;
            }
        }
    }
    then();
    while poll(&mut client) < sent {}
    sent
}

/// By default one learner may be dead: storage servers forget what the others have.
#[test]
fn more_than_a_window_is_written_while_a_learner_is_dead() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options {
        learners: Options::default().learners,
        ..options(Durability::Memory, false)
    };
    let cluster = start_with(dir.path(), &options).expect("a new log");
    let dead = format!("learner/{}", options.learners);
    cluster.kill(&dead).expect("killed");
    let all = submit_until(&cluster, |sent| sent > storage::WINDOW + 1_000, || ());
    cluster.restart(&dead).expect("restarted");
    let socket = &cluster.status().cluster.sockets[&dead];
    let has_all = || {
        let position = status_at(socket)?.position;
        ensure!(position > all, "it has {position} of {all}");
        Ok(())
    };
    retry(LONG_LIMIT, has_all).expect("it gets what it missed");
}

/// With two learners both are a majority: writes stop when the window is full, and go on when the dead one is back.
#[test]
fn writes_go_on_when_the_second_of_two_learners_is_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), Durability::Memory, false).expect("a new log");
    cluster.kill("learner/2").expect("killed");
    let is_full = || {
        let nodes = cluster.status().nodes;
        let mut counts = nodes
            .iter()
            .filter_map(|node| node.counters.get("window_full"));
        counts.any(|count| *count > 0)
    };
    let back = || {
        cluster.restart("learner/2").expect("restarted");
    };
    // Requests that were repeated may have more than one instance, so fewer than a window of them can fill it.
    submit_until(&cluster, |_| is_full(), back);
}

/// Otherwise its reports would be taken for late ones of the start before, and a round of recovery be used twice. No clock
/// tells the starts apart.
#[test]
fn a_learner_whose_directory_was_lost_has_a_new_incarnation() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), Durability::Memory, false).expect("a new log");
    submit(&cluster, &["a"]);
    let own = host_dir(dir.path(), "learner/2");
    let incarnation = || {
        let socket = &cluster.status().cluster.sockets["learner/2"];
        let granted = || {
            let incarnation = status_at(socket)?.counters["incarnation"];
            ensure!(incarnation > 0, "none is granted");
            Ok(incarnation)
        };
        retry(LIMIT, granted).expect("storage servers grant one")
    };
    let mut all = vec![incarnation()];
    for _ in 0..3 {
        cluster.kill("learner/2").expect("killed");
        std::fs::remove_dir_all(&own).expect("it has a directory");
        // The supervisor's own file is in it, too.
        std::fs::create_dir(&own).expect("an empty one");
        cluster.restart("learner/2").expect("restarted");
        all.push(incarnation());
    }
    assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
    submit(&cluster, &["b"]);
    logs(&cluster, 2);
}

#[test]
fn a_store_outlives_every_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start_store(dir.path(), Durability::Memory, LEARNERS).expect("a new store");
    let refused = Client::connect(&cluster.status().cluster, LIMIT).map(drop);
    let refused = refused.expect_err("values of other clients would be no commands");
    assert!(format!("{refused:#}").contains("redis-cli"), "{refused:#}");

    let all = ["serializer/1", "minion/2", "storage/3", "learner/1"];
    for host in all {
        cluster.kill(host).expect("killed");
        // The remaining learner serves; a read at the other one sees what was acknowledged.
        let mut second = store_of(&cluster, 2);
        set(&mut second, host, "while it is down");
        if host.starts_with("learner/") {
            // Not left waiting at a socket that nobody reads.
            let address = cluster.status().cluster.resp[0];
            let refused = TcpStream::connect(address).map_err(|error| error.kind());
            assert_eq!(refused.err(), Some(ErrorKind::ConnectionRefused));
        }
        cluster.restart(host).expect("restarted");
        all_serve(&cluster);
        let mut first = store_of(&cluster, 1);
        for before in &all[..=all
            .iter()
            .position(|h| *h == host)
            .expect("it is one of them")]
        {
            assert_eq!(
                get(&mut first, before),
                Answer::Text("while it is down".into())
            );
        }
        set(&mut first, "last", host);
        assert_eq!(get(&mut second, "last"), Answer::Text(host.into()));
    }
    let mut first = store_of(&cluster, 1);
    for number in 1..=20 {
        let reply = first.ask(&["INCR", "counter"]).expect("answered");
        assert_eq!(reply, Answer::Integer(number));
    }
}

#[test]
fn a_store_on_disk_outlives_the_cluster() {
    let dir = tempfile::tempdir().expect("a directory");
    let begin = || start_store(dir.path(), Durability::Sync, LEARNERS).expect("it starts");
    let cluster = begin();
    set(&mut store_of(&cluster, 1), "color", "green");
    drop(cluster);
    let refused = start(dir.path(), Durability::Sync, false).map(drop);
    let refused = refused.expect_err("the log is a store's");
    assert!(format!("{refused:#}").contains("--log-only"), "{refused:#}");
    let cluster = begin();
    assert_eq!(
        get(&mut store_of(&cluster, 2), "color"),
        Answer::Text("green".into())
    );
    set(&mut store_of(&cluster, 2), "color", "blue");
    assert_eq!(
        get(&mut store_of(&cluster, 1), "color"),
        Answer::Text("blue".into())
    );
}

/// A learner that has lost its store is further behind than the others' logs reach back: it copies a store.
#[test]
fn a_learner_that_lost_its_store_gets_a_checkpoint() {
    // Each value fills a request, and so an instance.
    const VALUE_LEN_BYTES: usize = 1_100;
    const BATCH: usize = 500;
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start_store(dir.path(), Durability::Memory, 3).expect("a new store");
    set(&mut store_of(&cluster, 3), "first", "1");
    cluster.kill("learner/3").expect("killed");
    let lost = host_dir(dir.path(), "learner/3").join("store");
    std::fs::remove_dir_all(&lost).expect("it has a store");

    let value = "v".repeat(VALUE_LEN_BYTES);
    let mut stream = store_of(&cluster, 1).into_stream().expect("no TLS");
    for batch in 0..=KEPT_MAX / BATCH + 1 {
        let set = |n| {
            let key = format!("key{:06}", batch * BATCH + n);
            format!("*3\r\n$3\r\nSET\r\n$9\r\n{key}\r\n${VALUE_LEN_BYTES}\r\n{value}\r\n")
        };
        let requests: String = (0..BATCH).map(set).collect();
        stream.write_all(requests.as_bytes()).expect("sent");
        let mut replies = vec![0; "+OK\r\n".len() * BATCH];
        stream.read_exact(&mut replies).expect("answered");
        assert_eq!(replies, "+OK\r\n".repeat(BATCH).as_bytes());
    }
    cluster.restart("learner/3").expect("restarted");
    let sockets = cluster.status().cluster.sockets;
    let installed = || {
        let status = status_at(&sockets["learner/3"])?;
        let installed = status.counters["checkpoints_installed"];
        ensure!(installed > 0 && status.state != "loading", "{status:?}");
        Ok(())
    };
    retry(LIMIT, installed).expect("a checkpoint is installed");
    let mut third = store_of(&cluster, 3);
    assert_eq!(get(&mut third, "first"), Answer::Text("1".into()));
    assert_eq!(get(&mut third, "key016000"), Answer::Text(value));
    set(&mut third, "first", "2");
    assert_eq!(
        get(&mut store_of(&cluster, 1), "first"),
        Answer::Text("2".into())
    );
}
