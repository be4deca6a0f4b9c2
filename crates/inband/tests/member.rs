//! `inband member` against control planes that answer what a test wants.

use std::cell::RefCell;

use anyhow::Result;
use inband_cluster::paxos::change::{Plane, PlaneError};
use inband_control::configuration::{Beginning, Configuration, Identity, Member, NodeId, Parts};
use inband_control::coordinator::Waiting;
use inband_control::message::{AcceptorReport, StoppedLog};
use inband_control::service::{HostStatus, Request, Response, Status};
use inband_control::state::{Pending, Phase, Refusal};
use inband_program::member::{begin_anew_on, in_words};

/// A control plane that gives these answers to restart requests, and these reports of its state, one after another.
struct Scripted {
    answers: RefCell<Vec<Result<Response, PlaneError>>>,
    states: RefCell<Vec<Status>>,
    said: RefCell<Vec<String>>,
}

impl Plane for Scripted {
    fn ask(&self, request: &Request) -> Result<Response, PlaneError> {
        if *request == Request::Status {
            let mut states = self.states.borrow_mut();
            if states.is_empty() {
                return Err(PlaneError::Silent("gone".into()));
            }
            return Ok(Response::Status(Box::new(states.remove(0))));
        }
        self.answers.borrow_mut().remove(0)
    }

    fn say(&self, what: String) {
        self.said.borrow_mut().push(what);
    }

    fn wait_a_little(&self) -> bool {
        true
    }
}

fn state(opened: Option<Configuration>, hosts: Vec<HostStatus>) -> Status {
    Status {
        leader: 1,
        voters: vec![1],
        opened,
        pending: None,
        waiting: Waiting::Nothing,
        hosts,
    }
}

/// The result of begin-anew, and what it said it was waiting for.
fn begun_anew(answers: Vec<Result<Response, PlaneError>>) -> (Result<()>, Vec<String>) {
    begun_anew_in(vec![state(None, Vec::new())], answers)
}

fn begun_anew_in(
    states: Vec<Status>,
    answers: Vec<Result<Response, PlaneError>>,
) -> (Result<()>, Vec<String>) {
    let plane = Scripted {
        answers: RefCell::new(answers),
        states: RefCell::new(states),
        said: RefCell::default(),
    };
    let ended = begin_anew_on(&plane, Vec::new());
    assert!(plane.answers.borrow().is_empty(), "all were asked for");
    (ended, plane.said.into_inner())
}

#[test]
fn begin_anew_ends_well_only_when_the_restart_is_accepted() {
    let halted = || Ok(Response::Halted { epoch: 5 });
    let unknown = || Err(PlaneError::Refused(Refusal::PositionUnknown(3)));
    let short = || {
        Err(PlaneError::Refused(Refusal::NotDurable {
            log: 0,
            applied: 10,
            holders: 1,
            needed: 2,
        }))
    };
    let accepted = || Ok(Response::Accepted { epoch: 6 });
    let answers = vec![halted(), unknown(), unknown(), short(), accepted()];
    let (ended, said) = begun_anew(answers);
    ended.expect("accepted");
    let [first, second] = &said[..] else {
        panic!("each reason once: {said:?}");
    };
    assert!(first.contains("replica of node 3"), "{first}");
    assert!(
        second.contains("1 of the 2 replicas needed hold instance 10"),
        "{second}"
    );
    assert!(begun_anew(vec![accepted()]).0.is_ok(), "nothing to halt");
    // Two concurrent callers: the second halt is not final either.
    assert!(begun_anew(vec![halted(), halted(), accepted()]).0.is_ok());
}

#[test]
fn begin_anew_that_fails_says_what_to_do_about_the_halted_cluster() {
    let halted = || Ok(Response::Halted { epoch: 5 });
    let fails = |answers| format!("{:#}", begun_anew(answers).0.expect_err("it fails"));
    let gone = || Err(PlaneError::Silent("gone".into()));
    let hint = "the cluster is halted; fix this and run `inband member begin-anew` again";
    for last in [
        gone(),
        Err(PlaneError::Unknown),
        Ok(Response::OutcomeUnknown),
    ] {
        let said = fails(vec![halted(), last]);
        assert!(said.contains(hint), "{said}");
    }
    let said = fails(vec![Err(PlaneError::Unknown)]);
    assert!(
        said.contains("run `inband member begin-anew` again"),
        "{said}"
    );
    let said = fails(vec![Err(PlaneError::Refused(Refusal::NothingLost))]);
    assert!(!said.contains("halted"), "{said}");
}

/// The report that a log has stopped may reach the control plane between the status and the request.
#[test]
fn begin_anew_says_why_even_if_the_log_was_reported_as_stopped_just_now() {
    let replica = Parts {
        replica: true,
        ..Parts::default()
    };
    let opened = Configuration {
        epoch: 4,
        revision: 17,
        members: [node(1, "one", replica)].into(),
        leaders: vec![vec![1]],
        beginning: Beginning::Merged,
    };
    let with = |stopped: Vec<StoppedLog>| {
        let mut host = heard(1, 30, true, 4);
        host.stopped = stopped;
        state(Some(opened.clone()), vec![host])
    };
    let stopped = || {
        vec![StoppedLog {
            log: 0,
            instance: 7,
            for_ms: 5_000,
            unreadable_at: Vec::new(),
        }]
    };
    let answers = || {
        vec![
            Ok(Response::Halted { epoch: 5 }),
            Ok(Response::Accepted { epoch: 6 }),
        ]
    };
    for states in [
        vec![with(Vec::new()), with(stopped())],
        vec![with(stopped()), with(stopped())],
    ] {
        let (ended, said) = begun_anew_in(states, answers());
        ended.expect("accepted");
        assert_eq!(
            said,
            ["one: partition 0 has stood at instance 7 for 5 s"],
            "once"
        );
    }
}

fn node(id: NodeId, name: &str, parts: Parts) -> (NodeId, Member) {
    let address = format!("10.77.0.{id}:7400").parse().expect("an address");
    let member = Member {
        node: id,
        name: name.into(),
        data: address,
        control: address.into(),
        parts,
        identity: Some(Identity(u64::from(id))),
    };
    (id, member)
}

fn heard(id: NodeId, silent_ms: u64, voting: bool, entered: u32) -> HostStatus {
    HostStatus {
        node: id,
        identity: Identity(u64::from(id)),
        silent_ms,
        acceptor: Some(AcceptorReport {
            epoch: 4,
            voting,
            holds: None,
            entered,
            fenced: 0,
            progress: 0,
            positions: Vec::new(),
        }),
        stopped: Vec::new(),
    }
}

#[test]
fn the_list_says_how_everybody_is() {
    let acceptor = Parts {
        acceptor: true,
        controller: true,
        ..Parts::default()
    };
    let leader = Parts {
        leader: true,
        ..Parts::default()
    };
    let opened = Configuration {
        epoch: 4,
        revision: 17,
        members: [
            node(1, "leader", leader),
            node(2, "acceptor/0", acceptor),
            node(3, "acceptor/1", acceptor),
            node(4, "acceptor/2", acceptor),
        ]
        .into(),
        leaders: vec![vec![1], vec![1], vec![1]],
        beginning: Beginning::Merged,
    };
    let mut target = opened.clone();
    target.epoch = 5;
    target.members.remove(&4);
    target.members.extend([node(9, "acceptor/3", acceptor)]);
    let mut status = Status {
        leader: 3,
        voters: vec![2, 3, 4],
        opened: Some(opened),
        pending: Some(Pending {
            target,
            change: None,
            phase: Phase::Sealing,
        }),
        waiting: Waiting::Unreachable(vec![4]),
        hosts: vec![
            heard(2, 30, true, 4),
            heard(3, 30, false, 4),
            heard(4, 7_000, true, 4),
        ],
    };
    let text = in_words(&status);
    for says in [
        "epoch 4  revision 17  control plane led by acceptor/1",
        "leader         leader                       10.77.0.1:7400         never heard",
        "acceptor/0     acceptor, controller         10.77.0.2:7400         votes\n",
        "recovering: it has lost its votes\n",
        "silent for 7 s, on its way out\n",
        "never heard by the leader of the control plane, on its way in\n",
        "epoch 5 is being prepared, so that all acceptors vote again\n",
        "partition 1 is led by the first of: leader\n",
        "log M is led by the first of: leader\n",
        "the control plane waits for acceptor/2\n",
    ] {
        assert!(text.contains(says), "{says:?} is missing in:\n{text}");
    }
    status.hosts[0].identity = Identity(77);
    assert!(in_words(&status).contains("it has lost its state directory, replace it"));
    status.opened = None;
    assert!(in_words(&status).starts_with("no configuration yet"));
}
