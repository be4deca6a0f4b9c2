//! All nodes of consensus in a box are restarted one after another while clients write.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use inband_cluster::box_cluster::{BoxCluster, Options};
use inband_cluster::command::roll;

use crate::boxes::{self, get, options, set, start, sync, until_states_are};

/// Writes at these nodes in turn until told to stop. Returns which writes were acknowledged.
fn writes(all: &[SocketAddr], stop: &AtomicBool) -> Vec<usize> {
    let mut acknowledged = Vec::new();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let done = set(all[n % all.len()], &format!("w{n}"), &format!("{n}"));
        if done.is_ok() {
            acknowledged.push(n);
        }
    }
    acknowledged
}

fn rolls(options: Options) {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), options).expect("a new cluster");
    let all = cluster.status().memcached;
    let pids = || {
        let processes = cluster.status().processes;
        let pids = processes.into_iter().map(|process| process.pid);
        pids.collect::<Option<Vec<u32>>>().expect("all run")
    };
    let before = pids();
    let led = boxes::leader(&cluster);
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (all, stop) = (all.clone(), Arc::clone(&stop));
        std::thread::spawn(move || writes(&all, &stop))
    };
    let mut said = Vec::new();
    roll::<BoxCluster>(dir.path(), |line| said.push(line)).expect("each is back");
    stop.store(true, Ordering::Relaxed);
    let acknowledged = writer.join().expect("it does not panic");
    assert_eq!(said.len(), 3);
    assert!(said[2].contains(&led), "the leader is the last: {said:?}");
    assert!(pids().iter().all(|pid| !before.contains(pid)), "{said:?}");
    until_states_are(&cluster, &["following", "following", "leading"]);
    assert!(acknowledged.len() > 10, "{}", acknowledged.len());
    for n in acknowledged {
        let at = all[(n + 1) % all.len()];
        let value = get(at, &format!("w{n}")).expect("found");
        assert_eq!(value, n.to_string(), "at {at}");
    }
}

#[test]
fn all_nodes_are_restarted_while_clients_write() {
    rolls(options());
}

#[test]
fn all_nodes_with_logs_on_disk_are_restarted_while_clients_write() {
    rolls(sync());
}

#[test]
fn no_node_is_restarted_while_another_is_down() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), options()).expect("a new cluster");
    let pids = || {
        let processes = cluster.status().processes;
        processes.into_iter().map(|p| p.pid).collect::<Vec<_>>()
    };
    cluster.kill("node/2").expect("it runs");
    let before = pids();
    let refused = roll::<BoxCluster>(dir.path(), |_| {}).expect_err("node 2 is down");
    let refused = format!("{refused:#}");
    assert!(
        refused.contains("cannot be spared") && refused.contains("node/2 does not follow"),
        "{refused}"
    );
    assert_eq!(pids(), before);
}
