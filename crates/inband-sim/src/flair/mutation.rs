//! Rules broken on purpose. Production code is unchanged: packets are altered as they reach a switch, so that the
//! cluster behaves as if a rule were missing. The checks must notice.

use inband_flair::dataplane::registers::{GroupView, SessionView};
use inband_flair::dataplane::wire::{self, flag, Header, Type};
use inband_flair::dataplane::FlairSwitch;

/// A rule to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A follower's read is accepted although the key was written meanwhile.
    ReplyNotChecked,
    /// A reply to any write makes its group stable.
    SeqNotCompared,
    /// All sessions have the same id, so leftovers of an old session count for the new one.
    SessionReused,
    /// Other switches are neither neutralised nor waited for.
    OldSwitchForgotten,
    /// A dead follower is still sent reads.
    DeadFollowerKept,
    /// A heartbeat extends the session although no majority has confirmed the leader (schedules.md, 14).
    NotConfirmed,
    /// A restarted switch accepts an INSTALL that was meant for its previous incarnation.
    LateInstallTaken,
}

impl Mutation {
    pub const ALL: [Mutation; 7] = [
        Mutation::ReplyNotChecked,
        Mutation::SeqNotCompared,
        Mutation::SessionReused,
        Mutation::OldSwitchForgotten,
        Mutation::DeadFollowerKept,
        Mutation::NotConfirmed,
        Mutation::LateInstallTaken,
    ];

    /// Alters a packet as it reaches a switch. `now_ns` is by the switch's clock.
    pub(super) fn at_switch(
        self,
        switch: &FlairSwitch,
        header: &mut Header,
        groups: usize,
        replicas: u8,
        now_ns: u64,
    ) {
        let session = || session_of(switch);
        match (self, header.kind) {
            (Mutation::ReplyNotChecked, Type::ReadReply) if !header.has(flag::REFUSED) => {
                header.flags &= !flag::STABLE;
            }
            (Mutation::SeqNotCompared, Type::WriteReply) => {
                let group = group_of(switch, wire::group_of(header.key_hash, groups));
                if group.session == header.session {
                    header.seq = group.seq;
                }
            }
            (Mutation::SessionReused, Type::ReadReply | Type::WriteReply) => {
                header.session = session().session;
            }
            (Mutation::DeadFollowerKept, Type::Heartbeat | Type::Install) => {
                let all = ((1u16 << replicas) - 1) as u8;
                header.window = u16::from(all);
                header.followers = all;
            }
            (Mutation::DeadFollowerKept, Type::WriteReply) => {
                header.followers = ((1u16 << replicas) - 1) as u8;
            }
            (Mutation::NotConfirmed, Type::Heartbeat) if header.session != 0 => {
                header.client_seq = now_ns;
            }
            (Mutation::LateInstallTaken, Type::Heartbeat | Type::Install)
                if header.session != 0 =>
            {
                header.seq = switch.incarnation();
            }
            _ => {}
        }
    }

    /// Forges an answer to a packet before it is even sent, as if the switch had obeyed it.
    pub(super) fn answer(
        self,
        switch: &FlairSwitch,
        header: &Header,
        now_ns: u64,
    ) -> Option<Header> {
        let is_neutralising = header.kind == Type::Install && header.has(flag::NEUTRALISE);
        if self != Mutation::OldSwitchForgotten || !is_neutralising {
            return None;
        }
        let mut answer = *header;
        answer.flags |= flag::ANSWER;
        answer.seq = switch.incarnation();
        answer.client_seq = now_ns;
        Some(answer)
    }
}

pub(super) fn session_of(switch: &FlairSwitch) -> SessionView {
    let sessions = &switch.registers().sessions;
    sessions.session(0).expect("nobody else changes it")
}

fn group_of(switch: &FlairSwitch, group: usize) -> GroupView {
    let groups = &switch.registers().groups;
    groups.group(group).expect("nobody else changes it")
}
