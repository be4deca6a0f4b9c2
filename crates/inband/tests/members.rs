//! Members fail, join and leave while clients write, and the control plane handles it.

mod common;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{check, lab_works, progress, Client, Cluster, Load, Record, PROGRAM};
use inband_cluster::paxos::{ClusterSpec, ClusterStatus, MemberKind, Supervisor};
use inband_control::coordinator::Waiting;
use inband_paxos::config::{Dataplane, Durability};

/// Time limit on a busy two-core machine for what takes a second on an idle one.
const TIMEOUT: Duration = Duration::from_secs(30);

fn run_for(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Load on two of the replicas: those that stay.
fn load(cluster: &Cluster) -> Load {
    Load::start(&[cluster.replica(0), cluster.replica(2)], 4)
}

/// Checks that no command failed or has an unknown outcome.
fn check_all_succeeded(cluster: &Cluster, records: &[Record]) {
    for record in records {
        let all_good = record.failed.is_empty() && record.unknown.is_empty();
        assert!(all_good, "{:?} {:?}", record.failed, record.unknown);
    }
    let pause = records.iter().map(|r| r.longest_pause).max().unwrap();
    let checked = check(cluster.resp(), records);
    println!(
        "{checked} SETs read back; longest pause of a client {} ms",
        pause.as_millis()
    );
}

fn timed<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = f();
    println!("{what}: {} ms", began.elapsed().as_millis());
    result
}

/// Acceptors are killed and restarted empty, one after another: each time the acceptor votes again by itself, so that
/// the cluster survives the next failure.
fn acceptors_fail_in_turn(name: &str, dataplane: Dataplane, partitions: u32) {
    let cluster = Cluster::start(name, dataplane, |spec| spec.partitions = partitions);
    let before = cluster.status().epoch;
    let load = load(&cluster);
    load.run_for(300);
    // The first is the one that leads the control plane.
    let leader = cluster.plane().leader;
    let mut acceptors = cluster.wait_until_all_vote(TIMEOUT);
    let status = cluster.status();
    let leading = status.hosts.iter().find(|h| h.id == leader).unwrap();
    acceptors.sort_by_key(|name| *name != leading.name);
    for acceptor in &acceptors {
        cluster.supervisor.kill(acceptor).unwrap();
        load.run_for(300);
        cluster.supervisor.restart(acceptor).unwrap();
        timed(&format!("{acceptor} votes again"), || {
            cluster.wait_until_all_vote(TIMEOUT);
        });
    }
    assert!(cluster.status().epoch >= before + 3);
    load.run_for(300);
    let records = load.stop();
    check_all_succeeded(&cluster, &records);
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

/// Nobody else may lead and no client writes, so the leader that takes over sends nothing.
#[test]
fn the_last_host_that_may_lead_leads_without_a_client() {
    if !lab_works() {
        return;
    }
    let cluster = Cluster::start("alone", Dataplane::Xdp, |_| {});
    for host in ["leader/0", "replica/0", "replica/1", "acceptor/0"] {
        // Waits until the log has a leader.
        cluster.supervisor.remove_member(host).expect(host);
    }
    assert_eq!(cluster.leader(0), "replica/2");
}

#[test]
fn acceptors_fail_in_turn_and_vote_again_by_themselves() {
    if lab_works() {
        acceptors_fail_in_turn("turn", Dataplane::Xdp, 2);
    }
}

#[test]
fn acceptors_in_user_space_fail_in_turn_and_vote_again() {
    acceptors_fail_in_turn("turnu", Dataplane::Udp, 1);
}

#[test]
fn an_acceptor_is_replaced_under_load_and_another_may_be_lost() {
    if !lab_works() {
        return;
    }
    let cluster = Cluster::start("repl", Dataplane::Xdp, |spec| spec.partitions = 2);
    let load = load(&cluster);
    load.run_for(300);
    // A dead one, then a live one.
    cluster.supervisor.kill("acceptor/0").unwrap();
    let new = timed("a dead acceptor is replaced", || {
        cluster.supervisor.replace_member("acceptor/0").unwrap()
    });
    assert_eq!(new, "acceptor/3");
    // The one that leads the control plane: the new one must still be able to reach it.
    let leader = cluster.plane().leader;
    let status = cluster.status();
    let leading = status.hosts.iter().find(|h| h.id == leader).unwrap();
    let new = timed(
        "the acceptor that leads the control plane is replaced",
        || cluster.supervisor.replace_member(&leading.name).unwrap(),
    );
    assert_eq!(new, "acceptor/4");
    let names = cluster.wait_until_all_vote(TIMEOUT);
    assert!(names.len() == 3 && names.contains(&new), "{names:?}");
    assert!(!names.contains(&leading.name), "{names:?}");
    // The new members work without the old ones.
    let stayed = names.iter().find(|name| **name != new).unwrap();
    cluster.supervisor.kill(stayed).unwrap();
    load.run_for(700);
    let records = load.stop();
    check_all_succeeded(&cluster, &records);
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

fn grow_and_shrink(name: &str, dataplane: Dataplane) {
    let cluster = Cluster::start(name, dataplane, |_| {});
    let load = load(&cluster);
    load.run_for(300);
    let add = |kind| timed("added", || cluster.supervisor.add_member(kind).unwrap());
    let remove = |name| {
        timed("removed", || {
            cluster.supervisor.remove_member(name).unwrap()
        })
    };
    assert_eq!(add(MemberKind::Acceptor), "acceptor/3");
    assert_eq!(add(MemberKind::Replica), "replica/3");
    assert_eq!(add(MemberKind::Acceptor), "acceptor/4");
    remove("acceptor/0");
    remove("replica/1");
    let names = cluster.wait_until_all_vote(TIMEOUT);
    let left = ["acceptor/1", "acceptor/2", "acceptor/3", "acceptor/4"];
    assert_eq!(names, left);
    load.run_for(300);
    let records = load.stop();
    check_all_succeeded(&cluster, &records);
    cluster.wait_until_equal(TIMEOUT);
    check(cluster.replica(3), &records);

    // A clean restart keeps the current members.
    let members = |cluster: &Cluster| {
        let hosts = cluster.status().hosts.into_iter();
        hosts.map(|h| (h.id, h.name, h.address)).collect::<Vec<_>>()
    };
    let before = members(&cluster);
    let epoch = cluster.status().epoch;
    let (cluster, _) = timed("down and up", || cluster.down_and_up(|_| {}));
    assert_eq!(members(&cluster), before);
    assert!(cluster.status().epoch > epoch);
    check(cluster.replica(3), &records);
    remove_last(&cluster);
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

/// After a start on existing data, members are added and removed as before.
fn remove_last(cluster: &Cluster) {
    cluster.supervisor.remove_member("acceptor/4").unwrap();
    let mut client = Client::connect(cluster.resp());
    assert_eq!(client.call(&["SET", "after", "all"]), "+OK");
}

#[test]
fn acceptors_and_replicas_are_added_and_removed_under_load() {
    if lab_works() {
        grow_and_shrink("grow", Dataplane::Xdp);
    }
}

#[test]
fn acceptors_and_replicas_are_added_and_removed_in_user_space() {
    grow_and_shrink("growu", Dataplane::Udp);
}

#[test]
fn a_replica_whose_disk_was_wiped_returns_under_a_new_id() {
    if !lab_works() {
        return;
    }
    let cluster = Cluster::start("wipe", Dataplane::Xdp, |spec| {
        spec.ring_slots = 256;
        spec.limits.peer_log_values = 256;
        spec.partitions = 2;
    });
    let load = load(&cluster);
    load.run_for(300);
    cluster.supervisor.kill("replica/1").unwrap();
    fs::remove_dir_all(cluster.dir.join("hosts/replica-1")).unwrap();
    load.run_for(700);
    let new = timed("the wiped replica is replaced", || {
        cluster.supervisor.replace_member("replica/1").unwrap()
    });
    assert_eq!(new, "replica/3");
    load.run_for(300);
    let records = load.stop();
    check_all_succeeded(&cluster, &records);
    cluster.wait_until_equal(TIMEOUT);
    check(cluster.replica(3), &records);
    assert!(cluster.status().hosts.iter().all(|h| h.name != "replica/1"));
    cluster.down_and_compare();
}

#[test]
fn the_cluster_decides_while_the_control_plane_is_down() {
    if !lab_works() {
        return;
    }
    let cluster = Cluster::start("plane", Dataplane::Xdp, |spec| spec.controllers = 3);
    let load = load(&cluster);
    load.run_for(300);
    let leader = cluster.plane().leader;
    let status = cluster.status();
    let leading = status.hosts.iter().find(|h| h.id == leader).unwrap();
    assert!(leading.name.starts_with("controller/"), "{}", leading.name);
    cluster.supervisor.kill(&leading.name).unwrap();
    timed("another controller leads", || {
        assert_ne!(cluster.plane().leader, leader);
    });
    // A majority is gone, and then an acceptor fails as well.
    let second = ["controller/0", "controller/1"].map(str::to_owned);
    let second = second.iter().find(|name| **name != leading.name).unwrap();
    cluster.supervisor.kill(second).unwrap();
    cluster.supervisor.kill("acceptor/1").unwrap();
    let before = cluster.progress();
    load.run_for(1500);
    cluster.wait_for("it decides", TIMEOUT, |status| {
        progress(status) > before + 100
    });
    let error = cluster.supervisor.add_member(MemberKind::Acceptor);
    assert!(error.is_err(), "nobody could have agreed to it");
    // Once it is back, it repairs what has happened meanwhile.
    cluster.supervisor.restart(&leading.name).unwrap();
    cluster.supervisor.restart(second).unwrap();
    cluster.supervisor.restart("acceptor/1").unwrap();
    timed("the acceptor votes again", || {
        cluster.wait_until_all_vote(TIMEOUT);
    });
    let records = load.stop();
    check_all_succeeded(&cluster, &records);
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn leaders_are_moved_under_load() {
    if !lab_works() {
        return;
    }
    let cluster = Cluster::start("move", Dataplane::Xdp, |spec| spec.partitions = 2);
    let load = load(&cluster);
    load.run_for(300);
    let epoch = cluster.status().epoch;
    // Again if another one has taken over meanwhile: a leader that stalls is suspected.
    let moved = |log, to: &str, is_so: &dyn Fn(&ClusterStatus) -> bool| {
        cluster.wait_for("it leads", TIMEOUT, |status| {
            is_so(status) || {
                cluster.supervisor.move_leader(log, to).unwrap();
                false
            }
        });
    };
    let others_stay = |_| {
        timed("all leaders moved", || {
            moved(None, "replica/1", &|status| {
                let mut leaders = status.leaders.iter();
                leaders.all(|l| l.as_deref() == Some("replica/1"))
            });
        });
        timed("one leader moved", || {
            moved(Some(0), "leader/0", &|status| {
                status.leader(0) == Some("leader/0")
            });
        });
        cluster.leader(1) == "replica/1"
    };
    assert!((0..5).any(others_stay));
    assert_eq!(cluster.status().epoch, epoch, "acceptors are not touched");
    let error = cluster.supervisor.move_leader(None, "acceptor/0");
    let error = error.expect_err("it has no leader").to_string();
    assert!(error.contains("no leader part"), "{error}");
    let records = load.stop();
    check_all_succeeded(&cluster, &records);
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

/// Kills all acceptors but one, and starts them again.
fn lose_a_majority(cluster: &Cluster) {
    for acceptor in ["acceptor/0", "acceptor/1"] {
        cluster.supervisor.kill(acceptor).unwrap();
    }
    for acceptor in ["acceptor/0", "acceptor/1"] {
        cluster.supervisor.restart(acceptor).unwrap();
    }
}

#[test]
fn a_majority_of_acceptors_lost_in_memory_mode_is_refused() {
    let cluster = Cluster::start("lost", Dataplane::Udp, |_| {});
    let mut client = Client::connect(cluster.resp());
    assert_eq!(client.call(&["SET", "before", "1"]), "+OK");
    cluster.wait_until_equal(TIMEOUT);
    lose_a_majority(&cluster);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let waiting = cluster.plane().waiting;
        if matches!(&waiting, Waiting::MajorityLost(nodes) if nodes.len() == 2) {
            break;
        }
        assert!(Instant::now() < deadline, "{waiting:?}");
        run_for(20);
    }
    // Nothing is voted on that may have been chosen already.
    let voting = |cluster: &Cluster| {
        let hosts = cluster.status().hosts;
        let said = hosts.iter().filter_map(|h| h.status.as_ref());
        said.filter(|s| s.acceptors.iter().any(|a| a.voting))
            .count()
    };
    run_for(1000);
    assert!(voting(&cluster) <= 1);
    let error = cluster.supervisor.replace_member("acceptor/0");
    let error = error
        .expect_err("there is nobody to take over from")
        .to_string();
    assert!(error.contains("--accept-loss"), "{error}");

    let report = cluster.supervisor.down().expect("down");
    assert_eq!(report.clean_at, None);
    let stopped = cluster.crash();
    let (cluster, spec) = stopped.up_again(|spec| spec.accept_loss = true);
    let mut client = Client::connect(cluster.resp());
    assert_eq!(client.call(&["GET", "before"]), "1");
    let stopped = cluster.crash();
    let again = ClusterSpec {
        accept_loss: false,
        ..spec
    };
    let refused = Supervisor::start(again).expect_err("an unclean stop is refused");
    assert!(refused.to_string().contains("--accept-loss"), "{refused}");
    let (cluster, _) = stopped.up_again(|_| {});
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn a_majority_of_acceptors_lost_in_sync_mode_comes_back_whole() {
    let cluster = Cluster::start("back", Dataplane::Udp, |spec| {
        spec.durability = Durability::Sync;
        spec.partitions = 2;
    });
    let load = load(&cluster);
    for _ in 0..3 {
        load.run_for(300);
        lose_a_majority(&cluster);
        cluster.wait_until_all_vote(TIMEOUT);
    }
    load.run_for(300);
    let records = load.stop();
    check(cluster.resp(), &records);
    cluster.wait_until_equal(TIMEOUT);
    // A lost journal is lost memory: the others have the votes.
    cluster.supervisor.kill("acceptor/2").unwrap();
    let journal = inband_paxos::node::JOURNAL_DIR;
    fs::remove_dir_all(cluster.dir.join("hosts/acceptor-2").join(journal)).unwrap();
    cluster.supervisor.restart("acceptor/2").unwrap();
    cluster.wait_until_all_vote(TIMEOUT);
    cluster.down_and_compare();
}

/// CPU time of a process.
fn cpu(pid: u32) -> Duration {
    const TICKS_PER_S: u64 = 100;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: u64 = ticks.map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_S)
}

#[test]
fn idle_hosts_leave_the_machine_to_others() {
    let cluster = Cluster::start("idle", Dataplane::Udp, |spec| spec.controllers = 1);
    let sample = || {
        let hosts = cluster.status().hosts.into_iter();
        hosts
            .map(|h| (h.name, cpu(h.pid.unwrap())))
            .collect::<Vec<_>>()
    };
    run_for(500);
    // The time of both samples counts: a stall within one must not make the share larger.
    let (began, before) = (Instant::now(), sample());
    run_for(2000);
    let (after, passed) = (sample(), began.elapsed());
    for ((name, then), (_, now)) in before.iter().zip(&after) {
        let share = (*now - *then).as_secs_f64() / passed.as_secs_f64();
        println!("{name}: {:.1} % of a CPU", 100.0 * share);
        assert!(share < 0.05, "{name} takes {:.0} % of a CPU", 100.0 * share);
    }
    cluster.down_and_compare();
}

fn inband(cluster: &Cluster, args: &[&str]) -> (bool, String) {
    let output = Command::new(PROGRAM)
        .args(args)
        .arg("--data")
        .arg(&cluster.dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{said}");
    (output.status.success(), said)
}

#[test]
fn the_command_line_changes_members() {
    let cluster = Cluster::start("cmd", Dataplane::Udp, |_| {});
    let expect = |args: &[&str], good: bool, says: &str| {
        let (succeeded, said) = inband(&cluster, args);
        assert!(succeeded == good && said.contains(says), "{args:?}: {said}");
        said
    };
    let said = expect(&["member", "list"], true, "acceptor/0");
    assert_eq!(said.matches(" votes\n").count(), 3, "{said}");
    assert!(said.contains("led by acceptor/"), "{said}");
    let said = expect(&["member", "list", "--json"], true, "\"epoch\"");
    serde_json::from_str::<serde_json::Value>(&said).expect("JSON");
    expect(&["member", "add", "replica"], true, "replica/3 is a member");
    expect(
        &["member", "remove", "replica/0"],
        true,
        "replica/0 is gone",
    );
    let says = "acceptor/3 is in the place of acceptor/1";
    expect(&["member", "replace", "acceptor/1"], true, says);
    expect(&["leader", "move", "replica/2"], true, "replica/2 leads");
    expect(
        &["leader", "move", "leader/0", "--partition", "0"],
        true,
        "leader/0 leads",
    );

    expect(
        &["member", "add", "leader"],
        false,
        "choose acceptor or replica",
    );
    expect(&["member", "add"], false, "acceptor|replica");
    expect(
        &["member", "remove", "replica/0"],
        false,
        "no host \"replica/0\"",
    );
    expect(
        &["leader", "move", "leader/0", "--partition", "x"],
        false,
        "is not a partition",
    );
    expect(
        &["leader", "move", "leader/0", "--partition", "7"],
        false,
        "partition 7",
    );
    expect(&["leader", "move", "acceptor/0"], false, "no leader part");
    let said = expect(&["member", "list"], true, "replica/3");
    assert!(
        !said.contains("replica/0") && !said.contains("acceptor/1"),
        "{said}"
    );
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

/// With two controllers, the loss of one would stop the control plane.
#[test]
fn an_acceptor_that_is_added_takes_over_a_controller() {
    let cluster = Cluster::start("odd", Dataplane::Udp, |_| {});
    let supervisor = &cluster.supervisor;
    supervisor.add_member(MemberKind::Acceptor).unwrap();
    supervisor.remove_member("acceptor/0").unwrap();
    assert_eq!(cluster.plane().voters.len(), 3);
    supervisor.kill("acceptor/1").unwrap();
    supervisor.replace_member("acceptor/1").unwrap();
    assert_eq!(cluster.plane().voters.len(), 3);
    let mut client = Client::connect(cluster.resp());
    assert_eq!(client.call(&["SET", "still", "there"]), "+OK");
    cluster.down_and_compare();
}

#[test]
fn what_nothing_can_do_without_stays() {
    let cluster = Cluster::start("last", Dataplane::Udp, |spec| {
        spec.acceptors = "1".parse().unwrap();
        spec.replicas = 1;
        spec.controllers = 1;
    });
    for (name, says) in [
        ("acceptor/0", "without acceptors"),
        ("replica/0", "last replica"),
        ("controller/0", "without controllers"),
    ] {
        let error = cluster.supervisor.remove_member(name).expect_err(name);
        assert!(error.to_string().contains(says), "{name}: {error}");
    }
    // The replica leads as well.
    cluster.supervisor.remove_member("leader/0").unwrap();
    let mut client = Client::connect(cluster.resp());
    assert_eq!(client.call(&["SET", "still", "there"]), "+OK");
    cluster.down_and_compare();
}
