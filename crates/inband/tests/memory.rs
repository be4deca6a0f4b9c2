//! Memory stays constant at full rate: registers do not grow at all, processes by no more than the store's write
//! buffers. `inband bench` does the same for minutes.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{lab_works, Cluster};
use inband_paxos::config::{Dataplane, Role};

const WARM_UP: Duration = Duration::from_secs(4);
const WATCHED: Duration = Duration::from_secs(8);
const CLIENTS: usize = 8;
const PIPELINE: usize = 64;
/// Code and stack pages that are first touched late.
const GROWTH_MAX_BYTES: u64 = 2 << 20;
/// A replica's store also fills its write buffers meanwhile. A leak of a few bytes per command would exceed this: some
/// millions are executed.
const REPLICA_GROWTH_MAX_BYTES: u64 = 24 << 20;

/// Commands that go through the log and leave nothing behind.
fn delete_what_is_not_there(address: SocketAddr, stop: &AtomicBool, done: &AtomicU64) {
    let mut stream = TcpStream::connect(address).expect("the store accepts connections");
    stream.set_nodelay(true).expect("no delay");
    let batch = "*2\r\n$3\r\nDEL\r\n$7\r\nmissing\r\n".repeat(PIPELINE);
    let expected = ":0\r\n".repeat(PIPELINE);
    let mut replies = vec![0; expected.len()];
    while !stop.load(Ordering::Acquire) {
        stream.write_all(batch.as_bytes()).expect("requests");
        stream.read_exact(&mut replies).expect("replies");
        assert_eq!(String::from_utf8_lossy(&replies), expected);
        done.fetch_add(PIPELINE as u64, Ordering::Relaxed);
    }
}

/// Resident memory of a process.
fn resident_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("a size") << 10
}

/// Resident memory and registers, by host.
fn sample(cluster: &Cluster) -> BTreeMap<String, (u64, u64)> {
    let mut hosts = Vec::new();
    // One that waits for a CPU does not answer in time.
    cluster.wait_for("all hosts answer", Duration::from_secs(60), |status| {
        hosts.clone_from(&status.hosts);
        hosts.iter().all(|host| host.status.is_some())
    });
    let hosts = hosts.into_iter();
    hosts
        .map(|host| {
            let registers = match (&host.status, host.roles.contains(&Role::Replica)) {
                // A replica's memory includes the log kept for peers, which is full at some point.
                (_, true) => 0,
                (said, false) => said.as_ref().expect("it answers").memory_bytes,
            };
            let resident = resident_bytes(host.pid.expect("it runs"));
            (host.name, (resident, registers))
        })
        .collect()
}

fn memory_is_flat(name: &str, dataplane: Dataplane) {
    let cluster = Cluster::start(name, dataplane, |spec| spec.limits.peer_log_values = 4096);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let address = cluster.replica(client as u16 % 3);
            let (stop, done) = (&stop, &done);
            scope.spawn(move || delete_what_is_not_there(address, stop, done));
        }
        std::thread::sleep(WARM_UP);
        let (before, at) = (sample(&cluster), done.load(Ordering::Relaxed));
        let began = Instant::now();
        std::thread::sleep(WATCHED);
        let after = sample(&cluster);
        let rate = (done.load(Ordering::Relaxed) - at) as f64 / began.elapsed().as_secs_f64();
        stop.store(true, Ordering::Release);
        println!("{dataplane}: {rate:.0} commands/s");
        for (host, (resident, registers)) in &before {
            let (resident_now, registers_now) = after[host];
            let growth = resident_now.saturating_sub(*resident);
            println!(
                "{host}: {} KiB, {} KiB more after {} s",
                resident >> 10,
                growth >> 10,
                WATCHED.as_secs()
            );
            assert_eq!(*registers, registers_now, "{host}: registers do not grow");
            let most = match host.starts_with("replica") {
                true => REPLICA_GROWTH_MAX_BYTES,
                false => GROWTH_MAX_BYTES,
            };
            assert!(growth <= most, "{host} grew by {growth} bytes");
        }
    });
    cluster.wait_until_equal(Duration::from_secs(30));
    cluster.down_and_compare();
}

#[test]
fn memory_is_flat_in_the_kernel() {
    if lab_works() {
        memory_is_flat("flatx", Dataplane::Xdp);
    }
}

#[test]
fn memory_is_flat_in_user_space() {
    memory_is_flat("flatu", Dataplane::Udp);
}
