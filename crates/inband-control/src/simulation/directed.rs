//! Directed schedules of the simulated cluster.

use super::cluster::{Breaks, Cluster, COORDINATORS};
use crate::configuration::{Epoch, NodeId};
use crate::coordinator::Waiting;
use crate::state::{Change, Phase, Refusal};

const SECOND: u64 = 1_000_000;

/// Three acceptors that vote, and two running spares, 4 and 5.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(1, 3, Breaks::default());
    let now = cluster.now;
    assert!(cluster.run_until(now + 2 * SECOND, Cluster::all_vote));
    cluster
}

fn settle(cluster: &mut Cluster) {
    let until = cluster.now + 20 * SECOND;
    let settled = |c: &Cluster| c.all_vote() && c.state.pending.is_none();
    assert!(cluster.run_until(until, settled), "{}", cluster.describe());
    decides(cluster);
}

/// Checks that new values are chosen.
fn decides(cluster: &mut Cluster) {
    let chosen = cluster.checker.chosen();
    let until = cluster.now + 5 * SECOND;
    let more = |c: &Cluster| c.checker.chosen() > chosen + 10;
    assert!(cluster.run_until(until, more), "{}", cluster.describe());
}

fn acceptors(cluster: &Cluster) -> Vec<NodeId> {
    cluster.state.opened.as_ref().expect("founded").acceptors()
}

fn opened(cluster: &Cluster) -> Epoch {
    cluster.state.opened.as_ref().expect("founded").epoch
}

fn lose_memory(cluster: &mut Cluster, node: NodeId) {
    cluster.crash(node, true);
    cluster.restart_after(node, SECOND / 10);
    assert!(cluster.run_for(SECOND / 5));
}

#[test]
fn acceptors_lose_their_memory_one_after_the_other() {
    let mut cluster = cluster();
    for node in [1, 2, 3, 1] {
        let epoch = cluster.state.highest_epoch;
        lose_memory(&mut cluster, node);
        assert!(!cluster.votes(node));
        settle(&mut cluster);
        assert_eq!(cluster.state.highest_epoch, epoch + 1);
    }
}

#[test]
fn the_cluster_decides_while_the_control_plane_is_down() {
    let mut cluster = cluster();
    cluster.cut_off_coordinators(60 * SECOND);
    lose_memory(&mut cluster, 1);
    decides(&mut cluster);
    assert!(!cluster.votes(1));
    cluster.cut_off_coordinators(0);
    settle(&mut cluster);
}

#[test]
fn a_lost_majority_is_not_made_up() {
    let mut cluster = cluster();
    decides(&mut cluster);
    let epoch = opened(&cluster);
    assert_eq!(cluster.restart_fresh(), Err(Refusal::NothingLost));
    cluster.crash(1, true);
    lose_memory(&mut cluster, 2);
    // One is down for a while: it might return with its votes.
    assert!(cluster.run_for(5 * SECOND));
    assert_eq!(*cluster.waiting(), Waiting::Unreachable(vec![1]));
    assert_eq!(cluster.restart_fresh(), Err(Refusal::NotHeard(1)));
    cluster.restart_after(1, 1);
    assert!(cluster.run_for(20 * SECOND));
    assert_eq!(*cluster.waiting(), Waiting::MajorityLost(vec![1, 2]));
    assert_eq!(opened(&cluster), epoch);
    cluster.restart_fresh().expect("told to accept the loss");
    settle(&mut cluster);
    assert!(opened(&cluster) > epoch);
}

#[test]
fn members_come_and_go_while_values_are_chosen() {
    let mut cluster = cluster();
    let add = Change::Add(cluster.candidate(4));
    cluster.request(add.clone()).expect("it is up");
    settle(&mut cluster);
    assert_eq!(acceptors(&cluster), [1, 2, 3, 4]);
    assert_eq!(cluster.request(add), Err(Refusal::IsMember(4)));
    let new = cluster.candidate(5);
    let replace = Change::Replace { old: 1, new };
    cluster.request(replace).expect("both make sense");
    settle(&mut cluster);
    assert_eq!(acceptors(&cluster), [2, 3, 4, 5]);
    assert!(!cluster.votes(1));
    cluster.request(Change::Remove(2)).expect("three are left");
    settle(&mut cluster);
    // It comes back as the same host, and takes over all votes again.
    let back = Change::Add(cluster.candidate(1));
    cluster.request(back).expect("the same host");
    settle(&mut cluster);
    assert_eq!(acceptors(&cluster), [1, 3, 4, 5]);
}

#[test]
fn changes_that_would_stop_the_cluster_are_refused() {
    let mut cluster = cluster();
    cluster.crash(1, true);
    assert!(cluster.run_for(2 * SECOND));
    let too_few = Refusal::TooFewHealthy {
        healthy: 1,
        acceptors: 2,
        needed: 2,
    };
    assert_eq!(cluster.request(Change::Remove(2)), Err(too_few));
    let absent = Change::Remove(9);
    assert_eq!(cluster.request(absent), Err(Refusal::NotMember(9)));
    // The dead one may be removed, and another one added in its place.
    let new = cluster.candidate(4);
    let replace = Change::Replace { old: 1, new };
    cluster.request(replace).expect("a majority is healthy");
    settle(&mut cluster);
    assert_eq!(acceptors(&cluster), [2, 3, 4]);
    cluster.crash(5, true);
    assert!(cluster.run_for(2 * SECOND));
    let add = Change::Add(cluster.candidate(5));
    assert_eq!(cluster.request(add), Err(Refusal::NotHeard(5)));
}

#[test]
fn a_change_whose_new_member_dies_is_given_up() {
    let mut cluster = cluster();
    let new = cluster.candidate(4);
    cluster
        .request(Change::Replace { old: 1, new })
        .expect("it is up");
    cluster.cut_off(4, 60 * SECOND);
    cluster.cut_off(3, 60 * SECOND);
    assert!(cluster.run_for(10 * SECOND));
    cluster.cut_off(3, 0);
    settle(&mut cluster);
    assert!(cluster.abandoned > 0);
}

/// One of the acceptors whose votes are to be merged dies before it has shown them. The others are a majority: the
/// reconfiguration starts again without it.
#[test]
fn a_sealed_acceptor_that_dies_with_its_votes_is_not_awaited() {
    let mut cluster = cluster();
    let new = cluster.candidate(4);
    cluster.request(Change::Add(new)).expect("it is up");
    let sealed = |c: &Cluster| match c.state.pending.as_ref().map(|p| p.phase.clone()) {
        Some(Phase::Installing { sealed, .. }) => sealed,
        _ => Vec::new(),
    };
    let until = cluster.now + SECOND;
    assert!(cluster.run_until(until, |c| !sealed(c).is_empty()));
    let dead = sealed(&cluster)[0];
    cluster.cut_off(dead, 60 * SECOND);
    let until = cluster.now + 20 * SECOND;
    let is_over = |c: &Cluster| c.state.pending.is_none();
    assert!(cluster.run_until(until, is_over), "{}", cluster.describe());
    decides(&mut cluster);
    cluster.cut_off(dead, 0);
    settle(&mut cluster);
}

/// 4 replaces 1 but is slow, so the epoch is opened without it; then 2 loses its memory. One of three is lost, and 4
/// never voted: nothing is missing.
#[test]
fn who_never_voted_counts_and_has_nothing_to_give() {
    let mut cluster = cluster();
    let new = cluster.candidate(4);
    cluster
        .request(Change::Replace { old: 1, new })
        .expect("it is up");
    cluster.cut_off(4, 10 * SECOND);
    let until = cluster.now + 9 * SECOND;
    let opened = |c: &Cluster| c.state.pending.is_none() && acceptors(c) == [2, 3, 4];
    assert!(cluster.run_until(until, opened), "{}", cluster.describe());
    decides(&mut cluster);
    assert!(!cluster.votes(4));
    cluster.cut_off(4, 0);
    lose_memory(&mut cluster, 2);
    settle(&mut cluster);
}

#[test]
fn a_host_with_another_identity_is_refused() {
    let mut cluster = cluster();
    cluster.crash(1, true);
    cluster.lose_identity(1);
    cluster.restart_after(1, 1);
    assert!(cluster.run_for(5 * SECOND));
    assert!(!cluster.votes(1));
    let refused = cluster.member(1).expect("up").refused().cloned();
    assert!(matches!(
        refused,
        Some(Refusal::OtherIdentity { node: 1, .. })
    ));
    let again = cluster.candidate(1);
    let other = Change::Replace { old: 1, new: again };
    assert!(matches!(cluster.request(other), Err(Refusal::IsMember(1))));
    cluster.request(Change::Remove(1)).expect("two are left");
    assert!(cluster.run_for(5 * SECOND));
    let again = Change::Add(cluster.candidate(1));
    let refused = cluster.request(again);
    assert!(
        matches!(refused, Err(Refusal::IdUsed { node: 1, .. })),
        "{refused:?}"
    );
    assert!(!acceptors(&cluster).contains(&COORDINATORS[0]));
}
