//! SIGTERM at the leader of a loaded store: what the clients notice.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Client, PROGRAM};
use crate::run::{start, wait_until_it_answers, TIMEOUT};
use inband_testing::port::free_ports;

/// Far longer than a handover and a stall of the machine, so that nobody takes over by suspicion unnoticed.
const SUSPECT_AFTER: Duration = Duration::from_secs(15);
/// A client that waited for a suspicion timeout has waited longer.
const WITHOUT_SUSPICION_MAX: Duration = Duration::from_secs(12);
const HOSTS: u16 = 3;
/// SETs of each client before the stop, and after it.
const MORE: u64 = 100;
/// Ports of a host: packets, control plane, clients.
const PORTS: u16 = 3;

fn config(dir: &Path, first_port: u16, id: u16) -> PathBuf {
    let address = |id: u16| first_port + (id - 1) * PORTS;
    let nodes: Vec<String> = (1..=HOSTS)
        .map(|id| {
            format!(
                r#"{{ id = {id}, name = "host-{id}", address = "127.0.0.1:{}",
                roles = ["leader", "acceptor", "replica", "controller"] }}"#,
                address(id)
            )
        })
        .collect();
    let text = format!(
        r#"
        cluster = {{ name = "three", epoch = 1, first_instance = 1, durability = "memory" }}
        node = [{}]
        [host]
        node = {id}
        state_dir = {dir:?}
        dataplane = "udp"
        resp = ["127.0.0.1:{}"]
        timing = {{ suspect_after_ms = {} }}
        "#,
        nodes.join(", "),
        address(id) + 2,
        SUSPECT_AFTER.as_millis()
    );
    let path = dir.join("config.toml");
    std::fs::write(&path, text).expect("the configuration");
    path
}

fn leads(config: &Path) -> bool {
    let output = Command::new(PROGRAM)
        .args(["status", "--json", "--config"])
        .arg(config)
        .output()
        .expect("it runs");
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let leaders = status["leaders"].as_array().expect("a list");
    leaders.iter().any(|leader| leader["active"] == true)
}

/// Waits until a host says that it leads: a status may be as old as a publication.
fn leading(configs: &[PathBuf]) -> usize {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = configs.iter().position(|config| leads(config)) {
            return found;
        }
        assert!(Instant::now() < deadline, "nobody leads");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What one client saw.
#[derive(Debug, Default)]
struct Seen {
    /// The longest time that one SET took, with all its attempts.
    longest: Duration,
    /// Errors that do not say that the command may be repeated.
    failures: Vec<String>,
}

/// Writes until `stop`, at the first address and, when that one sends it away, at the next.
fn write(addresses: &[SocketAddr], key: &str, stop: &AtomicBool, answered: &AtomicU64) -> Seen {
    let mut seen = Seen::default();
    let mut at = 0;
    let mut client = None;
    while !stop.load(Ordering::Acquire) {
        let began = Instant::now();
        loop {
            let address = addresses[at % addresses.len()];
            let reply = client
                .take()
                .map_or_else(|| Client::try_connect(address), Some)
                .and_then(|mut connected: Client| {
                    let reply = connected.try_call(&["SET", key, "1"])?;
                    client = Some(connected);
                    Some(reply)
                });
            match reply.as_deref() {
                Some("+OK") => break,
                Some(error) if !error.contains("LOADING") => seen.failures.push(error.to_owned()),
                // The host is stopping (LOADING), or the connection was closed.
                Some(_) | None => {
                    client = None;
                    at += 1;
                }
            }
            if began.elapsed() > TIMEOUT {
                seen.failures.push(format!("no answer within {TIMEOUT:?}"));
                return seen;
            }
        }
        answered.fetch_add(1, Ordering::Relaxed);
        seen.longest = seen.longest.max(began.elapsed());
    }
    seen
}

#[test]
fn a_leader_that_is_told_to_stop_hands_over() {
    let first_port = free_ports(HOSTS * PORTS);
    let dirs = [(); HOSTS as usize].map(|()| tempfile::tempdir().expect("a directory"));
    let configs: Vec<PathBuf> = dirs
        .iter()
        .zip(1..)
        .map(|(dir, id)| config(dir.path(), first_port, id))
        .collect();
    let resp: Vec<SocketAddr> = (0..HOSTS)
        .map(|i| ([127, 0, 0, 1], first_port + i * PORTS + 2).into())
        .collect();
    let mut hosts: Vec<_> = configs.iter().map(|config| start(config)).collect();
    for address in &resp {
        wait_until_it_answers(*address, &["SET", "a", "1"], "+OK");
    }
    let leading = leading(&configs);

    let stop = AtomicBool::new(false);
    let answered = [(); HOSTS as usize].map(|()| AtomicU64::new(0));
    let until_all_have_more = || {
        let count = || answered.each_ref().map(|one| one.load(Ordering::Relaxed));
        let (before, deadline) = (count(), Instant::now() + TIMEOUT);
        while count()
            .iter()
            .zip(&before)
            .any(|(now, before)| *now < before + MORE)
        {
            assert!(Instant::now() < deadline, "{before:?}, now {:?}", count());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let (seen, took) = std::thread::scope(|scope| {
        // One client at each host; the one at the leader's must reconnect.
        let clients: Vec<_> = (0..resp.len())
            .map(|i| {
                let mut addresses = resp.clone();
                addresses.rotate_left(i);
                let (stop, answered) = (&stop, &answered[i]);
                scope.spawn(move || write(&addresses, &format!("key:{i}"), stop, answered))
            })
            .collect();
        until_all_have_more();
        let began = Instant::now();
        assert!(hosts[leading].terminate(), "it ends well");
        let took = began.elapsed();
        until_all_have_more();
        stop.store(true, Ordering::Release);
        let seen = clients
            .into_iter()
            .map(|client| client.join().expect("it ends"));
        (seen.collect::<Vec<Seen>>(), took)
    });
    println!("stopped within {took:?}; {seen:?}");
    for seen in &seen {
        assert!(seen.failures.is_empty(), "{seen:?}");
        assert!(seen.longest < WITHOUT_SUSPICION_MAX, "{seen:?}");
    }
    assert!(took < Duration::from_secs(20), "stopped within {took:?}");
}
