//! A cluster with one acceptor in a switch: which votes decide, and what a switch that was restarted may do. Values of up to
//! 127 bytes fit into the switch.

use std::time::{Duration, Instant};

use crate::cluster::{wait_for, Cluster, Segment, CONTROL, GATE, SWITCH};

/// How long an acceptor is watched that must not vote.
const WATCHED: Duration = Duration::from_secs(3);

#[test]
fn the_votes_of_the_switch_complete_a_majority() {
    let Some(mut cluster) = Cluster::new("mixed-majority", Segment::Keyless) else {
        return;
    };
    cluster.start_all();
    cluster.serves("1");
    assert_eq!(cluster.counted("no_room"), 0);

    // Two of three are left, and the switch is one of them.
    cluster.kill("two");
    let voted = cluster.counted("acceptor_voted");
    cluster.serves("2");
    assert!(cluster.counted("acceptor_voted") >= voted + 3);

    // The switch does not vote for a value that it has no room for.
    let long = "v".repeat(500);
    let reply = cluster.set("long", &long);
    assert!(reply.contains("outcome unknown"), "{reply}");
    assert!(cluster.counted("no_room") > 0);

    // The other acceptor has lost its votes: those of the first one and of the switch are merged. The first has a vote
    // for the long value, so the new epoch decides it.
    cluster.start("two");
    wait_for("the long value", || {
        cluster.redis("four", &["GET", "long"]) == long
    });
    cluster.serves("3");
    // As soon as the long value is trimmed, the switch takes part again.
    wait_for("the switch votes", || cluster.register("voting") == 1);
    assert!(cluster.register("epoch") > 1);
    cluster.cut("two", true);
    cluster.serves("4");
}

#[test]
fn a_switch_that_was_restarted_votes_only_once_it_is_recovered() {
    let Some(mut cluster) = Cluster::new("mixed-restart", Segment::Keyless) else {
        return;
    };
    cluster.start_all();
    cluster.serves("1");

    // Of the majority that decided this, the switch forgets its votes, and the other acceptor is out of reach.
    cluster.cut("two", true);
    cluster.serves("2");
    cluster.kill(SWITCH);
    cluster.wait_for_the_end(CONTROL);
    cluster.start_switch();
    cluster.start_control();
    let until = Instant::now() + WATCHED;
    while Instant::now() < until {
        assert_ne!(cluster.set("a", "3"), "OK");
        assert_eq!(cluster.register("voting"), 0);
    }
    assert_eq!(cluster.counted("acceptor_voted"), 0);
    assert!(cluster.counted("acceptor_recovering") > 0);

    // The two with memory hand over their votes.
    cluster.cut("two", false);
    cluster.serves("4");
    wait_for("the switch votes", || cluster.register("voting") == 1);
    assert!(cluster.register("epoch") > 1);
    cluster.cut("two", true);
    cluster.serves("5");
    assert!(cluster.counted("acceptor_voted") > 0);

    // Without its process it goes on voting; a new process empties it.
    cluster.kill(CONTROL);
    cluster.serves("6");
    cluster.cut("two", false);
    let epoch = cluster.register("epoch");
    cluster.start_control();
    wait_for("another epoch", || {
        cluster.register("epoch") > epoch && cluster.register("voting") == 1
    });
    cluster.cut("two", true);
    cluster.serves("7");
}

#[test]
fn behind_a_gate_the_votes_of_the_switch_complete_a_majority_of_a_cluster_with_keys() {
    let Some(mut cluster) = Cluster::new("mixed-gate", Segment::BehindGate) else {
        return;
    };
    cluster.start_all();
    cluster.serves("1");
    let passed = cluster.gate_status();
    for counted in ["tag_removed", "tag_made"] {
        assert!(passed.contains(counted), "{passed}");
    }
    assert!(!passed.contains("lost"), "{passed}");

    cluster.kill("two");
    let voted = cluster.counted("acceptor_voted");
    cluster.serves("2");
    assert!(cluster.counted("acceptor_voted") >= voted + 3);

    // Without the gate there is no majority, and with it there is one again.
    cluster.kill(GATE);
    let reply = cluster.set("a", "3");
    assert!(reply.contains("outcome unknown"), "{reply}");
    cluster.start_gate();
    cluster.serves("4");

    // The switch and the acceptor with a key hand over their votes.
    cluster.start("two");
    wait_for("the switch votes", || {
        cluster.register("voting") == 1 && cluster.register("epoch") > 1
    });
    cluster.cut("two", true);
    cluster.serves("5");
}
