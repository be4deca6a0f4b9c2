//! The state: what hosts know, messages in flight, and what clients saw.

use std::collections::BTreeSet;

use super::{NEXT, SWITCHES};

/// A message in flight to a switch or a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Message {
    Install {
        to: usize,
        session: u64,
        incarnation: u8,
        leader: usize,
        log_index: usize,
    },
    Heartbeat {
        to: usize,
        session: u64,
        incarnation: u8,
        era: u8,
    },
    Write {
        by: usize,
        session: u64,
        seq: u64,
        value: u64,
    },
    WriteReply {
        to: usize,
        session: u64,
        seq: u64,
        log_index: usize,
        value: u64,
    },
    Read {
        by: usize,
        to: usize,
        read: usize,
        session: u64,
        seq: u64,
        log_index: usize,
        stable: bool,
    },
    ReadReply {
        to: usize,
        read: usize,
        session: u64,
        seq: u64,
        stable: bool,
        value: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Switch {
    pub(super) incarnation: u8,
    pub(super) session: u64,
    pub(super) leader: usize,
    /// The log index for groups without writes in this session.
    pub(super) log_index: usize,
    /// The era of the time on which its lease is based.
    pub(super) lease: Option<u8>,
    pub(super) seq: u64,
    pub(super) group: Option<Group>,
}

/// A group as written in a session; without this, its state is that at the session's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Group {
    pub(super) session: u64,
    pub(super) seq: u64,
    pub(super) stable: bool,
    pub(super) log_index: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Idle,
    Installing {
        began: u8,
        installed: Option<u8>,
        mute: bool,
    },
    Serving {
        incarnation: u8,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Leader {
    pub(super) phase: Phase,
    pub(super) session: u64,
    pub(super) switch: usize,
    pub(super) log_index: usize,
    pub(super) last_seq: u64,
    /// Accepted and not yet committed: session, seq, value, switch.
    pub(super) proposed: Option<(u64, u64, u64, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Read {
    NotBegun,
    /// It must return no less than this.
    UnderWay(u64),
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Values written; 0 marks the beginning of a session.
    pub(super) log: Vec<u64>,
    pub(super) applied: [usize; 2],
    /// How much of the log replica 1 has.
    pub(super) held: usize,
    /// The era in which replica 1 was elected.
    pub(super) elected: Option<u8>,
    pub(super) era: u8,
    /// Leases of eras before this one have expired.
    pub(super) expired: u8,
    pub(super) sessions: u64,
    pub(super) leaders: [Leader; 2],
    pub(super) switches: [Switch; SWITCHES],
    pub(super) messages: BTreeSet<Message>,
    pub(super) begun: u64,
    pub(super) acknowledged: u64,
    /// The highest value that a read has returned.
    pub(super) seen: u64,
    pub(super) was_sent_again: bool,
    pub(super) has_restarted: bool,
    pub(super) reads: Vec<Read>,
    pub(super) is_stale: bool,
}

impl State {
    pub(super) fn leads(&self, replica: usize) -> bool {
        self.elected.is_some() == (replica == NEXT)
    }

    pub(super) fn value_at(&self, index: usize) -> u64 {
        self.log[..index].iter().copied().max().unwrap_or(0)
    }

    pub(super) fn is_active(&self, switch: usize) -> bool {
        let lease = self.switches[switch].lease;
        lease.is_some_and(|era| era >= self.expired)
    }

    pub(super) fn group(&self, switch: usize) -> Group {
        let switch = &self.switches[switch];
        let written = switch.group.filter(|g| g.session == switch.session);
        written.unwrap_or(Group {
            session: switch.session,
            seq: 0,
            stable: true,
            log_index: switch.log_index,
        })
    }

    pub(super) fn serves(&self, leader: usize, session: u64, switch: usize) -> bool {
        let leader = &self.leaders[leader];
        let is_serving = matches!(leader.phase, Phase::Serving { .. });
        is_serving && leader.session == session && leader.switch == switch
    }

    pub(super) fn floor(&self) -> u64 {
        self.acknowledged.max(self.seen)
    }

    /// Commits, applies and answers the leader's proposed write.
    pub(super) fn commit(&mut self, leader: usize) {
        let Some((session, seq, value, to)) = self.leaders[leader].proposed.take() else {
            return;
        };
        self.log.push(value);
        let log_index = self.log.len();
        self.applied[leader] = log_index;
        self.messages.insert(Message::WriteReply {
            to,
            session,
            seq,
            log_index,
            value,
        });
    }

    pub(super) fn write(&mut self, switch: usize, value: u64) {
        self.was_sent_again |= value == self.begun;
        self.begun = value;
        let at = &mut self.switches[switch];
        at.seq += 1;
        let log_index = 0;
        let (session, seq) = (at.session, at.seq);
        at.group = Some(Group {
            session,
            seq,
            stable: false,
            log_index,
        });
        let by = at.leader;
        self.messages.insert(Message::Write {
            by,
            session,
            seq,
            value,
        });
    }

    pub(super) fn begin_read(&mut self, read: usize, switch: usize, by: usize) {
        self.reads[read] = Read::UnderWay(self.floor());
        let group = self.group(switch);
        let stable = by != self.switches[switch].leader;
        self.messages.insert(Message::Read {
            by,
            to: switch,
            read,
            session: group.session,
            seq: group.seq,
            log_index: group.log_index,
            stable,
        });
    }
}

impl State {
    /// Removes messages that can no longer have an effect, which reduces the number of states.
    pub(super) fn forget_what_does_nothing(&mut self) {
        let (expired, reads) = (self.expired, &self.reads);
        let has_ended = |read: usize| reads[read] == Read::Ended;
        self.messages.retain(|message| match message {
            Message::Heartbeat { era, .. } => *era >= expired,
            Message::ReadReply { read, .. } => !has_ended(*read),
            Message::Read { read, stable, .. } => !(*stable && has_ended(*read)),
            _ => true,
        });
    }
}
