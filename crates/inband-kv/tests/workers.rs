//! Replicas with workers: the same results as without.

use std::net::TcpListener;
use std::process::Command;

use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::replica::{Replica, ReplicaConfig, ReplicaError};
use inband_kv::store::StoreError;
use inband_kv::testing::MemoryCluster;
use inband_kv::workers::WorkerConfig;

use crate::common::{key_of_each, resp, scratch, Client, Served, WORKERS_VARIABLE};

const PARTITIONS: usize = 4;
const CONNECTIONS: usize = 24;
const ROUNDS: usize = 20;

/// Tests of what several partitions or connections do, and of how a replica starts and ends.
const WITH_WORKERS: [&str; 11] = [
    "blocking::",
    "checkpoints::",
    "full_disk::",
    "limits::",
    "partitions::",
    "pubsub::",
    "reads::",
    "scripted::",
    "sockets::",
    "transactions::",
    "watches::",
];

fn with_workers(threads: usize) -> ReplicaConfig {
    ReplicaConfig {
        workers: WorkerConfig::eager(threads),
        ..ReplicaConfig::default()
    }
}

#[test]
fn other_tests_pass_with_workers() {
    let program = std::env::current_exe().expect("a path");
    let output = Command::new(program)
        .args(WITH_WORKERS)
        .args(["--skip", "several_reads::"]) // no replicas, and `reads::` selects it
        .env(WORKERS_VARIABLE, "2")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains(" 0 failed;") && !said.contains(" 0 passed;"),
        "{said}"
    );
}

/// Many connections write and read keys of all partitions, single ones and several at once.
#[test]
fn every_connection_gets_its_replies_in_order() {
    let (cluster, dir) = (MemoryCluster::with_partitions(PARTITIONS), scratch());
    let served = Served::start(&cluster, dir.path(), with_workers(3));
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| served.client()).collect();
    let keys: Vec<Vec<String>> = (0..CONNECTIONS)
        .map(|client| key_of_each(&format!("c{client}-"), PARTITIONS))
        .collect();
    for round in 1..=ROUNDS {
        for (client, keys) in clients.iter_mut().zip(&keys) {
            let incr = keys.iter().map(|key| resp(&format!("INCR {key}")));
            let get = keys.iter().map(|key| resp(&format!("GET {key}")));
            let several = resp(&format!("MGET {}", keys.join(" ")));
            client.send(incr.chain(get).collect::<String>() + &several + &resp("PING"));
        }
        let (value, count) = (round.to_string(), PARTITIONS);
        let bulk = format!("${}\r\n{value}\r\n", value.len());
        let expected = format!(
            "{}{}*{count}\r\n{}+PONG\r\n",
            format!(":{value}\r\n").repeat(count),
            bulk.repeat(count),
            bulk.repeat(count)
        );
        clients
            .iter_mut()
            .for_each(|client| client.expect(&expected));
    }
    assert!(served.control.status().worker_rounds_total > 0);
    served.stop();
}

/// A write that fails in one of several partitions ends the replica, whichever thread it was on.
#[test]
fn a_failed_write_ends_the_replica() {
    let (cluster, dir) = (MemoryCluster::with_partitions(PARTITIONS), scratch());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let machine = Machine::open(MachineConfig {
        dirs: vec![dir.path().to_path_buf()],
        partitions: PARTITIONS,
        sync: false,
    });
    let machine = machine.unwrap();
    let log = Box::new(cluster.join(&machine.applied()).unwrap());
    let mut replica = Replica::new(with_workers(2), machine, log, vec![listener], None).unwrap();
    replica.control().faults().fail_after(0);
    let keys = key_of_each("k", PARTITIONS);
    // Served once the replica runs.
    let mut client = Client::connect(address);
    let sets = keys.iter().map(|key| resp(&format!("SET {key} 1")));
    client.send(sets.collect::<String>());
    let ended = replica.run();
    assert!(
        matches!(ended, Err(ReplicaError::Store(StoreError::Fault))),
        "{ended:?}"
    );
}
