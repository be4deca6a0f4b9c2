//! The process of an acceptor in a switch: what it refuses, what it shows, and its end.

use crate::cluster::{wait_for, Cluster, Segment, CONTROL, SWITCH};

#[test]
fn options_that_name_nothing_are_refused() {
    let Some(mut cluster) = Cluster::new("p4-options", Segment::Keyless) else {
        return;
    };
    let host0 = ["--interface", "host0"];
    let no_switch = cluster.control_refuses(&host0);
    assert!(no_switch.contains("start simple_switch"), "{no_switch}");
    cluster.start_switch();
    for (options, expected) in [
        (
            &["--interface", "nowhere-0"][..],
            "there is no network interface \"nowhere-0\"",
        ),
        (
            &["--interface", "sw1"],
            "--interface sw1: this host reaches 10.77.0.3",
        ),
        (
            &[&host0[..], &["--uplink", "7"]].concat(),
            "--uplink 7: the switch has no such port; it has 0 (eth0), 1 (sw1)",
        ),
        (
            &[&host0[..], &["--host-port", "9"]].concat(),
            "--host-port 9: the switch has no such port",
        ),
        (
            &[&host0[..], &["--uplink", "1"]].concat(),
            "--uplink and --host-port are both 1",
        ),
    ] {
        let said = cluster.control_refuses(options);
        assert!(said.contains(expected), "{options:?}: {said}");
        assert!(!said.contains("retrying"), "{said}");
    }
    // It has emptied the switch, and only a good process goes on.
    cluster.start_control();
    wait_for("its status", || cluster.status().contains("running"));
}

#[test]
fn its_status_is_that_of_a_host() {
    let Some(mut cluster) = Cluster::new("p4-status", Segment::Keyless) else {
        return;
    };
    cluster.start_switch();
    cluster.start_control();
    wait_for("a status", || {
        cluster.status().contains("recovering, does not vote")
    });
    for name in ["one", "two", "four"] {
        cluster.start(name);
    }
    cluster.serves("1");
    // The others may have decided that without it.
    wait_for("it may vote", || cluster.register("voting") == 1);
    cluster.serves("2");
    wait_for("its vote", || {
        let said = cluster.status();
        said.contains("\nvotes\n") && said.contains("acceptor_voted")
    });
    let said = cluster.status();
    for expected in [
        "three  running",
        "epoch 1",
        "acceptor p4 (the switch at 127.0.0.1:9090)",
        "acceptor_voted",
        "host_unresolved_peers",
        // Of `inband member list`.
        "control plane led by",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

/// The registers may be another life's as soon as the connection has failed, so it does not connect again.
#[test]
fn it_ends_with_an_error_when_the_switch_is_gone_or_stands_still() {
    let Some(mut cluster) = Cluster::new("p4-gone", Segment::Keyless) else {
        return;
    };
    cluster.start_all();
    // The switch goes away, and comes back at once.
    cluster.kill(SWITCH);
    cluster.start_switch();
    let said = cluster.wait_for_the_end(CONTROL);
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains("votes count as lost"), "{said}");

    cluster.start_control();
    wait_for("the switch votes", || cluster.register("voting") == 1);
    // It stands still, and goes on as soon as the process has given it up.
    cluster.signal(SWITCH, "-STOP");
    let said = cluster.wait_for_the_end(CONTROL);
    cluster.signal(SWITCH, "-CONT");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains("votes count as lost"), "{said}");

    cluster.start_control();
    wait_for("another life of the switch", || {
        cluster.register("voting") == 1 && cluster.register("epoch") > 2
    });
    cluster.serves("1");
}
