//! The replicated state, command by command.

use crate::configuration::{
    Beginning, Configuration, Epoch, Identity, Member, NodeId, Parts, ACCEPTORS_MAX,
};
use crate::state::{Change, Command, Phase, Refusal, State};
use inband_paxos::host::spread_leaders;

const ACCEPTOR: Parts = Parts {
    acceptor: true,
    replica: false,
    leader: false,
    controller: false,
};
const SERVER: Parts = Parts {
    acceptor: false,
    replica: true,
    leader: true,
    controller: true,
};

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

fn founded(epoch: Epoch) -> State {
    let members = [1, 2, 3].map(|n| member(n, ACCEPTOR)).into_iter();
    let members = members.chain([11, 12].map(|n| member(n, SERVER)));
    let mut state = State::default();
    state
        .apply(&Command::Found(Configuration {
            epoch,
            revision: 0,
            members: members.map(|m| (m.node, m)).collect(),
            leaders: spread_leaders(&[11, 12], 3),
            beginning: Beginning::Fresh(vec![1, 1, 1]),
        }))
        .expect("a good configuration");
    state
}

fn begin(opened: Epoch, change: Option<Change>) -> Command {
    Command::Begin { opened, change }
}

fn install(epoch: Epoch, sealed: &[NodeId], abstained: &[NodeId]) -> Command {
    Command::Install {
        epoch,
        sealed: sealed.to_vec(),
        abstained: abstained.to_vec(),
    }
}

fn opened(state: &State) -> &Configuration {
    state.opened.as_ref().expect("founded")
}

#[test]
fn a_reconfiguration_from_begin_to_end() {
    let mut state = founded(7);
    let before = opened(&state).revision;
    let add = Change::Add(member(4, ACCEPTOR));
    state.apply(&begin(7, Some(add))).expect("idle");
    assert_eq!(opened(&state).epoch, 7);
    state.apply(&install(8, &[1, 3], &[])).expect("a majority");
    let pending = state.pending.clone().expect("under way");
    let (sealed, abstained) = (vec![1, 3], vec![]);
    assert_eq!(pending.phase, Phase::Installing { sealed, abstained });
    assert_eq!(
        state.apply(&install(8, &[2, 3], &[])),
        Err(Refusal::Overtaken { given: 8, found: 8 }),
        "who was sealed is fixed"
    );
    state.apply(&Command::Open { epoch: 8 }).expect("installed");
    assert_eq!(state.pending, None);
    assert_eq!(
        (opened(&state).epoch, &opened(&state).beginning),
        (8, &Beginning::Merged)
    );
    assert_eq!(opened(&state).acceptors(), [1, 2, 3, 4]);
    assert!(opened(&state).revision > before);
}

#[test]
fn an_epoch_is_used_once() {
    let mut state = founded(7);
    state.apply(&begin(7, None)).expect("idle");
    assert_eq!(state.apply(&begin(7, None)), Err(Refusal::Busy(8)));
    let abandon = |epoch, revert| Command::Abandon { epoch, revert };
    state.apply(&install(8, &[1, 2], &[])).expect("a majority");
    state.apply(&abandon(8, false)).expect("under way");
    let open = Command::Open { epoch: 8 };
    assert!(state.apply(&open).is_err(), "given up");
    assert!(state.apply(&install(8, &[1, 2], &[])).is_err(), "given up");
    assert!(
        state.apply(&Command::Open { epoch: 9 }).is_err(),
        "nobody has sealed"
    );
    let restart = Command::Restart {
        opened: 7,
        at_least: 5,
        first_instances: vec![4, 5, 6],
    };
    state.apply(&restart).expect("possible at any time");
    assert_eq!((opened(&state).epoch, state.pending.is_none()), (10, true));
    assert_eq!(
        state.apply(&restart),
        Err(Refusal::Overtaken {
            given: 7,
            found: 10
        })
    );
}

#[test]
fn the_last_epoch_is_not_wrapped() {
    let mut state = founded(Epoch::MAX - 1);
    state
        .apply(&begin(Epoch::MAX - 1, None))
        .expect("one is left");
    let abandon = Command::Abandon {
        epoch: Epoch::MAX,
        revert: true,
    };
    let unchanged = state.clone();
    assert_eq!(
        state.apply(&abandon),
        Err(Refusal::EpochsUsedUp(Epoch::MAX))
    );
    assert_eq!(state, unchanged);
}

#[test]
fn only_a_majority_of_all_acceptors_ends_an_epoch() {
    let mut state = founded(7);
    state.apply(&begin(7, None)).expect("idle");
    for (sealed, abstained) in [
        (&[1][..], &[][..]),
        (&[1, 1], &[]),
        (&[1, 11], &[]),
        (&[1], &[1]),
        (&[], &[1, 2]),
    ] {
        let refused = state.apply(&install(8, sealed, abstained));
        assert!(
            matches!(refused, Err(Refusal::NoMajority { .. })),
            "{sealed:?}"
        );
    }
    state.apply(&install(8, &[1], &[2])).expect("a majority");
}

#[test]
fn an_id_belongs_to_one_host_for_ever() {
    let mut state = founded(7);
    let mut other = member(1, ACCEPTOR);
    other.identity = Some(Identity(999));
    state
        .apply(&begin(7, Some(Change::Remove(1))))
        .expect("two are left");
    state.apply(&install(8, &[2, 3], &[])).expect("a majority");
    state.apply(&Command::Open { epoch: 8 }).expect("installed");
    let add = |member: &Member| Change::Add(member.clone());
    let refused = state.changed(&add(&other));
    assert!(
        matches!(refused, Err(Refusal::IdUsed { node: 1, .. })),
        "{refused:?}"
    );
    assert!(
        state.changed(&add(&member(1, ACCEPTOR))).is_ok(),
        "the same host"
    );
    let register = Command::Register {
        node: 2,
        identity: Identity(999),
    };
    let refused = state.apply(&register);
    assert!(matches!(
        refused,
        Err(Refusal::OtherIdentity { node: 2, .. })
    ));
}

#[test]
fn a_new_host_is_registered_once() {
    let mut unknown = member(5, ACCEPTOR);
    unknown.identity = None;
    let state = founded(7);
    let add = Change::Add(unknown);
    assert_eq!(state.changed(&add), Err(Refusal::NotHeard(5)));
    let mut state = State::default();
    let mut configuration = opened(&founded(7)).clone();
    configuration
        .members
        .get_mut(&1)
        .expect("a member")
        .identity = None;
    state.apply(&Command::Found(configuration)).expect("good");
    let revision = opened(&state).revision;
    let register = |identity| Command::Register { node: 1, identity };
    state.apply(&register(Identity(1))).expect("unknown so far");
    assert_eq!(opened(&state).members[&1].identity, Some(Identity(1)));
    assert!(opened(&state).revision > revision, "hosts are told");
    assert!(state.apply(&register(Identity(2))).is_err());
}

#[test]
fn changes_without_sense_are_refused() {
    let state = founded(7);
    let remove = |node| state.changed(&Change::Remove(node));
    assert_eq!(remove(9), Err(Refusal::NotMember(9)));
    assert_eq!(
        state.changed(&Change::Add(member(2, ACCEPTOR))),
        Err(Refusal::IsMember(2))
    );
    assert_eq!(
        state.changed(&Change::Add(member(0, ACCEPTOR))),
        Err(Refusal::NotAnId(0))
    );
    let mut state = founded(7);
    for node in 20..20 + ACCEPTORS_MAX as NodeId - 3 {
        let epoch = opened(&state).epoch;
        let add = Change::Add(member(node, ACCEPTOR));
        state.apply(&begin(epoch, Some(add))).expect("room");
        let all = opened(&state).acceptors();
        state.apply(&install(epoch + 1, &all, &[])).expect("all");
        let open = Command::Open { epoch: epoch + 1 };
        state.apply(&open).expect("installed");
    }
    let refused = state.changed(&Change::Add(member(99, ACCEPTOR)));
    assert!(matches!(
        refused,
        Err(Refusal::TooMany {
            max: ACCEPTORS_MAX,
            ..
        })
    ));
    let mut state = founded(7);
    let mut replace = |old, new| {
        let epoch = opened(&state).epoch;
        let new = member(new, ACCEPTOR);
        state.apply(&begin(epoch, Some(Change::Replace { old, new })))?;
        state.apply(&install(epoch + 1, &[1, 2], &[]))?;
        state.apply(&Command::Open { epoch: epoch + 1 })
    };
    replace(11, 30).expect("another leader is left");
    assert_eq!(replace(12, 31), Err(Refusal::NobodyLeft("leaders".into())));
}

#[test]
fn leaders_are_spread_moved_and_replaced() {
    let mut state = founded(7);
    assert_eq!(opened(&state).leaders, [[11, 12], [12, 11], [11, 12]]);
    let revision = opened(&state).revision;
    let to = |partition, to| Command::MoveLeader { partition, to };
    state.apply(&to(Some(0), 12)).expect("a leader");
    assert_eq!(opened(&state).leaders, [[12, 11], [12, 11], [11, 12]]);
    assert_eq!(opened(&state).epoch, 7, "votes do not care who leads");
    assert!(opened(&state).revision > revision);
    state.apply(&to(None, 11)).expect("a leader");
    assert_eq!(opened(&state).leaders, [[11, 12]; 3]);
    let no = |partition, node| founded(7).apply(&to(partition, node)).expect_err("no");
    assert_eq!(no(None, 1), Refusal::NotLeader(1));
    assert_eq!(no(None, 9), Refusal::NotMember(9));
    let (found, partitions) = (3, 3);
    assert_eq!(no(Some(3), 11), Refusal::NoPartition { found, partitions });
    let new = member(13, SERVER);
    let target = state
        .changed(&Change::Replace { old: 11, new })
        .expect("good");
    assert_eq!(target.leaders, [[13, 12]; 3]);
}

#[test]
fn a_cluster_is_founded_once_and_well() {
    let mut state = founded(7);
    let configuration = opened(&state).clone();
    let again = Command::Found(configuration.clone());
    assert_eq!(state.apply(&again), Err(Refusal::Founded(7)));
    let mut state = State::default();
    assert_eq!(state.apply(&begin(0, None)), Err(Refusal::NotFounded));
    let mut wrong = configuration.clone();
    wrong.beginning = Beginning::Merged;
    assert!(state.apply(&Command::Found(wrong)).is_err());
    let mut wrong = configuration.clone();
    wrong.beginning = Beginning::Fresh(vec![1]);
    assert!(state.apply(&Command::Found(wrong)).is_err());
    let mut wrong = configuration;
    wrong.epoch = 0;
    assert!(state.apply(&Command::Found(wrong)).is_err());
}
