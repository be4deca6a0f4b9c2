//! Consensus in a box with other numbers of nodes, and with the quorum of all: what a minority may do, and what it may not.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use inband_cluster::box_cluster::{BoxCluster, Options, Quorum};
use inband_cluster::scratch::retry;
use inband_cluster::socket::{self, Request};
use inband_cluster::supervisor::Supervisor;
use inband_testing::port::{free_ports, loopback};

use crate::boxes::{self, ask, LIMIT};

const KEYS: usize = 20;

/// One cluster at a time.
static ONE: Mutex<()> = Mutex::new(());

fn start(dir: &Path, nodes: u8, quorum: Quorum) -> Supervisor<BoxCluster> {
    let first = free_ports(2 * u16::from(nodes));
    let options = Options {
        nodes,
        quorum,
        memcached: loopback(first),
        memcached_local: Some(loopback(first + u16::from(nodes))),
        memory: 16 << 20,
        log_records: 1024,
        ..Options::default()
    };
    boxes::start(dir, options).expect("a new cluster")
}

fn set(address: SocketAddr, key: &str, value: &str) {
    let request = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
    let reply = ask(address, &request, 1).expect("a reply");
    assert_eq!(reply, ["STORED"], "{key} at {address}");
}

fn get(address: SocketAddr, key: &str) -> String {
    let mut reply = ask(address, &format!("get {key}\r\n"), 3).expect("a reply");
    assert_eq!(reply.len(), 3, "{key} at {address}: {reply:?}");
    reply.swap_remove(1)
}

/// Waits until one leads and so many follow.
fn until_follow(cluster: &Supervisor<BoxCluster>, followers: usize) {
    let follow = retry(LIMIT, || {
        let nodes = cluster.status().nodes;
        let count = |state: &str| nodes.iter().filter(|node| node.state == state).count();
        ensure!(
            count("leading") == 1 && count("following") == followers,
            "{nodes:?}"
        );
        Ok(())
    });
    follow.expect("one leads and the others follow");
}

/// A node's place, from 0.
fn place(name: &str) -> usize {
    name["node/".len()..].parse::<usize>().expect("a number") - 1
}

fn a_minority_is_killed(nodes: u8) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), nodes, Quorum::Majority);
    let all = cluster.status().memcached;
    assert_eq!(all.len(), usize::from(nodes));
    for n in 0..KEYS {
        set(all[n % all.len()], &format!("k{n}"), &format!("v{n}"));
    }
    let spare = (usize::from(nodes) - 1) / 2;
    let kill = || {
        let kill = Request::Kill {
            role: "leader".into(),
            force: false,
        };
        // On a busy machine the leader may change at any moment.
        let killed = retry(LIMIT, || {
            match socket::done::<BoxCluster>(dir.path(), &kill) {
                Err(error) if format!("{error:#}").contains("no node leads now") => Err(error),
                killed_or_refused => Ok(killed_or_refused),
            }
        });
        killed.and_then(|killed_or_refused| killed_or_refused)
    };
    let mut alive: Vec<usize> = (0..all.len()).collect();
    let mut killed = Vec::new();
    for _ in 0..spare {
        let name = kill().expect("a majority is left");
        alive.retain(|node| *node != place(&name));
        killed.push(name);
        until_follow(&cluster, alive.len() - 1);
    }
    let refused = format!("{:#}", kill().expect_err("no majority would be left"));
    assert!(refused.contains("--force"), "{refused}");
    for n in 0..KEYS {
        let value = get(all[alive[n % alive.len()]], &format!("k{n}"));
        assert_eq!(value, format!("v{n}"));
    }
    set(all[alive[0]], "later", "yes");
    for name in &killed {
        cluster.restart(name).expect("restarted");
    }
    until_follow(&cluster, all.len() - 1);
    for address in &all {
        assert_eq!(get(*address, "later"), "yes");
    }
    retry(LIMIT, || {
        let nodes = cluster.status().nodes;
        let same = |node: &inband_box::process::Status| (node.applied, node.digest);
        let are_equal = nodes.iter().all(|node| same(node) == same(&nodes[0]));
        ensure!(are_equal, "{nodes:?}");
        Ok(())
    })
    .expect("equal machines");
    // What was read at a strong port is there at each local one, too, once all is applied.
    for address in cluster.status().memcached_local {
        assert_eq!(get(address, "later"), "yes");
    }
}

#[test]
fn four_nodes_lose_one() {
    a_minority_is_killed(4);
}

#[test]
fn five_nodes_lose_two() {
    a_minority_is_killed(5);
}

#[test]
fn seven_nodes_lose_three() {
    a_minority_is_killed(7);
}

/// With the quorum of all no write is answered while a node is down; reads are.
#[test]
fn all_nodes_must_have_a_write_if_told_so() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), 3, Quorum::All);
    let all = cluster.status().memcached;
    set(all[0], "before", "1");
    let followers = cluster.status().nodes.into_iter();
    let mut followers = followers.filter(|node| node.state == "following");
    let follower = followers.next().expect("two follow").name;
    cluster.kill(&follower).expect("killed");
    let alive = all[(place(&follower) + 1) % 3];
    assert_eq!(get(alive, "before"), "1");
    let mut waits = TcpStream::connect(alive).expect("connected");
    waits.write_all(b"set during 0 0 1\r\n2\r\n").expect("sent");
    let timeout = Some(Duration::from_millis(300));
    waits.set_read_timeout(timeout).expect("a timeout");
    let error = waits.read(&mut [0; 64]).expect_err("no reply");
    let is_silent = [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind());
    assert!(is_silent, "{error}");
    cluster.restart(&follower).expect("restarted");
    until_follow(&cluster, 2);
    set(alive, "after", "3");
    for address in &all {
        assert_eq!(get(*address, "after"), "3");
    }
}
