//! A cluster of consensus in a box whose quorum and members change, and one that is stopped and goes on.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_box::durable::Durability;
use inband_box::membership::{Change, Membership};
use inband_box::process::Status;
use inband_box::stored::PROMISED;
use inband_cluster::box_cluster::{self, BoxCluster, Options, Quorum};
use inband_cluster::scratch::retry;
use inband_cluster::supervisor::Supervisor;
use inband_host::config::Dataplane;
use inband_testing::port::{free_ports, loopback};

use crate::boxes::{
    self, ask, get, options, set, start, sync, until_states_are, until_states_are_of, KEYS, LIMIT,
};

/// Clients write at one of its nodes until told to stop. Returns how many writes were answered.
fn writes_at(address: SocketAddr) -> (Arc<AtomicBool>, JoinHandle<Result<usize>>) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let writer = std::thread::spawn(move || {
        let mut n = 0;
        while !stopped.load(Ordering::Relaxed) {
            set(address, &format!("w{n}"), &format!("{n}"))?;
            n += 1;
        }
        Ok(n)
    });
    (stop, writer)
}

#[test]
fn quorum_and_members_change_while_clients_write() {
    change_everything(Dataplane::Udp);
}

#[test]
fn quorum_and_members_change_while_clients_write_and_the_kernel_serves() {
    if inband_testing::frame::may_load_bpf() {
        change_everything(Dataplane::Xdp);
    }
}

fn change_everything(dataplane: Dataplane) {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let options = Options {
        memcached: loopback(free_ports(7)),
        dataplane,
        ..options()
    };
    let first = options.memcached;
    let at = |id: u8| SocketAddr::new(first.ip(), first.port() + u16::from(id) - 1);
    let cluster = start(dir, options).expect("a new cluster");
    let state_of = |name: &str| {
        let nodes = cluster.status().nodes;
        let node = nodes.into_iter().find(|node| node.name == name);
        node.map(|node| node.state)
    };
    let leader = || boxes::leader(&cluster);
    let number = |name: &str| -> u8 { name["node/".len()..].parse().expect("a number") };
    let writes_with = (1..=3).find(|id| *id != number(&leader())).expect("two");
    let (stop, writer) = writes_at(at(writes_with));
    let switch = |quorum, force| box_cluster::change(dir, Change::Quorum { quorum, force });
    // On a busy machine nobody may lead for a moment, which is a reason to refuse.
    let switched = |quorum, force| retry(LIMIT, || switch(quorum, force));
    // On a busy machine another node may lead by the time that the change is late, and the message says that.
    let waits_for = |dead: &str| {
        let names_it = retry(LIMIT, || {
            let late = switch(Quorum::Majority, false).unwrap_err().to_string();
            ensure!(late.contains(dead) && late.contains("--force"), "{late}");
            Ok(())
        });
        names_it.expect("the refusal names the dead node");
    };

    let now = switched(Quorum::All, false).expect("all are there");
    assert_eq!((now.quorum, now.members), (Quorum::All, 0b1110));
    // The first joins under `all`.
    for id in 4..=7 {
        let name = box_cluster::add(dir).expect("it joins");
        assert_eq!(name, format!("node/{id}"));
        assert_eq!(get(at(id), "w0").expect("found"), "0", "{name}");
        if id == 4 {
            switched(Quorum::Majority, false).expect("all are there");
        }
    }
    let full = box_cluster::add(dir).unwrap_err().to_string();
    assert!(full.contains("no place"), "{full}");
    let mut members: Vec<u8> = (1..=7).collect();
    while members.len() > 3 {
        let leads = number(&leader());
        let goes = match leads == writes_with {
            true => members.iter().copied().find(|id| *id != leads),
            false => Some(leads),
        };
        let goes = goes.expect("there are several");
        // On a busy machine the others may be behind at first.
        let leaves = || box_cluster::remove(dir, &format!("node/{goes}"));
        retry(LIMIT, leaves).expect("it leaves");
        members.retain(|id| *id != goes);
        until_states_are_of(&cluster, &members);
    }
    // On a busy machine the others may be behind, which is another reason.
    let are_few = retry(LIMIT, || {
        let few = box_cluster::remove(dir, &leader()).unwrap_err().to_string();
        ensure!(few.contains("the fewest"), "{few}");
        Ok(())
    });
    are_few.expect("no one can be removed");
    // Neither those that were removed nor the places for others.
    let names: Vec<String> = members.iter().map(|id| format!("node/{id}")).collect();
    let there = format!("there are leader, {}", names.join(", "));
    // On a busy machine the node that was removed last may be listed at first.
    let are_named = retry(LIMIT, || {
        let unknown = format!("{:#}", cluster.kill("node/9").expect_err("no node"));
        ensure!(unknown.ends_with(&there), "{unknown}");
        Ok(())
    });
    are_named.expect("the message names the members");

    switched(Quorum::All, false).expect("all are there");
    stop.store(true, Ordering::Relaxed);
    let written = writer.join().expect("it does not panic");
    let written = written.expect("each write is answered");
    assert!(written > KEYS, "{written}");
    for id in &members {
        for n in 0..written {
            let value = get(at(*id), &format!("w{n}")).expect("found");
            assert_eq!(value, n.to_string(), "at node/{id}");
        }
    }
    // On a busy machine nobody may follow for a moment.
    let follower = retry(LIMIT, || {
        let mut names = names.iter();
        let follows = |name: &&String| state_of(name).as_deref() == Some("following");
        names.find(follows).cloned().context("nobody follows")
    });
    let dies = follower.expect("two follow");
    cluster.kill(&dies).expect("it runs");
    waits_for(&dies);
    let now = switched(Quorum::Majority, true).expect("two of three are there");
    assert_eq!(now.quorum, Quorum::Majority);
    let alive = number(&leader());
    set(at(alive), "later", "yes").expect("stored by two of three");

    // The leader dies: the next one is not established without every node.
    cluster.restart(&dies).expect("restarted");
    until_states_are_of(&cluster, &members);
    switched(Quorum::All, false).expect("all are there");
    let led = leader();
    cluster.kill(&led).expect("it runs");
    waits_for(&led);
    switched(Quorum::Majority, true).expect("two of three are there");
    let alive = number(&leader());
    set(at(alive), "latest", "yes").expect("stored by two of three");
}

/// Starts a switch to the quorum of all that waits for one follower, and kills the leader. Returns the killed leader and
/// the switch; the follower is there again.
fn a_switch_loses_its_leader(
    cluster: &Supervisor<BoxCluster>,
    data: &Path,
) -> (String, JoinHandle<Result<Membership>>) {
    let leader = boxes::leader(cluster);
    let mut others = (1..=3).map(|id| format!("node/{id}"));
    let behind = others.find(|name| *name != leader).expect("two follow");
    // The leader waits for this one.
    cluster.pause(&behind).expect("it runs");
    let data = data.to_owned();
    let (quorum, force) = (Quorum::All, false);
    let change = Change::Quorum { quorum, force };
    let switching = std::thread::spawn(move || box_cluster::change(&data, change));
    let waits = retry(LIMIT, || {
        let nodes = cluster.status().nodes;
        let mut leading = nodes.iter().filter(|node| node.name == leader);
        let is_waiting = leading.any(|node| node.changes_to.is_some());
        ensure!(is_waiting, "{nodes:?}");
        Ok(())
    });
    waits.expect("the change is in flight");
    cluster.kill(&leader).expect("it runs");
    cluster.resume(&behind).expect("it is paused");
    (leader, switching)
}

/// The operator's request is passed to the next leader.
#[test]
fn a_quorum_is_switched_although_the_leader_dies_meanwhile() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), options()).expect("a new cluster");
    let (leader, switching) = a_switch_loses_its_leader(&cluster, dir.path());
    cluster.restart(&leader).expect("restarted");
    let now = switching.join().expect("it does not panic");
    assert_eq!(now.expect("the next leader does it").quorum, Quorum::All);
    until_states_are(&cluster, &["following", "following", "leading"]);
}

/// The switch is in the next leader's log and not committed, so that `inband status` shows the former quorum.
#[test]
fn an_operator_is_told_how_to_undo_a_switch_that_waits_for_a_dead_node() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), options()).expect("a new cluster");
    let (leader, switching) = a_switch_loses_its_leader(&cluster, dir.path());
    let waits = switching.join().expect("it does not panic");
    let mut waits = waits.expect_err("a node is dead").to_string();
    if !waits.contains(&leader) {
        // On a slow machine it is given up before the leader is killed; the next one finds the same.
        let (quorum, force) = (Quorum::All, false);
        let again = box_cluster::change(dir.path(), Change::Quorum { quorum, force });
        waits = again.expect_err("a node is dead").to_string();
    }
    assert!(
        waits.contains("--force") && waits.contains(&leader),
        "{waits}"
    );
    let (quorum, force) = (Quorum::Majority, true);
    let back = box_cluster::change(dir.path(), Change::Quorum { quorum, force });
    assert_eq!(back.expect("two of three decide").quorum, quorum);
}

/// With two of five nodes dead, three of the four that would be left could not commit the removal.
#[test]
fn no_member_is_removed_while_too_few_of_the_others_are_alive() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options {
        nodes: 5,
        durability: Durability::Sync,
        memcached: loopback(free_ports(7)),
        ..options()
    };
    let memcached = options.memcached;
    let cluster = start(dir.path(), options).expect("a new cluster");
    let leader = boxes::leader(&cluster);
    let others = (1..=5).map(|id| format!("node/{id}"));
    let followers: Vec<String> = others.filter(|name| *name != leader).collect();
    for name in &followers[..2] {
        cluster.kill(name).expect("it runs");
    }
    // Longer than the leader counts on a node that it does not hear.
    std::thread::sleep(Duration::from_secs(2));
    // On a busy machine nobody may lead for a moment, which is another reason.
    let is_refused = retry(LIMIT, || {
        let refused = box_cluster::remove(dir.path(), &followers[2]).unwrap_err();
        ensure!(refused.to_string().contains("too few"), "{refused}");
        Ok(())
    });
    is_refused.expect("the reason");
    let leader = boxes::leader(&cluster);
    let id = leader["node/".len()..].parse::<u16>().expect("a number");
    let at = SocketAddr::new(memcached.ip(), memcached.port() + id - 1);
    set(at, "k", "v").expect("stored by three of five");
}

/// Node 4 of the former cluster had a log, and a promise.
#[test]
fn after_a_loss_was_accepted_a_node_joins_from_an_empty_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let given = sync();
    let first = given.memcached;
    let fourth = SocketAddr::new(first.ip(), first.port() + 3);
    let cluster = start(dir.path(), given.clone()).expect("a new cluster");
    for round in 0..30 {
        set(first, "former", &round.to_string()).expect("stored");
    }
    assert_eq!(box_cluster::add(dir.path()).expect("it joins"), "node/4");
    assert_eq!(get(fourth, "former").expect("found"), "29");
    drop(cluster);
    let accept = Options {
        accept_loss: true,
        ..given
    };
    let cluster = start(dir.path(), accept).expect("told to begin with an empty table");
    let promised = dir.path().join("hosts/node-4").join(PROMISED);
    assert!(!promised.exists(), "it has forgotten the former cluster");
    set(first, "new", "1").expect("stored");
    assert_eq!(box_cluster::add(dir.path()).expect("it joins"), "node/4");
    assert_eq!(get(fourth, "new").expect("found"), "1");
    assert_eq!(ask(fourth, "get former\r\n", 1).expect("a reply"), ["END"]);
    drop(cluster);
}

/// It has no directory yet, or no log: nothing is lost by that.
#[test]
fn a_cluster_that_was_stopped_while_a_node_joins_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let given = sync();
    let cluster = start(dir.path(), given.clone()).expect("a new cluster");
    set(given.memcached, "k", "v").expect("stored");
    let now = box_cluster::change(dir.path(), Change::Add).expect("all are there");
    assert_eq!(now.joining, 4);
    drop(cluster);
    let cluster = start(dir.path(), given.clone()).expect("it goes on");
    assert_eq!(get(given.memcached, "k").expect("found"), "v");
    until_states_are_of(&cluster, &[1, 2, 3, 4]);
    let joined = retry(LIMIT, || {
        let nodes = cluster.status().nodes;
        let is_member = |node: &Status| node.membership.is_member(4);
        ensure!(nodes.iter().all(is_member), "{nodes:?}");
        Ok(())
    });
    joined.expect("node/4 is a member");
    drop(cluster);

    // As it was read by the version before.
    let members = dir.path().join("members.json");
    std::fs::write(&members, "[1,2,3,4]").expect("written");
    let cluster = start(dir.path(), given).expect("it goes on");
    until_states_are_of(&cluster, &[1, 2, 3, 4]);
}

/// A founding node, one that has joined since, and the file of an earlier moment: the others have the log.
#[test]
fn a_cluster_goes_on_without_a_node_whose_directory_was_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let given = sync();
    let at = |node: u16| SocketAddr::new(given.memcached.ip(), given.memcached.port() + node - 1);
    let lose = |node: &str| {
        std::fs::remove_dir_all(dir.path().join("hosts").join(node)).expect("it was there");
    };
    let cluster = start(dir.path(), given.clone()).expect("a new cluster");
    set(at(1), "k", "1").expect("stored");
    drop(cluster);
    lose("node-1");
    let cluster = start(dir.path(), given.clone()).expect("two of three go on");
    assert_eq!(get(at(2), "k").expect("found"), "1");
    set(at(3), "k", "2").expect("stored");
    assert_eq!(box_cluster::add(dir.path()).expect("it joins"), "node/4");
    let leaves = || box_cluster::remove(dir.path(), "node/1");
    retry(LIMIT, leaves).expect("removed");
    assert_eq!(box_cluster::add(dir.path()).expect("it joins"), "node/5");
    drop(cluster);

    lose("node-5");
    let members = dir.path().join("members.json");
    // Node 1 was removed, and node 5 has become a member.
    std::fs::write(&members, r#"{"reach": [1, 2, 3, 4, 5], "joining": 5}"#).expect("written");
    let cluster = start(dir.path(), given.clone()).expect("three of four go on");
    assert_eq!(get(at(4), "k").expect("found"), "2");
    drop(cluster);

    let more = Options { nodes: 5, ..given };
    let refused = start(dir.path(), more).map(drop).unwrap_err();
    assert!(
        format!("{refused:#}").contains("give as many as then"),
        "{refused:#}"
    );
}

/// Nothing was acknowledged.
#[test]
fn a_first_start_with_sync_may_be_interrupted() {
    let dir = tempfile::tempdir().expect("a directory");
    let own = dir.path().join("hosts/node-1");
    std::fs::create_dir_all(&own).expect("made");
    for (name, number) in [
        ("new-id", "5"),
        ("session", "1"),
        ("has-log", "1"),
        ("promised", "33"),
    ] {
        std::fs::write(own.join(name), number).expect("written");
    }
    let given = sync();
    let cluster = start(dir.path(), given.clone()).expect("all nodes are new");
    set(given.memcached, "k", "1").expect("stored");
    drop(cluster);

    // An accepted loss, while the directories are being removed.
    let moved = dir.path().join("hosts.removed");
    std::fs::rename(dir.path().join("hosts"), &moved).expect("moved");
    std::fs::remove_dir_all(moved.join("node-2")).expect("removed");
    let cluster = start(dir.path(), given.clone()).expect("all nodes are new");
    assert_eq!(
        ask(given.memcached, "get k\r\n", 1).expect("a reply"),
        ["END"]
    );
    assert!(!moved.exists());
    drop(cluster);
}
