//! A single member, message by message.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use inband_ground::auth::Digest;
use inband_paxos::dataplane::soft::{Geometry, Registers, Roles};

use crate::acceptor::{AcceptorError, AcceptorState, Holds, Merged, Piece, Position, StoredVote};
use crate::configuration::{Beginning, Configuration, Epoch, Identity, Member as Node, Parts};
use crate::member::{Broken, Fences, MemberAgent, MemberConfig, NoteError, Notes};
use crate::message::{InstallOrder, Message, Order, Pull};
use crate::outbox::Outbox;
use crate::registers::RegisterState;
use crate::timing::Timing;

const GEOMETRY: Geometry = Geometry {
    partitions: 1,
    ring_slots: 64,
};

#[derive(Clone, Default)]
struct Paper {
    fences: Rc<RefCell<Fences>>,
    full: bool,
}

impl Notes for Paper {
    fn fences(&self) -> Fences {
        *self.fences.borrow()
    }

    fn note(&mut self, fences: Fences) -> Result<(), NoteError> {
        if self.full {
            return Err(NoteError("no space left".into()));
        }
        *self.fences.borrow_mut() = fences;
        Ok(())
    }
}

/// An acceptor whose disk can be full: it changes its registers, and cannot record that it holds other votes.
struct Recorded {
    state: RegisterState<Rc<Registers>>,
    is_full: Rc<Cell<bool>>,
}

impl AcceptorState for Recorded {
    fn partitions(&self) -> usize {
        self.state.partitions()
    }

    fn digest(&self) -> Digest {
        self.state.digest()
    }

    fn position(&self, partition: usize) -> Position {
        self.state.position(partition)
    }

    fn epoch(&self) -> Epoch {
        self.state.epoch()
    }

    fn is_voting(&self) -> bool {
        self.state.is_voting()
    }

    fn holds(&self) -> Option<Holds> {
        self.state.holds()
    }

    fn seal(&mut self, epoch: Epoch) -> Result<(), AcceptorError> {
        self.state.seal(epoch)
    }

    fn export(
        &self,
        partition: usize,
        from: u64,
        len_bytes_max: usize,
    ) -> Result<Piece, AcceptorError> {
        self.state.export(partition, from, len_bytes_max)
    }

    fn install(&mut self, partition: usize, merged: &Merged) -> Result<(), AcceptorError> {
        self.state.install(partition, merged)
    }

    fn installed(&mut self, holds: Holds) -> Result<(), AcceptorError> {
        match self.is_full.get() {
            true => Err(AcceptorError::Unreachable("no space left".into())),
            false => self.state.installed(holds),
        }
    }

    fn start_fresh(&mut self, epoch: Epoch, first: &[u64]) -> Result<(), AcceptorError> {
        self.state.start_fresh(epoch, first)
    }

    fn open(&mut self) -> Result<(), AcceptorError> {
        self.state.open()
    }
}

type TestMember = MemberAgent<Recorded, Paper>;

fn address(node: u8) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, node], 7500))
}

fn start(node: u8, life: u64, notes: &Paper) -> TestMember {
    start_on(node, life, notes, &Rc::default())
}

fn start_on(node: u8, life: u64, notes: &Paper, is_full: &Rc<Cell<bool>>) -> TestMember {
    let roles = Roles {
        acceptor: true,
        ..Roles::default()
    };
    let registers = Rc::new(Registers::new(GEOMETRY, roles));
    let config = MemberConfig {
        node,
        identity: Identity(u64::from(node)),
        life,
        control: address(node),
        controllers: vec![(9, address(9))],
        settings: String::new(),
        timing: Timing::default(),
    };
    let acceptor = Recorded {
        state: RegisterState::new(registers, GEOMETRY),
        is_full: is_full.clone(),
    };
    MemberAgent::new(config, Some(acceptor), notes.clone())
}

fn configuration(epoch: Epoch, beginning: Beginning) -> Configuration {
    let member = |node: u8| Node {
        node,
        name: format!("node/{node}"),
        data: "10.0.0.1:7400".parse().expect("an address"),
        control: address(node),
        parts: Parts {
            acceptor: node < 9,
            leader: node == 9,
            controller: node == 9,
            replica: false,
        },
        identity: Some(Identity(u64::from(node))),
    };
    Configuration {
        epoch,
        revision: u64::from(epoch),
        members: [1, 2, 3, 9].map(|n| (n, member(n))).into(),
        leaders: vec![vec![9]],
        beginning,
    }
}

fn fresh(epoch: Epoch) -> Order {
    Order::Enter(configuration(epoch, Beginning::Fresh(vec![1])))
}

fn merged(epoch: Epoch) -> Order {
    Order::Enter(configuration(epoch, Beginning::Merged))
}

fn install(target: Epoch, base: Epoch) -> Order {
    Order::Install(InstallOrder {
        target,
        base,
        sealed: vec![(1, address(1)), (2, address(2))],
        holders: vec![],
    })
}

fn order(member: &mut TestMember, order: Order) {
    member.on_order(0, order, &mut Outbox::new());
}

fn is_voting(member: &TestMember) -> bool {
    member.acceptor().expect("it has one").is_voting()
}

fn nothing() -> Piece {
    Piece {
        position: Position::default(),
        votes: vec![],
        next: None,
    }
}

fn pulled(member: &mut TestMember, target: Epoch, base: Epoch) {
    for from in [1, 2] {
        let pull = Pull {
            target,
            base,
            partition: 0,
            from: 0,
        };
        member.on_pulled(0, from, pull, false, &nothing(), &mut Outbox::new());
    }
}

fn vote(instance: u64, vround: u64, value: &[u8]) -> StoredVote {
    StoredVote {
        instance,
        promise: vround,
        vround,
        digest: inband_paxos::dataplane::wire::digest(value),
        client_id: 1,
        client_seq: 2,
        client_low: 3,
        flags: 0,
        value: value.to_vec(),
    }
}

fn piece(floor: u64, highest: u64, votes: &[StoredVote]) -> Piece {
    Piece {
        position: Position {
            promise: 1,
            floor,
            highest,
        },
        votes: votes.to_vec(),
        next: None,
    }
}

#[test]
fn votes_from_the_first_epoch_on_and_never_again_there_after_a_restart() {
    let notes = Paper::default();
    let mut member = start(3, 1, &notes);
    assert!(!is_voting(&member));
    order(&mut member, fresh(4));
    assert!(is_voting(&member));
    let mut member = start(3, 2, &notes);
    order(&mut member, fresh(4));
    assert!(!is_voting(&member));
    order(&mut member, fresh(5));
    assert!(is_voting(&member), "everybody begins empty again");
}

#[test]
fn an_unregistered_host_does_not_vote() {
    let mut member = start(3, 1, &Paper::default());
    let mut unknown = configuration(4, Beginning::Fresh(vec![1]));
    unknown.members.get_mut(&3).expect("a member").identity = None;
    order(&mut member, Order::Enter(unknown.clone()));
    assert!(!is_voting(&member));
    let mut registered = unknown;
    registered.revision += 1;
    registered.members.get_mut(&3).expect("a member").identity = Some(Identity(3));
    order(&mut member, Order::Enter(registered));
    assert!(is_voting(&member));
}

#[test]
fn votes_in_an_epoch_only_after_installing_for_it() {
    let mut member = start(3, 1, &Paper::default());
    order(&mut member, install(5, 4));
    pulled(&mut member, 5, 4);
    assert!(!is_voting(&member), "not opened yet");
    order(&mut member, merged(6));
    assert!(!is_voting(&member), "installed for another");
    let mut member = start(3, 1, &Paper::default());
    order(&mut member, install(5, 4));
    order(&mut member, merged(5));
    pulled(&mut member, 5, 4);
    assert!(!is_voting(&member), "too late: others vote already");
    let mut member = start(3, 1, &Paper::default());
    order(&mut member, install(5, 4));
    pulled(&mut member, 5, 4);
    order(&mut member, merged(5));
    assert!(is_voting(&member));
}

/// It was sealed and counted as one that never voted in epoch 5. Orders for epoch 5 arrive late.
fn votes_after_it_counted_as_abstaining(broken: Broken) -> bool {
    let notes = Paper::default();
    let mut member = start(3, 1, &notes);
    member.broken = broken;
    order(&mut member, Order::Seal { target: 6 });
    let mut member = start(3, 2, &notes);
    order(&mut member, install(5, 4));
    pulled(&mut member, 5, 4);
    order(&mut member, merged(5));
    is_voting(&member)
}

#[test]
fn who_never_voted_notes_that_it_never_will() {
    assert!(!votes_after_it_counted_as_abstaining(Broken::default()));
    let broken = Broken {
        fence_not_noted: true,
        ..Broken::default()
    };
    assert!(votes_after_it_counted_as_abstaining(broken));
}

#[test]
fn does_not_vote_while_its_notes_cannot_be_written() {
    let notes = Paper {
        full: true,
        ..Paper::default()
    };
    let mut member = start(3, 1, &notes);
    order(&mut member, fresh(4));
    assert!(!is_voting(&member));
    assert!(member.trouble().expect("said").contains("no space left"));
}

#[test]
fn shows_its_votes_only_while_sealed_for_this_very_reconfiguration() {
    let mut member = start(1, 1, &Paper::default());
    let pull = Pull {
        target: 5,
        base: 4,
        partition: 0,
        from: 0,
    };
    let shows = |member: &mut TestMember| {
        let mut out = Outbox::new();
        member.on_pull(pull, &mut out);
        let shown = out
            .drain()
            .any(|(_, m)| matches!(m, Message::Pulled { .. }));
        shown
    };
    order(&mut member, fresh(4));
    assert!(!shows(&mut member), "still votes");
    order(&mut member, Order::Seal { target: 5 });
    assert!(shows(&mut member));
    order(&mut member, Order::Seal { target: 6 });
    assert!(!shows(&mut member), "sealed for another");
    let mut forgetful = start(1, 2, &Paper::default());
    order(&mut forgetful, Order::Seal { target: 5 });
    assert!(!shows(&mut forgetful), "it remembers nothing");
    let mut holder = start(1, 1, &Paper::default());
    order(&mut holder, fresh(4));
    order(&mut holder, install(5, 4));
    pulled(&mut holder, 5, 4);
    assert!(shows(&mut holder));
    order(&mut holder, merged(5));
    assert!(!shows(&mut holder), "votes in the new epoch");
}

#[test]
fn merging_takes_the_highest_round_whatever_the_order() {
    let one = piece(
        3,
        9,
        &[vote(3, 7, b"a"), vote(5, 7, b"b"), vote(9, 8, b"c")],
    );
    let other = piece(5, 6, &[vote(5, 9, b"d"), vote(6, 2, b"e")]);
    let mut merged = Merged::default();
    merged.add(&one).expect("fits");
    merged.add(&other).expect("fits");
    let mut reversed = Merged::default();
    for piece in [&other, &one, &other] {
        reversed.add(piece).expect("fits");
    }
    assert_eq!(merged, reversed);
    let values: Vec<(u64, &[u8])> = merged
        .votes
        .iter()
        .map(|(i, v)| (*i, &v.value[..]))
        .collect();
    assert_eq!(values, [(5, &b"d"[..]), (6, b"e"), (9, b"c")]);
    assert_eq!(
        merged.position,
        Position {
            promise: 9,
            floor: 5,
            highest: 9
        }
    );
}

#[test]
fn a_damaged_copy_gives_way_and_two_values_in_a_round_are_an_error() {
    let mut damaged = vote(5, 7, b"value");
    damaged.value[0] ^= 1;
    let whole = piece(1, 5, &[vote(5, 7, b"value")]);
    for pieces in [
        [&piece(1, 5, &[damaged.clone()]), &whole],
        [&whole, &piece(1, 5, &[damaged])],
    ] {
        let mut merged = Merged::default();
        pieces
            .iter()
            .for_each(|p| merged.add(p).expect("one value"));
        assert_eq!(merged.votes[&5].value, b"value");
    }
    let mut merged = Merged::default();
    merged.add(&whole).expect("fits");
    assert!(merged.add(&piece(1, 5, &[vote(5, 7, b"other")])).is_err());
}

#[test]
fn an_acceptor_shows_what_was_installed_and_nothing_of_its_own() {
    let mut member = start(1, 1, &Paper::default());
    order(&mut member, fresh(4));
    let mut merged = Merged::default();
    let votes: Vec<StoredVote> = (10..70).map(|i| vote(i, i, &[i as u8; 33])).collect();
    merged.add(&piece(10, 69, &votes)).expect("fits");
    let roles = Roles {
        acceptor: true,
        ..Roles::default()
    };
    let registers = Registers::new(GEOMETRY, roles);
    let mut state = RegisterState::new(&registers, GEOMETRY);
    let mut own = Merged::default();
    own.add(&piece(1, 64, &[vote(1, 99, b"own"), vote(64, 99, b"own")]))
        .expect("fits");
    state.install(0, &own).expect("free");
    state.install(0, &merged).expect("free");
    let mut shown = Merged::default();
    let mut from = 0;
    loop {
        let piece = state.export(0, from, 500).expect("free");
        assert!(piece.votes.len() < 10, "in pieces");
        shown.add(&piece).expect("fits");
        match piece.next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!(shown.votes, merged.votes);
    assert_eq!(shown.position.highest, 69);
}

/// A full disk, or one that takes longer than a command to the host's thread may: what an acceptor has installed is
/// recorded when there is room again.
#[test]
fn what_is_installed_while_the_disk_is_full_is_recorded_later() {
    let is_full = Rc::new(Cell::new(true));
    let mut member = start_on(3, 1, &Paper::default(), &is_full);
    order(&mut member, install(5, 4));
    pulled(&mut member, 5, 4);
    assert!(member.trouble().expect("said").contains("no space left"));
    let mut now = 0;
    let mut wait = |member: &mut TestMember| {
        for _ in 0..10 {
            now += Timing::default().stall_us / 2;
            member.on_tick(now, &mut Outbox::new());
        }
    };
    wait(&mut member);
    let holds = |member: &TestMember| member.acceptor().expect("it has one").holds();
    assert_eq!(holds(&member), None, "nothing is on disk");
    assert!(member.trouble().expect("said").contains("no space left"));
    is_full.set(false);
    wait(&mut member);
    assert_eq!(holds(&member), Some(Holds { epoch: 5, base: 4 }));
    assert_eq!(member.trouble(), None);
    order(&mut member, merged(5));
    assert!(is_voting(&member));
}

/// Found by the fuzzer (target `control`).
#[test]
fn a_configuration_whose_ids_do_not_match_ends_nobody() {
    let notes = Paper::default();
    let mut member = start(1, 1, &notes);
    let mut wrong = configuration(1, Beginning::Fresh(vec![1]));
    wrong.members.get_mut(&9).expect("a controller").node = 8;
    order(&mut member, Order::Enter(wrong));
    assert_eq!(
        member.configuration().map(|c| c.controllers()),
        Some(vec![9])
    );
}
