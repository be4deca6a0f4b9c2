//! Faults on a real cluster in namespaces, under a client that records every reply.

use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::{check, lab_works, progress, Client, Cluster, Load};
use inband_cluster::paxos::supervisor::HostEntry;
use inband_cluster::paxos::{ClusterSpec, ClusterStatus, LeaderLayout};
use inband_ground::auth::sign;
use inband_lab::{DropRule, LinkFaults};
use inband_paxos::config::{Dataplane, Durability};
use inband_paxos::dataplane::wire::{self, Header, Type};

/// Time limit on a busy two-core machine for what takes milliseconds on an idle one.
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn an_acceptor_is_killed_and_no_request_fails() {
    if !lab_works() {
        return;
    }
    let cluster = Cluster::start("acc", Dataplane::Xdp, |_| {});
    let load = Load::start(&[cluster.resp()], 4);
    load.run_for(500);
    cluster.supervisor.kill("acceptor/1").unwrap();
    load.run_for(1000);
    let records = load.stop();
    let pause = records.iter().map(|r| r.longest_pause).max().unwrap();
    println!(
        "one of three acceptors killed: longest pause {} ms (goal 100)",
        pause.as_millis()
    );
    for record in &records {
        assert!(
            record.failed.is_empty() && record.unknown.is_empty(),
            "{:?}",
            record.failed
        );
    }
    check(cluster.resp(), &records);

    // Restarted with empty memory it votes again only in a later epoch.
    let epoch = cluster.status().epoch;
    cluster.supervisor.restart("acceptor/1").unwrap();
    cluster.wait_until_all_vote(TIMEOUT);
    assert!(cluster.status().epoch > epoch);
    assert_eq!(
        Client::connect(cluster.resp()).call(&["SET", "after", "restart"]),
        "+OK"
    );
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn the_leader_is_killed_and_a_backup_takes_over() {
    if !lab_works() {
        return;
    }
    let cluster = Cluster::start("lead", Dataplane::Xdp, |_| {});
    let load = Load::start(
        &[cluster.replica(0), cluster.replica(1), cluster.replica(2)],
        6,
    );
    load.run_for(500);
    // On a busy machine a replica may lead by now.
    let old = cluster.supervisor.kill("leader").unwrap();
    let killed = Instant::now();
    cluster.wait_for("a backup leads", TIMEOUT, |status| {
        status.leader(0).is_some_and(|l| l != old)
    });
    println!(
        "leader killed: status shows a new one after {} ms",
        killed.elapsed().as_millis()
    );
    load.run_for(1000);
    let records = load.stop();
    let pause = records.iter().map(|r| r.longest_pause).max().unwrap();
    println!(
        "leader killed: longest pause of a client {} ms",
        pause.as_millis()
    );
    let checked = check(cluster.resp(), &records);
    println!("{checked} acknowledged SETs read back");

    // Again: the backup's backup.
    let load = Load::start(&[cluster.resp()], 2);
    cluster.supervisor.restart("leader").unwrap();
    load.run_for(500);
    load.stop();
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn all_2as_of_a_full_window_are_lost() {
    if !lab_works() {
        return;
    }
    let cluster = Cluster::start("window", Dataplane::Xdp, |spec| spec.ring_slots = 64);
    let lab = cluster.supervisor.lab().unwrap();
    let load = Load::start(
        &[cluster.replica(0), cluster.replica(1), cluster.replica(2)],
        12,
    );
    load.run_for(300);
    let rule = DropRule {
        udp_port: cluster.status().hosts[0].address.port(),
        message_type: Type::Phase2A as u8,
        from_hosts: Vec::new(),
        to_hosts: Vec::new(),
    };
    let rule = lab.add_drop_rule(&rule).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    lab.remove_drop_rule(rule).unwrap();
    let healed = Instant::now();
    let before = cluster.progress();
    cluster.wait_for("decisions go on", TIMEOUT, |status| {
        progress(status) > before + 100
    });
    println!(
        "all PHASE2A lost for 400 ms: 100 more instances {} ms after",
        healed.elapsed().as_millis()
    );
    load.run_for(300);
    let records = load.stop();
    check(cluster.resp(), &records);
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn a_killed_replica_catches_up_after_more_than_a_ring() {
    if !lab_works() {
        return;
    }
    let cluster = Cluster::start("rep", Dataplane::Xdp, |spec| spec.ring_slots = 256);
    cluster.supervisor.kill("replica/2").unwrap();
    let before = cluster.progress();
    let load = Load::start(&[cluster.replica(0), cluster.replica(1)], 8);
    cluster.wait_for("more than a ring of instances", TIMEOUT, |status| {
        progress(status) > before + 1000
    });
    cluster.supervisor.restart("replica/2").unwrap();
    load.run_for(500);
    let records = load.stop();
    cluster.wait_until_equal(TIMEOUT);
    // It serves what was written while it was dead.
    check(cluster.replica(2), &records);
    cluster.down_and_compare();
}

#[test]
fn a_replica_further_behind_than_its_peers_logs_copies_a_checkpoint() {
    if !lab_works() {
        return;
    }
    let cluster = Cluster::start("check", Dataplane::Xdp, |spec| {
        spec.ring_slots = 256;
        spec.limits.peer_log_values = 256;
    });
    cluster.supervisor.kill("replica/2").unwrap();
    let before = cluster.progress();
    let load = Load::start(&[cluster.replica(0), cluster.replica(1)], 8);
    cluster.wait_for("more than a peer's log of instances", TIMEOUT, |status| {
        progress(status) > before + 1500
    });
    let records = load.stop();
    cluster.supervisor.restart("replica/2").unwrap();
    cluster.wait_until_equal(TIMEOUT);
    assert_eq!(cluster.counter("replica/2", "kv_checkpoints_installed"), 1);
    check(cluster.replica(2), &records);
    cluster.down_and_compare();
}

const PARTITIONS: u32 = 4;
/// The partitions' logs and log M.
const LOGS: usize = PARTITIONS as usize + 1;

/// A cluster of four partitions whose leaders have their own hosts.
fn partitioned(name: &str, change: impl FnOnce(&mut ClusterSpec)) -> Cluster {
    Cluster::start(name, Dataplane::Xdp, |spec| {
        spec.partitions = PARTITIONS;
        spec.leader = LeaderLayout::OwnHosts(vec![Dataplane::Auto; PARTITIONS as usize]);
        change(spec);
    })
}

/// Writes numbered pairs of keys in different partitions, each pair in one command.
struct Pairs {
    stop: Arc<AtomicBool>,
    client: JoinHandle<u64>,
}

impl Pairs {
    fn start(address: SocketAddr) -> Pairs {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let client = std::thread::spawn(move || {
            let mut client = Client::connect(address);
            let mut number = 0;
            while !stopped.load(Ordering::Acquire) {
                let value = (number + 1).to_string();
                let reply = client.call(&["MSET", "left", &value, "right", &value]);
                assert_eq!(reply, "+OK", "pair {value}");
                number += 1;
            }
            number
        });
        Pairs { stop, client }
    }

    /// The last pair is complete.
    fn stop_and_check(self, address: SocketAddr) {
        self.stop.store(true, Ordering::Release);
        let last = self.client.join().expect("every pair was written");
        assert!(last > 0, "no pair was written at all");
        let both = Client::connect(address).call(&["MGET", "left", "right"]);
        assert_eq!(both, format!("{last} {last}"));
    }
}

#[test]
fn of_four_partitions_an_acceptor_is_killed_and_no_request_fails() {
    if !lab_works() {
        return;
    }
    let cluster = partitioned("acc4", |_| {});
    let load = Load::start(&[cluster.replica(0), cluster.replica(1)], 6);
    let pairs = Pairs::start(cluster.replica(2));
    load.run_for(500);
    cluster.supervisor.kill("acceptor/1").unwrap();
    load.run_for(1000);
    let records = load.stop();
    pairs.stop_and_check(cluster.resp());
    for record in &records {
        assert!(
            record.failed.is_empty() && record.unknown.is_empty(),
            "{record:?}"
        );
    }
    check(cluster.resp(), &records);
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn of_four_partitions_each_leader_is_killed_in_turn() {
    if !lab_works() {
        return;
    }
    let cluster = partitioned("lead4", |_| {});
    let load = Load::start(
        &[cluster.replica(0), cluster.replica(1), cluster.replica(2)],
        6,
    );
    let pairs = Pairs::start(cluster.replica(2));
    load.run_for(300);
    for log in 0..LOGS {
        let old = cluster.leader(log);
        // Replicas that took over continue; clients are connected to them.
        if old.starts_with("replica") {
            continue;
        }
        let role = match log + 1 {
            LOGS => "leader:M".to_owned(),
            _ => format!("leader:{log}"),
        };
        let killed = Instant::now();
        // On a busy machine another host may lead by now.
        let old = cluster.supervisor.kill(&role).unwrap();
        cluster.wait_for("every log has a living leader", TIMEOUT, |status| {
            (0..LOGS).all(|log| status.leader(log).is_some_and(|l| l != old))
        });
        println!(
            "{old} killed: all logs are led again after {} ms",
            killed.elapsed().as_millis()
        );
        cluster.supervisor.restart(&role).unwrap();
    }
    let records = load.stop();
    pairs.stop_and_check(cluster.resp());
    check(cluster.resp(), &records);
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn of_four_partitions_a_killed_replica_catches_up() {
    if !lab_works() {
        return;
    }
    let cluster = partitioned("rep4", |spec| {
        spec.ring_slots = 256;
        spec.limits.peer_log_values = 256;
    });
    let load = Load::start(&[cluster.replica(0), cluster.replica(1)], 8);
    let pairs = Pairs::start(cluster.replica(0));
    load.run_for(300);
    cluster.supervisor.kill("replica/2").unwrap();
    let before = cluster.progress();
    // More than peers keep: some of the partitions need a checkpoint, others the log.
    cluster.wait_for("the others go on", TIMEOUT, |status| {
        progress(status) > before + 3000
    });
    cluster.supervisor.restart("replica/2").unwrap();
    load.run_for(300);
    let records = load.stop();
    pairs.stop_and_check(cluster.replica(1));
    cluster.wait_until_equal(TIMEOUT);
    check(cluster.replica(2), &records);
    cluster.down_and_compare();
}

/// Restarts hosts one after another, under clients that continue at another replica when theirs is restarted. Nothing
/// acknowledged is lost.
fn rolled(name: &str, durability: Durability) {
    let cluster = partitioned(name, |spec| spec.durability = durability);
    let load = Load::start(
        &[cluster.replica(0), cluster.replica(1), cluster.replica(2)],
        6,
    );
    load.run_for(300);
    let hosts = cluster.status().hosts;
    for host in &hosts {
        let began = Instant::now();
        cluster.supervisor.roll(&host.name, TIMEOUT).unwrap();
        println!(
            "{} is back after {} ms",
            host.name,
            began.elapsed().as_millis()
        );
    }
    let records = load.stop();
    let pause = records.iter().map(|r| r.longest_pause).max().unwrap();
    println!("longest pause of a client: {} ms", pause.as_millis());
    check(cluster.resp(), &records);
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn all_hosts_are_rolled_under_load_in_memory_mode() {
    if lab_works() {
        rolled("roll", Durability::Memory);
    }
}

#[test]
fn all_hosts_are_rolled_under_load_in_sync_mode() {
    if lab_works() {
        rolled("rollsync", Durability::Sync);
    }
}

fn loss(name: &str, percent: u32) {
    let cluster = Cluster::start(name, Dataplane::Xdp, |_| {});
    cluster
        .supervisor
        .lab()
        .unwrap()
        .set_all_links(LinkFaults::loss(percent * 10_000))
        .unwrap();
    let load = Load::start(
        &[cluster.replica(0), cluster.replica(1), cluster.replica(2)],
        6,
    );
    load.run_for(2500);
    let records = load.stop();
    cluster.supervisor.lab().unwrap().heal().unwrap();
    for record in &records {
        assert!(
            record.failed.is_empty() && record.unknown.is_empty(),
            "{record:?}"
        );
    }
    let checked = check(cluster.resp(), &records);
    println!("{percent}% loss on every link: all of {checked} SETs finished");
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn one_percent_loss_on_every_link() {
    if lab_works() {
        loss("loss1", 1);
    }
}

#[test]
fn ten_percent_loss_on_every_link() {
    if lab_works() {
        loss("loss10", 10);
    }
}

#[test]
fn two_leaders_at_once() {
    if !lab_works() {
        return;
    }
    let cluster = Cluster::start("two", Dataplane::Xdp, |_| {});
    let load = Load::start(
        &[cluster.replica(0), cluster.replica(1), cluster.replica(2)],
        6,
    );
    load.run_for(400);
    let old = cluster.supervisor.pause("leader").unwrap();
    cluster.wait_for("a backup leads", TIMEOUT, |status| {
        let leads = |h: &&HostEntry| {
            h.name != old
                && h.status
                    .as_ref()
                    .and_then(|s| s.leaders.first())
                    .is_some_and(|l| l.active)
        };
        status.hosts.iter().any(|h| leads(&h))
    });
    load.run_for(300);
    // All held packets, requests and votes of the old round, are released at once.
    cluster.supervisor.resume(&old).unwrap();
    load.run_for(800);
    let records = load.stop();
    check(cluster.resp(), &records);
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn malformed_packets_of_every_kind_are_counted_and_harmless() {
    if !lab_works() {
        return;
    }
    // With a key, a stranger's packets would not get this far; see keys.rs.
    let cluster = Cluster::start("bad", Dataplane::Xdp, |spec| spec.authenticated = false);
    let load = Load::start(&[cluster.resp()], 2);
    let hosts = cluster.status().hosts;
    let lab = cluster.supervisor.lab().unwrap();
    let from = lab.host("replica/2").unwrap();
    let targets: Vec<SocketAddrV4> = hosts.iter().map(|h| h.address).collect();
    let sent = from
        .namespace()
        .run(|| Ok::<u64, inband_lab::LabError>(throw(&targets)))
        .expect("the namespace can be entered");
    load.run_for(300);
    let records = load.stop();
    for record in &records {
        assert!(
            record.failed.is_empty() && record.unknown.is_empty(),
            "{record:?}"
        );
    }
    check(cluster.resp(), &records);
    for host in hosts.iter().filter(|h| h.name != "replica/2") {
        for counter in [
            "bad_truncated",
            "bad_magic",
            "bad_version",
            "bad_type",
            "bad_length",
            "bad_partition",
            "bad_node",
        ] {
            // Hosts publish their counters at intervals.
            let is_counted = |status: &ClusterStatus| {
                let mut hosts = status.hosts.iter();
                let said = hosts.find(|h| h.name == host.name);
                let said = said.and_then(|host| host.status.as_ref());
                said.is_some_and(|said| said.counters.get(counter).is_some_and(|n| *n > 0))
            };
            let what = format!("{}: {counter} is counted", host.name);
            cluster.wait_for(&what, TIMEOUT, is_counted);
        }
    }
    println!("{sent} malformed packets thrown at {} hosts", targets.len());
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

/// Every type, damaged in every way that the parser detects, and well-formed nonsense.
fn throw(targets: &[SocketAddrV4]) -> u64 {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let mut sent = 0;
    for target in targets {
        let mut send = |bytes: &[u8]| sent += u64::from(socket.send_to(bytes, target).is_ok());
        for kind in Type::ALL {
            let mut header = Header::new(kind, 250, 1);
            header.digest = wire::digest(b"nonsense");
            let mut good = Vec::new();
            wire::emit(&header, b"nonsense", &mut good);
            sign(None, &mut good);
            for (at, byte) in [
                (0, 0),
                (4, 0),
                (4, 99),
                (5, 0),
                (5, 200),
                (8, 0xff),
                (10, 0xff),
                (12, 0xff),
            ] {
                let mut bad = good.clone();
                bad[at] = byte;
                send(&bad);
            }
            for len_bytes in [0, 1, 41, 95, 96, 97, good.len() - 1] {
                send(&good[..len_bytes.min(good.len())]);
            }
            let mut longer = good.clone();
            longer.extend_from_slice(&[0; 7]);
            send(&longer);
            // Well-formed, from a stranger, about absurd instances, rounds, floors and epochs of others.
            header.epoch = 77;
            header.instance = u64::MAX;
            header.floor = u64::MAX;
            let mut absurd = Vec::new();
            wire::emit(&header, b"nonsense", &mut absurd);
            sign(None, &mut absurd);
            send(&absurd);
        }
    }
    sent
}
