//! Slow disks, slow answers, and a leader whose process hangs.

use inband_box::node::Doing;
use inband_box::Zab;
use inband_ground::auth::Gate;
use inband_ground::soft::Soft;

use super::*;

const MS: u64 = 1_000_000;

fn started_as(id: u8, role: &impl Role) -> Node {
    let config = Config {
        node: id,
        nodes: 3,
        founding: Membership::founding(3, Quorum::Majority),
        suspect_after_ns: SUSPECT_AFTER_NS,
    };
    let random = 6 + u64::from(id);
    Node::new(
        config,
        Start::Founding,
        Stored::default(),
        None,
        random,
        0,
        role,
    )
}

fn gets_at(node: &mut Node, now: u64, epoch: u64, control: &Control, role: &impl Role) -> Out {
    let (header, value) = control.encode(1, epoch);
    let packet = wire::emit(&header, &value);
    let (header, value) = wire::parse(&packet).expect("a packet");
    let mut out = Out::default();
    node.on_packet(now, &header, value, role, &mut out);
    out
}

/// Node `id`, which follows node 1 in epoch 33.
fn follows(id: u8, role: &impl Role) -> Node {
    let mut node = started_as(id, role);
    gets_at(&mut node, MS, 33, &LEAD, role);
    node.on_tick(MS, role, &mut Out::default());
    assert_eq!(node.leader(), Some(1));
    node
}

fn signed(mut packet: Vec<u8>) -> Vec<u8> {
    Gate::of::<Zab>(None, 1).sign(&mut packet);
    packet
}

/// Delivers a packet, and what the roles send because of it.
fn deliver(roles: &[Soft<Zab>], now: u64, from: usize, to: &[usize], packet: &[u8]) {
    for at in to.iter().copied().filter(|at| *at != from) {
        let (verdict, left) = roles[at].handled(packet, now);
        match verdict {
            Verdict::Reply => deliver(roles, now, at, &[from], &signed(left)),
            Verdict::ToOthers => deliver(roles, now, at, &[0, 1, 2], &signed(left)),
            Verdict::Pass | Verdict::Drop => {}
        }
    }
}

/// Each question took a new id, and only an answer to the last one counted.
#[test]
fn a_read_is_answered_although_answers_take_longer_than_a_question_is_repeated() {
    let role = inband_box::soft::soft(2, 64);
    let mut node = follows(2, &role);
    node.read_index(1);
    let answers_after = SUSPECT_AFTER_NS / 2;
    let mut asked: Vec<(u64, u64)> = Vec::new();
    let mut questions = 0;
    for now in (2 * MS..SUSPECT_AFTER_NS).step_by(MS as usize / 2) {
        let mut out = Out::default();
        node.on_tick(now, &role, &mut out);
        for (_, control) in said(&out) {
            if let Control::Ask { id } = control {
                questions += 1;
                asked.push((now + answers_after, id));
            }
        }
        for (_, id) in asked.extract_if(.., |(at, _)| *at <= now) {
            let index = Control::Index { id, index: 0 };
            let read = gets_at(&mut node, now, 33, &index, &role).reads;
            if !read.is_empty() {
                assert!(questions > 1, "the question was not repeated");
                return assert_eq!(read, [(1, 0)]);
            }
        }
    }
    panic!("{questions} questions were answered, the read was not");
}

/// Without its process the leader's role commits what others submit, but no read is answered.
#[test]
fn a_leader_whose_process_hangs_is_suspected_although_its_role_commits_writes() {
    let roles = [1, 2, 3].map(|id| inband_box::soft::soft(id, 65_536));
    roles[0].set_quorum(0b1110, 2);
    roles[0].raise_epoch(33);
    assert!(roles[0].lead(33));
    let mut nodes = [2, 3].map(|id| follows(id, &roles[usize::from(id) - 1]));
    let membership = Membership::founding(3, Quorum::Majority);
    let zxid = roles[0].append(&membership.record()).expect("appended");
    let first = roles[0].propose(zxid).expect("it is in the log");
    deliver(&roles, MS, 0, &[1, 2], &signed(first));
    let mut applied = [0, 0];
    let limit = 20 * SUSPECT_AFTER_NS;
    for now in (2 * MS..limit).step_by(MS as usize) {
        for n in 0..2 {
            let (node, role) = (&mut nodes[n], &roles[n + 1]);
            while applied[n] < role.committed() {
                applied[n] += 1;
                let record = role.read(applied[n]).expect("it is in the log");
                role.set_applied(applied[n]);
                node.on_applied(&record, true, now);
            }
            if n == 0 && node.outstanding() == 0 {
                node.submit(vec![1, 2, 3]);
            }
            let mut out = Out::default();
            node.on_tick(now, role, &mut out);
            if said(&out)
                .iter()
                .any(|(_, c)| matches!(c, Control::PreElect { .. }))
            {
                assert!(roles[0].committed() > 20, "it committed nothing meanwhile");
                return assert!(now > 5 * SUSPECT_AFTER_NS, "{now}: it may just be busy");
            }
            for (to, packet) in out.packets {
                let (header, _) = wire::parse(&packet).expect("a packet");
                if header.kind == Type::Submit && to == To::Node(1) {
                    deliver(&roles, now, n + 1, &[0], &signed(packet));
                }
            }
        }
    }
    panic!("it was not suspected within {limit} ns");
}

#[test]
fn an_election_waits_as_long_as_disks_need() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let now = elects(&mut node, &role);
    let (epoch, took) = (node.epoch(), 100 * MS);
    node.on_stored(now + took, took);
    // The voters' disks are as slow as this one.
    let now = now + 2 * took;
    node.on_tick(now, &role, &mut Out::default());
    for (from, new_id) in [(2, 8), (3, 9)] {
        gets(&mut node, from, epoch, &promise(0, 0, new_id, 7), &role);
    }
    assert_eq!(role.view().mode, Mode::Leading);
}

/// A node that knows that the new ones have their place tells those that greet it.
#[test]
fn a_new_node_greets_the_others_while_it_asks_for_an_election() {
    let role = inband_box::soft::soft(1, 64);
    let mut node = started(Start::Founding, Stored::default(), &role);
    let mut greetings = 0;
    let mut questions = 0;
    for now in (2 * SUSPECT_AFTER_NS..6 * SUSPECT_AFTER_NS).step_by(MS as usize) {
        let mut out = Out::default();
        node.on_tick(now, &role, &mut out);
        for (_, control) in said(&out) {
            questions += u64::from(matches!(control, Control::PreElect { .. }));
            greetings += u64::from(matches!(control, Control::Hello { .. }));
        }
    }
    assert!(
        questions > 1 && greetings > 1,
        "{questions} and {greetings}"
    );
}

/// Nobody must send it clients.
#[test]
fn a_node_that_does_not_hear_its_leader_says_that_it_waits() {
    let role = inband_box::soft::soft(2, 64);
    let mut node = follows(2, &role);
    assert_eq!(node.status(&role).doing, Doing::Following);
    let silent = MS + 4 * SUSPECT_AFTER_NS;
    node.on_tick(silent, &role, &mut Out::default());
    assert_eq!(node.status(&role).doing, Doing::Waiting);
    let heartbeat = Header {
        node: 1,
        flags: flag::ROUND,
        epoch: 33,
        round: 1,
        leader: 1,
        ..Header::of(Type::Commit)
    };
    role.handled(&signed(wire::emit(&heartbeat, &[])), silent + 1);
    node.on_tick(silent + 2, &role, &mut Out::default());
    assert_eq!(node.status(&role).doing, Doing::Following);
}
