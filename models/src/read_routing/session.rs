//! Sessions: how they begin, installs, and heartbeats.

use super::state::{Leader, Message, Phase, State, Switch};
use super::{Mutant, ReadRouting, SWITCHES};

impl ReadRouting {
    pub(super) fn begin_session(&self, state: &mut State, leader: usize, switch: usize) {
        state.commit(leader);
        state.log.push(0);
        state.applied[leader] = state.log.len();
        state.sessions += 1;
        state.era += 1;
        let reused = self.lacks(Mutant::SessionReused);
        state.leaders[leader] = Leader {
            phase: Phase::Installing {
                began: state.era,
                installed: None,
                mute: false,
            },
            session: if reused { 1 } else { state.sessions },
            switch,
            log_index: state.log.len(),
            last_seq: 0,
            proposed: None,
        };
    }

    pub(super) fn send_installs(&self, state: &mut State, leader: usize) {
        let Leader {
            session, log_index, ..
        } = state.leaders[leader];
        for to in 0..SWITCHES {
            let incarnation = state.switches[to].incarnation;
            let message = Message::Install {
                to,
                session,
                incarnation,
                leader,
                log_index,
            };
            state.messages.insert(message);
        }
    }

    pub(super) fn install(
        &self,
        state: &mut State,
        to: usize,
        session: u64,
        incarnation: u8,
        new: Switch,
    ) {
        let late = self.lacks(Mutant::LateInstallTaken);
        let at = &mut state.switches[to];
        let is_known = incarnation == at.incarnation || late;
        if is_known && session > at.session {
            *at = Switch {
                incarnation: at.incarnation,
                seq: at.seq,
                group: at.group,
                ..new
            };
        }
        let (has, now) = (at.session, at.incarnation);
        // The switch's answer: what it has.
        let leader = &mut state.leaders[new.leader];
        if let Phase::Installing {
            installed, mute, ..
        } = &mut leader.phase
        {
            if leader.session == session && has == session {
                match leader.switch == to {
                    true => *installed = Some(now),
                    false => *mute = true,
                }
            }
        }
    }

    pub(super) fn beat(&self, state: &mut State, number: usize, era: u8) {
        let leader = &mut state.leaders[number];
        if let Phase::Installing {
            installed: Some(incarnation),
            ..
        } = leader.phase
        {
            leader.phase = Phase::Serving { incarnation };
        }
        let Phase::Serving { incarnation } = leader.phase else {
            return;
        };
        let (to, session) = (leader.switch, leader.session);
        state.messages.insert(Message::Heartbeat {
            to,
            session,
            incarnation,
            era,
        });
    }
}
