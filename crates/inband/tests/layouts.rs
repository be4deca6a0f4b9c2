//! Roles on every backend, mixed, and together on one host; data that survives; starts that are refused.

use std::process::Command;
use std::time::Duration;

use crate::common::{check, lab_works, Client, Cluster, Load, PROGRAM};
use inband_cluster::paxos::{LeaderLayout, Supervisor};
use inband_paxos::config::Dataplane;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Puts it under load, kills its leader, and checks all data.
fn survives_a_leader_change(cluster: Cluster) {
    let load = Load::start(
        &[cluster.replica(0), cluster.replica(1), cluster.replica(2)],
        3,
    );
    load.run_for(300);
    let old = cluster.supervisor.kill("leader").unwrap();
    cluster.wait_for("another host leads", TIMEOUT, |status| {
        status.leader(0).is_some_and(|l| l != old)
    });
    load.run_for(300);
    let records = load.stop();
    let survivor = if old == "replica/0" {
        cluster.replica(1)
    } else {
        cluster.replica(0)
    };
    check(survivor, &records);
}

#[test]
fn everything_in_user_space_without_privileges() {
    let cluster = Cluster::start("udp", Dataplane::Udp, |_| {});
    assert_eq!(cluster.status().network, "loopback");
    survives_a_leader_change(cluster);
}

#[test]
fn two_acceptors_in_the_kernel_and_one_in_user_space() {
    if !lab_works() {
        return;
    }
    let cluster = Cluster::start("mixed", Dataplane::Xdp, |spec| {
        spec.acceptors = "xdp:2,udp:1".parse().unwrap();
    });
    // With one of the kernel's acceptors dead, the one in user space is needed for every decision.
    cluster.supervisor.kill("acceptor/0").unwrap();
    survives_a_leader_change(cluster);
}

#[test]
fn leader_and_acceptor_on_one_host() {
    if !lab_works() {
        return;
    }
    let cluster = Cluster::start("shared", Dataplane::Xdp, |spec| {
        spec.leader = LeaderLayout::WithAcceptor;
    });
    // Without acceptor/2 the leader's own acceptor is needed for every decision.
    cluster.supervisor.kill("acceptor/2").unwrap();
    let mut client = Client::connect(cluster.resp());
    for i in 0..200 {
        assert_eq!(client.call(&["SET", "key", &i.to_string()]), "+OK");
    }
    cluster.wait_for(
        "the leader's own acceptor has voted for all",
        TIMEOUT,
        |_| cluster.counter("acceptor/0", "acceptor_voted") >= 200,
    );
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn generic_xdp() {
    if !lab_works() {
        return;
    }
    survives_a_leader_change(Cluster::start("gen", Dataplane::XdpGeneric, |_| {}));
}

#[test]
fn leaders_in_software_and_in_xdp_take_over_from_each_other() {
    if !lab_works() {
        return;
    }
    let cluster = Cluster::start("soft", Dataplane::Xdp, |spec| {
        spec.leader = LeaderLayout::OwnHosts(vec![Dataplane::Xdp, Dataplane::Udp]);
    });
    let mut seen = Vec::new();
    // The first host to start leads first, so kill until both have taken over from another one. The next in order goes
    // first, by only 50 ms: on a busy machine any of the five hosts may be faster, so that few turns are too few for chance.
    for turn in 0..60 {
        let old = cluster.supervisor.kill("leader").unwrap();
        let mut new = None;
        cluster.wait_for("another host leads", TIMEOUT, |status| {
            new = status.leader(0).filter(|l| *l != old).map(str::to_owned);
            new.is_some()
        });
        seen.extend(new);
        // A new connection for each turn: the previous one may have been to the host just killed.
        let mut client = Client::connect(cluster.resp());
        assert_eq!(client.call(&["SET", "turn", &turn.to_string()]), "+OK");
        cluster.supervisor.restart(&old).unwrap();
        if seen.iter().any(|l| l == "leader/1") && seen.iter().any(|l| l != "leader/1") {
            break;
        }
    }
    println!("took over in turn: {seen:?}");
    assert!(
        seen.iter().any(|l| l == "leader/1"),
        "software never took over: {seen:?}"
    );
    assert!(
        seen.iter().any(|l| l != "leader/1"),
        "XDP never took over: {seen:?}"
    );
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn data_survive_down_and_up_and_an_unclean_stop_is_refused() {
    let cluster = Cluster::start("again", Dataplane::Udp, |_| {});
    let mut client = Client::connect(cluster.resp());
    for i in 0..300 {
        assert_eq!(
            client.call(&["SET", &format!("key{i}"), &i.to_string()]),
            "+OK"
        );
    }
    let (cluster, spec) = cluster.down_and_up(|_| {});
    assert_eq!(cluster.status().epoch, 2);
    let mut client = Client::connect(cluster.resp());
    assert_eq!(client.call(&["GET", "key299"]), "299");
    assert_eq!(client.call(&["SET", "key0", "new"]), "+OK");
    cluster.wait_until_stored(TIMEOUT);

    // Dropped without `down`: a majority of acceptors has lost its memory.
    let cluster = cluster.crash();
    let refused = Supervisor::start(spec.clone()).expect_err("an unclean stop is refused");
    assert!(refused.to_string().contains("--accept-loss"), "{refused}");
    let (cluster, _) = cluster.up_again(|spec| spec.accept_loss = true);
    let mut client = Client::connect(cluster.resp());
    assert_eq!(client.call(&["GET", "key0"]), "new");
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

/// Commands for one and for several of four partitions, over two directories; then again on the same data, which no
/// other number of partitions accepts.
fn four_partitions(name: &str, dataplane: Dataplane) {
    let cluster = Cluster::start(name, dataplane, |spec| {
        spec.partitions = 4;
        spec.more_data = vec![spec.data.join("disk1")];
    });
    let mut client = Client::connect(cluster.resp());
    for i in 0..200 {
        let (key, value) = (format!("key{i}"), i.to_string());
        assert_eq!(client.call(&["SET", &key, &value]), "+OK");
    }
    let pairs = [["MSET", "a", "1"], ["b", "2", "c"], ["3", "d", "4"]].concat();
    assert_eq!(client.call(&pairs), "+OK");
    assert_eq!(
        client.call(&["MGET", "a", "b", "c", "d", "e"]),
        "1 2 3 4 (nil)"
    );
    assert_eq!(client.call(&["DEL", "a", "d", "e"]), ":2");
    assert_eq!(client.call(&["EXISTS", "a", "b", "c", "key7"]), ":3");
    cluster.wait_for("every log was used", TIMEOUT, |status| {
        let host = status.hosts.iter().find(|h| h.name == "replica/0").unwrap();
        let said = host.status.as_ref().and_then(|said| said.replica.as_ref());
        said.is_some_and(|replica| {
            replica.applied.len() == 5 && replica.applied.iter().all(|at| *at > 1)
        })
    });

    let (cluster, spec) = cluster.down_and_up(|_| {});
    assert_eq!(cluster.status().epoch, 2);
    let mut client = Client::connect(cluster.resp());
    for i in 0..200 {
        assert_eq!(client.call(&["GET", &format!("key{i}")]), i.to_string());
    }
    assert_eq!(client.call(&["MGET", "a", "b", "c"]), "(nil) 2 3");
    cluster.wait_until_equal(TIMEOUT);
    let report = cluster.supervisor.down().expect("down");
    assert_eq!(report.unclean_because, None);
    let stopped = cluster.crash();
    let mut other = spec;
    other.partitions = 2;
    let refused = Supervisor::start(other).expect_err("keys would not be found");
    let says = "has --partitions 4, and --partitions 2";
    assert!(refused.to_string().contains(says), "{refused}");
    let (cluster, _) = stopped.up_again(|_| {});
    cluster.wait_until_equal(TIMEOUT);
    cluster.down_and_compare();
}

#[test]
fn four_partitions_in_the_kernel() {
    if lab_works() {
        four_partitions("four", Dataplane::Xdp);
    }
}

#[test]
fn four_partitions_in_user_space() {
    four_partitions("fouru", Dataplane::Udp);
}

#[test]
fn what_does_not_fit_is_refused_before_anything_starts() {
    let output = Command::new(PROGRAM)
        .args(["doctor", "--partitions", "65"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains("1 to 64"),
        "{text}"
    );
    const TAKES_BYTES: u64 = 80 << 30;
    if inband_cluster::paxos::memory::available_bytes() > TAKES_BYTES {
        // The unit tests of `inband_cluster::paxos::memory` cover machines of any size.
        return inband_testing::not_run_optional("this machine has memory enough for all of it");
    }
    let data = tempfile::tempdir().unwrap();
    let output = Command::new(PROGRAM)
        .args([
            "up",
            "--dataplane",
            "udp",
            "--acceptors",
            "15",
            "--partitions",
            "64",
        ])
        .args(["--ring-slots", "65536", "--data"])
        .arg(data.path().join("new"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let says = ["65 rings of 65536 slots", "MiB available", "would fit"];
    assert!(says.iter().all(|s| text.contains(s)), "{text}");
    assert!(!output.status.success() && !data.path().join("new").exists());
}

#[test]
fn up_right_after_down_finds_everything_free() {
    let cluster = Cluster::start("cli", Dataplane::Udp, |_| {});
    let resp = cluster.resp().to_string();
    let stopped = cluster.crash();
    let data = std::env::temp_dir().join(format!("ib-cli-at-once-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&data);
    let inband = |args: &[&str]| {
        let output = Command::new(PROGRAM)
            .args(args)
            .arg("--data")
            .arg(&data)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        said
    };
    for turn in 0..3 {
        let said = inband(&["up", "--detach", "--dataplane", "udp", "--resp", &resp]);
        assert!(
            said.contains("self-check: SET and GET agree"),
            "turn {turn}: {said}"
        );
        let said = inband(&["down"]);
        assert!(said.contains("stopped cleanly"), "turn {turn}: {said}");
    }
    let _ = std::fs::remove_dir_all(&data);
    drop(stopped);
}

#[test]
fn the_command_line_explains_itself() {
    let output = Command::new(PROGRAM).arg("--help").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for command in [
        "up", "down", "status", "kill", "restart", "pause", "resume", "doctor", "bench", "run",
    ] {
        assert!(
            text.contains(&format!("  {command}")),
            "{command} is missing in:\n{text}"
        );
    }
    for (args, says) in [
        (&["up", "--acceptors", "0"][..], "1 to 15"),
        (&["up", "--dataplane", "dpdk"], "dpdk"),
        (&["status", "--data", "/nonexistent"], "/nonexistent"),
        (
            &["run", "--config", "/nonexistent.toml"],
            "/nonexistent.toml",
        ),
        (&["inspect", "/nonexistent"], "/nonexistent"),
    ] {
        let output = Command::new(PROGRAM).args(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && text.contains(says),
            "{args:?}: {text}"
        );
        assert!(!text.contains("panicked"), "{args:?}: {text}");
    }
}
