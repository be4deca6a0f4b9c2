//! The FLAIR switch through its shell, in the native build: sequences of packets, and after each the rules of
//! docs/flair.md that no packet may break.
//!
//! `crates/inband-dataplane/tests/flair_equal.rs` runs the same corpus through the kernel's program.

#[path = "../../../crates/inband-dataplane/tests/common/flair_sequence.rs"]
mod flair_sequence;

use inband_flair::dataplane::registers::{GroupView, SessionView};
use inband_flair::dataplane::wire::{flag, parse, Header, Type};
use inband_flair::dataplane::{FlairSwitch, Verdict};
use inband_paxos::dataplane::wire::{HEADER_LEN_BYTES, PACKET_LEN_MAX_BYTES};

use flair_sequence::{Sequence, Step, GEOMETRY, INCARNATION, NODE, RECORD_LEN_BYTES};

/// All registers.
#[derive(Debug, Clone, PartialEq)]
struct Moment {
    sessions: Vec<SessionView>,
    groups: Vec<GroupView>,
}

thread_local! {
    static SWITCH: FlairSwitch = FlairSwitch::new(NODE, GEOMETRY, INCARNATION);
}

/// A sequence of records.
pub fn run(bytes: &[u8]) {
    SWITCH.with(|switch| {
        switch.registers().clear();
        let mut sequence = Sequence::default();
        let mut before = moment(switch);
        for record in bytes.chunks_exact(RECORD_LEN_BYTES) {
            let step = sequence.step(record.try_into().expect("so many bytes"));
            let (verdict, out) = handle(switch, &step);
            let after = moment(switch);
            judge(&step, &before, &after, verdict, &out);
            if verdict != Verdict::Drop {
                sequence.answered(&out);
            }
            before = after;
        }
    });
}

fn moment(switch: &FlairSwitch) -> Moment {
    let registers = switch.registers();
    let session = |set| {
        registers
            .sessions
            .session(set)
            .expect("nothing stays taken")
    };
    let group = |index| registers.groups.group(index).expect("nothing stays taken");
    Moment {
        sessions: (0..GEOMETRY.sets).map(session).collect(),
        groups: (0..GEOMETRY.sets * GEOMETRY.groups).map(group).collect(),
    }
}

fn handle(switch: &FlairSwitch, step: &Step) -> (Verdict, Vec<u8>) {
    let mut buffer = Box::new([0u8; PACKET_LEN_MAX_BYTES]);
    let len_bytes = step.packet.len();
    buffer[..len_bytes].copy_from_slice(&step.packet);
    let random = u64::from(step.random);
    let (verdict, _reason, len_bytes) =
        switch.handle(&mut buffer, len_bytes, step.from, step.now_ns, random);
    (verdict, buffer[..len_bytes].to_vec())
}

fn judge(step: &Step, before: &Moment, after: &Moment, verdict: Verdict, out: &[u8]) {
    let header = parse(&step.packet).ok().map(|(header, ..)| header);
    let known = header.filter(|h| usize::from(h.set) < GEOMETRY.sets);
    let Some(header) = known else {
        assert_eq!(verdict, Verdict::Drop, "not a packet for this switch");
        assert_eq!(before, after, "it reached a register");
        return;
    };
    let set = usize::from(header.set);
    let index = set * GEOMETRY.groups + GEOMETRY.group_of(header.key_hash);
    nothing_else_changed(before, after, set, index);
    let (was, is) = (&before.sessions[set], &after.sessions[set]);
    sessions_go_on(&header, was, is, step.now_ns);
    let (group_was, group_is) = (&before.groups[index], &after.groups[index]);
    groups_go_on(&header, was, is, group_was, group_is, verdict);
    match verdict {
        Verdict::Drop => {}
        Verdict::Pass => panic!("the role passes nothing"),
        Verdict::Reply => drop(sent(out)),
        Verdict::ToReplica { set: to, replica } => {
            assert!(was.is_active(step.now_ns), "served without a session");
            let sent = sent(out);
            assert_eq!((to, replica), (set, usize::from(sent.replica)));
            is_routed(&header, &sent, is, group_is);
        }
        Verdict::ToClient(client) => {
            assert!(was.is_active(step.now_ns), "answered without a session");
            let sent = sent(out);
            assert_eq!((client, sent.session), (header.client, was.session));
            if header.kind == Type::ReadReply && header.has(flag::STABLE) {
                let found = as_found(was, group_was);
                assert!(
                    header.seq == found.seq && !header.has(flag::REFUSED),
                    "stale"
                );
            }
        }
    }
}

fn nothing_else_changed(before: &Moment, after: &Moment, set: usize, index: usize) {
    for other in (0..before.sessions.len()).filter(|other| *other != set) {
        assert_eq!(before.sessions[other], after.sessions[other], "set {other}");
    }
    for other in (0..before.groups.len()).filter(|other| *other != index) {
        assert_eq!(before.groups[other], after.groups[other], "group {other}");
    }
}

/// Sessions and sequence numbers only grow; a deadline is 0, or a time from a packet plus the step-down time.
fn sessions_go_on(header: &Header, was: &SessionView, is: &SessionView, now_ns: u64) {
    assert!(is.session >= was.session && is.seq >= was.seq && is.replied >= was.replied);
    if is.session != was.session {
        assert_eq!(header.kind, Type::Install);
        assert_eq!(
            (header.session, header.incarnation()),
            (is.session, INCARNATION)
        );
        assert_eq!(is.deadline_ns, 0, "active before a heartbeat of its own");
    } else if is.deadline_ns != was.deadline_ns {
        assert_eq!(header.kind, Type::Heartbeat);
        assert_eq!(
            (header.session, header.incarnation()),
            (is.session, INCARNATION)
        );
        let told_ns = header.switch_time_ns();
        assert!(
            told_ns != 0 && told_ns <= now_ns,
            "a time that was not told"
        );
        assert_eq!(is.deadline_ns, told_ns + is.step_down_ns);
        assert!(is.deadline_ns > was.deadline_ns);
    }
    if header.has(flag::ANSWER) && header.kind != Type::WriteReply {
        assert_eq!((was.deadline_ns, was.session), (is.deadline_ns, is.session));
    }
}

/// A group becomes stable only by the reply to its last write, and unstable only by a write, which gets the next
/// number.
fn groups_go_on(
    header: &Header,
    was: &SessionView,
    is: &SessionView,
    group_was: &GroupView,
    group_is: &GroupView,
    verdict: Verdict,
) {
    let written = header.kind == Type::Write && matches!(verdict, Verdict::ToReplica { .. });
    assert_eq!(is.seq, was.seq + u64::from(written), "one number a write");
    if written {
        let stamp = (group_is.session, group_is.seq, group_is.stable);
        assert_eq!(stamp, (is.session, is.seq, false));
    } else if group_is != group_was {
        assert_eq!(header.kind, Type::WriteReply);
        assert!(group_is.stable);
        let last = (group_was.session, group_was.seq);
        assert_eq!((header.session, header.seq), last, "not the last write's");
        assert_eq!((group_is.session, group_is.seq), last);
        assert_eq!(header.session, was.session, "of another session");
        let holds = (group_is.log_index, group_is.followers);
        assert_eq!(holds, (header.log_index, header.followers));
    }
}

fn as_found(session: &SessionView, group: &GroupView) -> GroupView {
    if group.session == session.session {
        return *group;
    }
    GroupView {
        session: session.session,
        seq: 0,
        stable: true,
        log_index: session.log_index,
        followers: session.followers,
    }
}

/// An outgoing packet parses again, is from this switch, and has nothing after it.
fn sent(out: &[u8]) -> Header {
    let (header, key, data) = parse(out).expect("what leaves parses again");
    assert_eq!(out.len(), HEADER_LEN_BYTES + key.len() + data.len());
    assert_eq!(header.node, u16::from(NODE));
    header
}

/// Writes, and reads of groups with writes in flight, go to the leader; other reads go to a replica that has the last
/// write.
fn is_routed(header: &Header, sent: &Header, session: &SessionView, group: &GroupView) {
    assert_eq!((sent.session, sent.term), (session.session, session.term));
    if sent.kind == Type::Write {
        assert_eq!((sent.seq, sent.replica), (session.seq, session.leader));
        return;
    }
    assert_eq!(sent.kind, Type::Read);
    let found = as_found(session, group);
    assert_eq!((sent.seq, sent.log_index), (found.seq, found.log_index));
    if !sent.has(flag::STABLE) {
        assert_eq!(sent.replica, session.leader);
        return;
    }
    assert!(
        found.stable && header.kind == Type::Read,
        "a follower is asked"
    );
    let readers = found.followers & session.replicas;
    assert!(readers >> sent.replica & 1 == 1 && sent.replica != session.leader);
}
