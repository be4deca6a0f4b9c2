//! The keys of systems whose supervisor does not rotate them: replaced by hand, with SIGHUP, while clients are served.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use inband_cluster::client::Answer;
use inband_cluster::paxos::cluster_dir::ClusterDir;
use inband_cluster::supervisor::host_dir;
use inband_host::config::Durability;
use inband_host::key_file::KeyFile;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use crate::{boxes, memory, netpaxos};

const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// Takes the three steps of a rotation: every process, by name and id, has read the file before the next step. `works`
/// is called after each of them, with its number.
fn rotate(dir: &Path, processes: &[(String, u32)], mut works: impl FnMut(u64)) {
    let path = ClusterDir::key_file_in(dir);
    let mut keys = KeyFile::load(&path).expect("it has keys");
    let former = keys.active();
    let new = keys.add().expect("room for another");
    let both = format!("sends with {former}, accepts [{former}, {new}]");
    step(dir, &keys, processes, &both);
    works(1);
    keys.activate(new).expect("it is there");
    let both = format!("sends with {new}, accepts [{former}, {new}]");
    step(dir, &keys, processes, &both);
    works(2);
    keys.drop_others();
    step(
        dir,
        &keys,
        processes,
        &format!("sends with {new}, accepts [{new}]"),
    );
    works(3);

    // A file that is no good ends nobody and changes nothing.
    fs::write(&path, "half of").expect("written");
    reload(dir, processes, "stays in use");
    keys.save(&path).expect("saved");
    works(4);
}

fn step(dir: &Path, keys: &KeyFile, processes: &[(String, u32)], expected: &str) {
    keys.save(&ClusterDir::key_file_in(dir)).expect("saved");
    reload(dir, processes, expected);
}

fn reload(dir: &Path, processes: &[(String, u32)], expected: &str) {
    for (name, pid) in processes {
        let log = host_dir(dir, name).join("log");
        let read = || fs::read_to_string(&log).expect("its log");
        let before = read().len();
        kill(Pid::from_raw(*pid as i32), Signal::SIGHUP).expect("it runs");
        let deadline = Instant::now() + LIMIT;
        let said = loop {
            let said = read()[before..].to_owned();
            if said.contains("SIGHUP: done") {
                break said;
            }
            assert!(Instant::now() < deadline, "{name}: {said}");
            thread::sleep(POLL);
        };
        assert!(said.contains(expected), "{name}: {said}");
    }
}

#[test]
fn a_memory_serves_while_its_keys_are_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = memory::start(dir.path(), false).expect("a new memory");
    memory::write(&mut memory::connect(&cluster), 7, &[9; 64]);
    let nodes = cluster.status().nodes;
    let processes: Vec<_> = nodes
        .into_iter()
        .map(|node| (node.name, node.pid))
        .collect();
    assert_eq!(processes.len(), 5);
    rotate(dir.path(), &processes, |step| {
        // It reads the key file.
        let mut client = memory::connect(&cluster);
        assert_eq!(client.read(7).expect("read"), [9; 64]);
        memory::write(&mut client, step, &[step as u8; 64]);
    });
}

#[test]
fn a_box_serves_while_its_keys_are_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = boxes::options();
    let address = options.memcached;
    let cluster = boxes::start(dir.path(), options).expect("a new cluster");
    boxes::until_states_are(&cluster, &["following", "following", "leading"]);
    let nodes = cluster.status().nodes;
    let processes: Vec<_> = nodes
        .into_iter()
        .map(|node| (node.name, node.pid))
        .collect();
    assert_eq!(processes.len(), 3);
    rotate(dir.path(), &processes, |step| {
        boxes::set(address, "key", &step.to_string()).expect("stored");
        let value = boxes::get(address, "key").expect("read");
        assert_eq!(value, step.to_string());
    });
}

#[test]
fn a_store_over_netpaxos_serves_while_its_keys_are_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = netpaxos::start_store(dir.path(), Durability::Memory, netpaxos::LEARNERS);
    let cluster = cluster.expect("a new store");
    let mut store = netpaxos::store_of(&cluster, 1);
    let nodes = cluster.status().nodes;
    let processes: Vec<_> = nodes
        .into_iter()
        .map(|node| (node.name, node.pid))
        .collect();
    assert_eq!(processes.len(), 3 + 4 + 4 + usize::from(netpaxos::LEARNERS));
    rotate(dir.path(), &processes, |step| {
        netpaxos::set(&mut store, "key", &step.to_string());
        let value = netpaxos::get(&mut store, "key");
        assert_eq!(value, Answer::Text(step.to_string()));
    });
}
