//! One coordinator, report by report.

use crate::acceptor::{Holds, Position};
use crate::configuration::{Beginning, Configuration, Epoch, Identity, Member, NodeId, Parts};
use crate::coordinator::Coordinator;
use crate::message::{AcceptorReport, Report, StoppedLog};
use crate::outbox::Outbox;
use crate::state::{Change, Command, Refusal, State};
use crate::timing::{Micros, Timing};
use inband_paxos::host::spread_leaders;

const ALL: Parts = Parts {
    acceptor: true,
    replica: true,
    leader: true,
    controller: true,
};
const ACCEPTOR: Parts = Parts {
    acceptor: true,
    replica: false,
    leader: false,
    controller: true,
};
/// The trim floor: replicas 1 and 2 hold everything below it, 3 is behind.
const FLOOR: u64 = 50;

fn member(node: NodeId, parts: Parts) -> Member {
    Member {
        node,
        name: format!("node/{node}"),
        data: "10.0.0.1:7400".parse().expect("an address"),
        control: "10.0.0.1:7500".parse().expect("an address"),
        parts,
        identity: Some(Identity(u64::from(node))),
    }
}

fn report(node: NodeId, epoch: Epoch, holds: Epoch, applied: u64, number: u64) -> Report {
    Report {
        node,
        identity: Identity(u64::from(node)),
        life: 1,
        number,
        control: "10.0.0.1:7500".parse().expect("an address"),
        revision: u64::MAX,
        acceptor: Some(AcceptorReport {
            epoch,
            voting: false,
            holds: Some(Holds {
                epoch: holds,
                base: 1,
            }),
            entered: 1,
            fenced: epoch - 1,
            progress: number,
            positions: vec![Position {
                promise: 1,
                floor: FLOOR,
                highest: 60,
            }],
        }),
        applied: Some(vec![applied]),
        durable: vec![applied],
        stopped: Vec::new(),
        settings: String::new(),
    }
}

/// A cluster of 1, 2 and 3 in which 4 replaces 1; the votes of `sealed` are being installed.
fn replacing(sealed: [NodeId; 2]) -> State {
    let mut state = State::default();
    let apply = |state: &mut State, command| state.apply(&command).expect("it makes sense");
    let configuration = Configuration {
        epoch: 1,
        revision: 0,
        members: [1, 2, 3].map(|n| (n, member(n, ALL))).into(),
        leaders: spread_leaders(&[1, 2, 3], 1),
        beginning: Beginning::Fresh(vec![1]),
    };
    apply(&mut state, Command::Found(configuration));
    let new = member(4, ALL);
    let change = Some(Change::Replace { old: 1, new });
    apply(&mut state, Command::Begin { opened: 1, change });
    let install = Command::Install {
        epoch: 2,
        sealed: sealed.into(),
        abstained: vec![],
    };
    apply(&mut state, install);
    state
}

/// Replica 1 leaves and 4 joins. Then only 2 would hold what is trimmed, until 3 has caught up.
#[test]
fn new_replicas_hold_what_was_trimmed_before_the_epoch_opens() {
    let state = replacing([1, 2]);
    let mut coordinator = Coordinator::new(Timing::default());
    let mut out = Outbox::new();
    let mut tell = |report| coordinator.on_report(1000, report, &state, &mut out);
    assert_eq!(tell(report(2, 2, 2, FLOOR, 1)), None);
    assert_eq!(tell(report(4, 2, 2, 0, 1)), None);
    assert_eq!(tell(report(3, 2, 2, FLOOR - 2, 1)), None, "one short");
    let open = Some(Command::Open { epoch: 2 });
    assert_eq!(tell(report(3, 2, 2, FLOOR - 1, 2)), open);
}

/// 4 replaces 1. 2 and 4 have installed the votes and died, while 3 still installs them: the former members 1 and 3 go on.
#[test]
fn an_epoch_is_not_opened_by_acceptors_that_have_died() {
    let state = replacing([1, 3]);
    let timing = Timing::default();
    let mut coordinator = Coordinator::new(timing);
    let mut out = Outbox::new();
    let mut tell = |now, report| coordinator.on_report(now, report, &state, &mut out);
    assert_eq!(tell(1000, report(3, 2, 1, FLOOR, 1)), None);
    assert_eq!(tell(1000, report(2, 2, 2, FLOOR, 1)), None);
    assert_eq!(tell(1000, report(4, 2, 2, 0, 1)), None);
    let both_dead = 1001 + timing.alive_us.max(timing.open_wait_us);
    assert_eq!(tell(both_dead, report(3, 2, 1, FLOOR, 2)), None);
    let still_dead = tell(both_dead, report(2, 2, 2, FLOOR, 2));
    assert_eq!(still_dead, None, "4 is dead");
    let open = Some(Command::Open { epoch: 2 });
    assert_eq!(tell(both_dead, report(4, 2, 2, 0, 2)), open);
}

/// Returns what an epoch that follows that of the only replica, 1, waits for: 2 reports with nothing applied, then 1
/// with everything.
fn after_the_only_replica(change: Change) -> Option<Command> {
    let mut state = State::default();
    let apply = |state: &mut State, command| state.apply(&command).expect("it makes sense");
    let configuration = Configuration {
        epoch: 1,
        revision: 0,
        members: [(1, member(1, ALL)), (3, member(3, ACCEPTOR))].into(),
        leaders: spread_leaders(&[1], 1),
        beginning: Beginning::Fresh(vec![1]),
    };
    apply(&mut state, Command::Found(configuration));
    let change = Some(change);
    apply(&mut state, Command::Begin { opened: 1, change });
    let install = Command::Install {
        epoch: 2,
        sealed: vec![1, 3],
        abstained: vec![],
    };
    apply(&mut state, install);
    let mut coordinator = Coordinator::new(Timing::default());
    let mut out = Outbox::new();
    let mut tell = |report| coordinator.on_report(1000, report, &state, &mut out);
    assert_eq!(tell(report(3, 2, 2, 0, 1)), None);
    assert_eq!(tell(report(2, 2, 2, 0, 1)), None);
    tell(report(1, 2, 2, FLOOR, 1))
}

#[test]
fn an_empty_replica_joins_the_only_one_and_does_not_take_its_place() {
    let open = Some(Command::Open { epoch: 2 });
    let new = member(2, ALL);
    assert_eq!(after_the_only_replica(Change::Add(new.clone())), open);
    assert_eq!(
        after_the_only_replica(Change::Replace { old: 1, new }),
        None
    );
}

/// A delayed report carries no news.
#[test]
fn an_old_report_does_not_count() {
    let mut state = State::default();
    let configuration = Configuration {
        epoch: 1,
        revision: 0,
        members: [(1, member(1, ALL))].into(),
        leaders: spread_leaders(&[1], 1),
        beginning: Beginning::Fresh(vec![1]),
    };
    let found = Command::Found(configuration);
    state.apply(&found).expect("a good configuration");
    let mut coordinator = Coordinator::new(Timing::default());
    let mut out = Outbox::new();
    coordinator.on_report(1000, report(1, 1, 1, 9, 5), &state, &mut out);
    coordinator.on_report(2000, report(1, 1, 1, 3, 4), &state, &mut out);
    let heard = coordinator.hosts()[&1].report.clone();
    assert_eq!((heard.number, heard.applied), (5, Some(vec![9])));
}

/// Returns a coordinator that has listened for as long as a host may be silent; and the current time.
fn listening(state: &State) -> (Coordinator, Micros) {
    let mut coordinator = Coordinator::new(Timing::default());
    let until = 1000 + Timing::default().alive_us;
    for now in (1000..=until).step_by(100_000) {
        coordinator.on_tick(now, state, &mut Outbox::new());
    }
    (coordinator, until)
}

/// Returns where a restart begins if all acceptors have lost their memory and the replicas have applied these
/// instances.
fn restarted(applied: &[(NodeId, u64)], believed: &[u64]) -> Result<Vec<u64>, Refusal> {
    let mut state = State::default();
    let configuration = Configuration {
        epoch: 1,
        revision: 0,
        members: [1, 2, 3].map(|n| (n, member(n, ALL))).into(),
        leaders: spread_leaders(&[1, 2, 3], 1),
        beginning: Beginning::Fresh(vec![1]),
    };
    let found = Command::Found(configuration);
    state.apply(&found).expect("a good configuration");
    let (mut coordinator, now) = listening(&state);
    let mut out = Outbox::new();
    for (node, applied) in applied {
        let mut report = report(*node, 1, 1, *applied, 1);
        let acceptor = report.acceptor.as_mut().expect("an acceptor");
        acceptor.holds = None;
        coordinator.on_report(now, report, &state, &mut out);
    }
    let command = coordinator.restart(now, &state, 0, believed.to_vec())?;
    let Command::Restart {
        first_instances, ..
    } = command
    else {
        panic!("{command:?}");
    };
    Ok(first_instances)
}

/// A lower instance would give applied instances to other values; a higher one would leave a hole.
#[test]
fn a_restart_begins_behind_what_the_replicas_report() {
    let otherwise = |given, applied| {
        Err(Refusal::AppliedOtherwise {
            log: 0,
            given,
            applied,
        })
    };
    let all = [(1, 9), (2, 7), (3, 8)];
    assert_eq!(restarted(&all, &[]), Ok(vec![10]));
    assert_eq!(restarted(&all, &[10]), Ok(vec![10]));
    assert_eq!(restarted(&all, &[9]), otherwise(8, 9));
    assert_eq!(restarted(&all, &[11]), otherwise(10, 9));
    // The third replica may have applied more: the operator must supply the value.
    assert_eq!(restarted(&all[..2], &[]), Err(Refusal::PositionUnknown(3)));
    assert_eq!(restarted(&all[..2], &[11]), Ok(vec![11]));
    assert_eq!(restarted(&all[..2], &[9]), otherwise(8, 9));
}

/// Acceptors vote, but a log is stuck at an instance that cannot be read: first voting is halted, then the next epoch
/// begins after what all replicas report from then on.
#[test]
fn a_log_that_stands_begins_anew_behind_what_was_delivered_before_it_was_halted() {
    let mut state = State::default();
    let configuration = Configuration {
        epoch: 1,
        revision: 0,
        members: [1, 2, 3].map(|n| (n, member(n, ALL))).into(),
        leaders: spread_leaders(&[1, 2, 3], 1),
        beginning: Beginning::Fresh(vec![1]),
    };
    let found = Command::Found(configuration);
    state.apply(&found).expect("a good configuration");
    let mut coordinator = Coordinator::new(Timing::default());
    let mut out = Outbox::new();
    let report_of = |node, epoch, applied, number, stopped: Option<u64>| {
        let mut report = report(node, epoch, 1, applied, number);
        report.revision = u64::from(epoch); // of the configuration with that epoch
        report.acceptor.as_mut().expect("an acceptor").voting = epoch == 1;
        let stopped = stopped.map(|instance| StoppedLog {
            log: 0,
            instance,
            for_ms: 7_000,
            unreadable_at: vec![1, 3],
        });
        report.stopped = stopped.into_iter().collect();
        report
    };
    let mut tell = |coordinator: &mut Coordinator, state: &State, report| {
        coordinator.on_report(1000, report, state, &mut out);
    };
    let ask = |coordinator: &Coordinator, state: &State, believed: &[u64]| {
        coordinator.restart(1000, state, 0, believed.to_vec())
    };
    for node in [1, 2] {
        tell(&mut coordinator, &state, report_of(node, 1, 9, 1, Some(10)));
    }
    assert_eq!(
        ask(&coordinator, &state, &[]),
        Err(Refusal::PositionUnknown(3))
    );
    // Two replicas have fallen behind, and the third continues.
    tell(&mut coordinator, &state, report_of(3, 1, 12, 1, None));
    assert_eq!(ask(&coordinator, &state, &[]), Err(Refusal::NothingLost));
    for node in [1, 2, 3] {
        tell(&mut coordinator, &state, report_of(node, 1, 9, 2, Some(10)));
    }
    let otherwise = Refusal::AppliedOtherwise {
        log: 0,
        given: 5,
        applied: 9,
    };
    assert_eq!(ask(&coordinator, &state, &[6]), Err(otherwise));
    let halt = ask(&coordinator, &state, &[]).expect("the log stands");
    assert_eq!(halt, Command::Halt { opened: 1 });
    state.apply(&halt).expect("in force");
    assert_eq!(state.opened.as_ref().map(|o| o.epoch), Some(2));
    assert_eq!(coordinator.on_tick(1001, &state, &mut Outbox::new()), None);

    // Earlier reports may not be final.
    assert_eq!(
        ask(&coordinator, &state, &[]),
        Err(Refusal::PositionUnknown(1))
    );
    for (node, applied) in [(1, 9), (2, 9), (3, 10)] {
        let mut not_there_yet = report_of(node, 2, 0, 3, None);
        not_there_yet.applied = None;
        tell(&mut coordinator, &state, not_there_yet);
        assert_eq!(
            ask(&coordinator, &state, &[]),
            Err(Refusal::PositionUnknown(node))
        );
        for number in 4..6 {
            tell(
                &mut coordinator,
                &state,
                report_of(node, 2, applied, number, None),
            );
        }
    }
    // Only the third replica has the last instance, until another one has fetched it.
    let short = Refusal::NotDurable {
        log: 0,
        applied: 10,
        holders: 1,
        needed: 2,
    };
    assert_eq!(ask(&coordinator, &state, &[]), Err(short));
    tell(&mut coordinator, &state, report_of(1, 2, 10, 6, None));
    let restart = ask(&coordinator, &state, &[]).expect("all have said it");
    assert_eq!(
        restart,
        Command::Restart {
            opened: 2,
            at_least: 0,
            first_instances: vec![11],
        }
    );
    state.apply(&restart).expect("in force");
    let opened = state.opened.expect("founded");
    assert_eq!(
        (opened.epoch, opened.beginning),
        (3, Beginning::Fresh(vec![11]))
    );
}

/// Three hosts with all roles, in the halted epoch.
fn halted() -> State {
    let mut state = State::default();
    let configuration = Configuration {
        epoch: 1,
        revision: 0,
        members: [1, 2, 3].map(|n| (n, member(n, ALL))).into(),
        leaders: spread_leaders(&[1, 2, 3], 1),
        beginning: Beginning::Fresh(vec![1]),
    };
    for command in [Command::Found(configuration), Command::Halt { opened: 1 }] {
        state.apply(&command).expect("it makes sense");
    }
    state
}

/// Returns a report from a host that has entered this epoch, which is also its revision.
fn report_from(epoch: Epoch, node: NodeId, applied: u64, durable: u64, number: u64) -> Report {
    let mut report = report(node, epoch, 1, applied, number);
    report.revision = u64::from(epoch);
    report.durable = vec![durable];
    report
}

/// Until it enters the halted epoch, a replica delivers more and clients are answered.
#[test]
fn given_positions_do_not_stand_for_replicas_that_have_yet_to_say_theirs() {
    let state = halted();
    let (mut coordinator, now) = listening(&state);
    let tell = |coordinator: &mut Coordinator, report| {
        coordinator.on_report(now, report, &state, &mut Outbox::new());
    };
    let ask = |coordinator: &Coordinator, first: u64| match coordinator.restart(
        now,
        &state,
        0,
        vec![first],
    )? {
        Command::Restart {
            first_instances, ..
        } => Ok(first_instances),
        other => panic!("{other:?}"),
    };
    // The third is dead. The others had applied 9 at the time of this report.
    for node in [1, 2] {
        tell(&mut coordinator, report_from(1, node, 9, 9, 1));
    }
    assert_eq!(ask(&coordinator, 10), Err(Refusal::PositionUnknown(1)));
    tell(&mut coordinator, report_from(2, 1, 29, 29, 2));
    assert_eq!(ask(&coordinator, 30), Err(Refusal::PositionUnknown(2)));
    let mut not_there_yet = report_from(2, 2, 0, 0, 2);
    not_there_yet.applied = None;
    tell(&mut coordinator, not_there_yet);
    assert_eq!(ask(&coordinator, 30), Err(Refusal::PositionUnknown(2)));
    tell(&mut coordinator, report_from(2, 2, 29, 29, 3));
    let otherwise = Refusal::AppliedOtherwise {
        log: 0,
        given: 9,
        applied: 29,
    };
    assert_eq!(ask(&coordinator, 10), Err(otherwise));
    assert_eq!(ask(&coordinator, 30), Ok(vec![30]));
}

/// A coordinator that was just elected, or was suspended, has not heard from live hosts.
#[test]
fn given_positions_wait_until_the_coordinator_has_listened() {
    let state = halted();
    let timing = Timing::default();
    let mut coordinator = Coordinator::new(timing);
    let ask = |coordinator: &Coordinator, now| {
        let restart = coordinator.restart(now, &state, 0, vec![10]);
        restart.map(|_| ())
    };
    let unknown = Err(Refusal::PositionUnknown(1));
    assert_eq!(ask(&coordinator, 5000), unknown);
    let mut now = 5000;
    while now < 5000 + timing.alive_us {
        coordinator.on_tick(now, &state, &mut Outbox::new());
        assert_eq!(ask(&coordinator, now), unknown, "at {now}");
        now += timing.report_us;
    }
    coordinator.on_tick(now, &state, &mut Outbox::new());
    assert_eq!(ask(&coordinator, now), Ok(()), "all are dead");
    now += timing.alive_us + 1;
    assert_eq!(ask(&coordinator, now), unknown);
    coordinator.on_tick(now, &state, &mut Outbox::new());
    assert_eq!(ask(&coordinator, now), unknown);
}

/// The acceptors start empty after the new beginning, as after a trim floor.
#[test]
fn a_halted_cluster_begins_anew_behind_what_a_majority_holds() {
    let state = halted();
    let (mut coordinator, now) = listening(&state);
    let tell = |coordinator: &mut Coordinator, report| {
        coordinator.on_report(now, report, &state, &mut Outbox::new());
    };
    let ask = |coordinator: &Coordinator, given: &[u64]| {
        let restart = coordinator.restart(now, &state, 0, given.to_vec());
        restart.map(|_| ())
    };
    let held_by = |holders, needed| {
        Err(Refusal::NotDurable {
            log: 0,
            applied: 10,
            holders,
            needed,
        })
    };
    tell(&mut coordinator, report_from(2, 1, 10, 9, 1));
    // For a dead replica the operator must supply the value. The live one alone holds it.
    assert_eq!(ask(&coordinator, &[]), Err(Refusal::PositionUnknown(2)));
    assert_eq!(ask(&coordinator, &[11]), held_by(0, 1));
    tell(&mut coordinator, report_from(2, 1, 10, 10, 2));
    assert_eq!(ask(&coordinator, &[11]), Ok(()));
    for node in [2, 3] {
        tell(&mut coordinator, report_from(2, node, 8, 8, 1));
    }
    for given in [&[][..], &[11]] {
        assert_eq!(ask(&coordinator, given), held_by(1, 2));
    }
    // Fetched from the first one, but not synced yet.
    tell(&mut coordinator, report_from(2, 3, 10, 8, 2));
    assert_eq!(ask(&coordinator, &[]), held_by(1, 2));
    tell(&mut coordinator, report_from(2, 3, 10, 10, 3));
    assert_eq!(ask(&coordinator, &[]), Ok(()));
}
