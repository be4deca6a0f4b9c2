//! Handling of delivered messages.

use super::state::{Group, Message, Read, State, Switch};
use super::{Mutant, ReadRouting, NEXT};

impl ReadRouting {
    pub(super) fn deliver(&self, state: &mut State, message: Message, refreshes: bool) {
        state.messages.remove(&message);
        match message {
            Message::Install {
                to,
                session,
                incarnation,
                leader,
                log_index,
            } => {
                let new = Switch {
                    session,
                    leader,
                    log_index,
                    ..Switch::default()
                };
                self.install(state, to, session, incarnation, new);
            }
            Message::Heartbeat {
                to,
                session,
                incarnation,
                era,
            } => {
                let at = &mut state.switches[to];
                let late = self.lacks(Mutant::LateInstallTaken);
                if at.session == session && (at.incarnation == incarnation || late) {
                    at.lease = at.lease.max(Some(era));
                }
            }
            Message::Write {
                by,
                session,
                seq,
                value,
            } => {
                let switch = state.leaders[by].switch;
                let serves = state.serves(by, session, switch);
                let leader = &mut state.leaders[by];
                let in_order = seq > leader.last_seq || self.lacks(Mutant::OrderIgnored);
                if serves && in_order && leader.proposed.is_none() {
                    leader.last_seq = leader.last_seq.max(seq);
                    leader.proposed = Some((session, seq, value, switch));
                }
            }
            Message::WriteReply {
                to,
                session,
                seq,
                log_index,
                value,
            } => {
                self.write_reply(state, to, (session, seq), log_index, value);
            }
            Message::Read { .. } => self.read(state, message, refreshes),
            Message::ReadReply {
                to,
                read,
                session,
                seq,
                stable,
                value,
            } => {
                self.read_reply(state, to, read, (session, seq), stable, value);
            }
        }
    }

    fn write_reply(
        &self,
        state: &mut State,
        to: usize,
        (session, seq): (u64, u64),
        log_index: usize,
        value: u64,
    ) {
        if !state.is_active(to) || state.switches[to].session != session {
            return;
        }
        let compares = !self.lacks(Mutant::SeqNotCompared);
        if let Some(group) = &mut state.switches[to].group {
            if group.session == session && (group.seq == seq || !compares) {
                (group.stable, group.log_index) = (true, log_index);
            }
        }
        state.acknowledged = state.acknowledged.max(value);
    }

    fn read(&self, state: &mut State, message: Message, refreshes: bool) {
        let Message::Read {
            by,
            to,
            read,
            session,
            seq,
            log_index,
            stable,
        } = message
        else {
            return;
        };
        if !stable && !state.serves(by, session, to) {
            return;
        }
        if stable && !self.lacks(Mutant::LogIndexIgnored) {
            let has = if by == NEXT {
                state.held
            } else {
                state.applied[by]
            };
            if has < log_index {
                return; // it refuses; then asking the leader would add nothing to the model
            }
            state.applied[by] = state.applied[by].max(log_index);
        }
        let value = state.value_at(state.applied[by]);
        state.messages.insert(Message::ReadReply {
            to,
            read,
            session,
            seq,
            stable,
            value,
        });
        if refreshes {
            state.leaders[by].last_seq = seq;
            let log_index = state.applied[by];
            let value = 0;
            state.messages.insert(Message::WriteReply {
                to,
                session,
                seq,
                log_index,
                value,
            });
        }
    }

    fn read_reply(
        &self,
        state: &mut State,
        to: usize,
        read: usize,
        (session, seq): (u64, u64),
        stable: bool,
        value: u64,
    ) {
        if !state.is_active(to) || state.switches[to].session != session {
            return;
        }
        let group = state.group(to);
        if stable && group.seq != seq && !self.lacks(Mutant::ReplyNotChecked) {
            let by = state.switches[to].leader;
            let Group { seq, log_index, .. } = group;
            let again = Message::Read {
                by,
                to,
                read,
                session,
                seq,
                log_index,
                stable: false,
            };
            state.messages.insert(again);
            return;
        }
        if let Read::UnderWay(floor) = state.reads[read] {
            state.is_stale |= value < floor;
            state.seen = state.seen.max(value);
            state.reads[read] = Read::Ended;
        }
    }
}
