//! The actions that are possible in a state.

use super::state::{Message, Phase, Read, State};
use super::{Action, Mutant, ReadRouting, NEXT, SWITCHES};

impl ReadRouting {
    pub(super) fn lacks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    pub(super) fn clients(&self, state: &State, actions: &mut Vec<Action>) {
        for switch in (0..SWITCHES).filter(|s| state.is_active(*s)) {
            if state.begun == state.acknowledged && state.begun < self.bounds.writes {
                let value = state.begun + 1;
                actions.push(Action::Write { switch, value });
            }
            if state.begun > state.acknowledged && self.bounds.again && !state.was_sent_again {
                let value = state.begun;
                actions.push(Action::Write { switch, value });
            }
            let next = state.reads.iter().position(|read| *read == Read::NotBegun);
            if let Some(read) = next {
                let leader = state.switches[switch].leader;
                let is_stable = state.group(switch).stable;
                for replica in (0..2).filter(|r| *r == leader || is_stable) {
                    actions.push(Action::BeginRead {
                        read,
                        switch,
                        replica,
                    });
                }
            }
        }
    }

    pub(super) fn replicas(&self, state: &State, actions: &mut Vec<Action>) {
        for leader in (0..2).filter(|l| state.leads(*l)) {
            if state.leaders[leader].proposed.is_some() {
                actions.push(Action::Commit { leader });
            }
            if state.sessions <= self.bounds.sessions {
                for switch in 0..SWITCHES {
                    actions.push(Action::BeginSession { leader, switch });
                }
            }
        }
        if state.held < state.log.len() {
            actions.push(Action::Replicate);
        }
        if state.applied[NEXT] < state.held {
            actions.push(Action::Apply);
        }
        if self.bounds.election && state.elected.is_none() {
            actions.push(Action::Elect { survives: false });
            if state.leaders[0].proposed.is_some() {
                actions.push(Action::Elect { survives: true });
            }
        }
    }

    pub(super) fn sessions(&self, state: &State, actions: &mut Vec<Action>) {
        for leader in 0..2 {
            if matches!(state.leaders[leader].phase, Phase::Installing { .. }) {
                actions.push(Action::Install { leader });
            }
            if self.may_serve(state, leader) {
                let eras = state.expired..=state.era;
                let confirmed = eras.filter(|era| self.is_confirmed(state, leader, *era));
                actions.extend(confirmed.map(|era| Action::Beat { leader, era }));
            }
        }
        if state.expired < state.era {
            actions.push(Action::Expire);
        }
        if self.bounds.restart && !state.has_restarted {
            actions.push(Action::Restart);
        }
    }

    /// A majority has confirmed this leader after a time was read in this era.
    fn is_confirmed(&self, state: &State, leader: usize, era: u8) -> bool {
        let until = state.elected.unwrap_or(u8::MAX);
        leader == NEXT || era < until || self.lacks(Mutant::NotConfirmed)
    }

    fn may_serve(&self, state: &State, leader: usize) -> bool {
        match state.leaders[leader].phase {
            Phase::Idle => false,
            Phase::Serving { .. } => true,
            Phase::Installing {
                began,
                installed,
                mute,
            } => {
                let is_safe = mute || state.expired >= began;
                installed.is_some() && (is_safe || self.lacks(Mutant::OldSwitchForgotten))
            }
        }
    }

    pub(super) fn may_refresh(&self, state: &State, message: &Message) -> bool {
        let Message::Read {
            by,
            to,
            session,
            seq,
            stable: false,
            ..
        } = *message
        else {
            return false;
        };
        let leader = &state.leaders[by];
        let all_applied = leader.proposed.is_none() || self.lacks(Mutant::RefreshedTooEarly);
        state.serves(by, session, to) && seq > leader.last_seq && all_applied
    }
}
