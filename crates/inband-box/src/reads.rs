//! Strong reads. The leader says what is committed, and that a majority still followed it after the question was asked.

use crate::control::Control;
use crate::node::{commit, Node, Out, State, To};
use crate::promise::Nanos;
use crate::role::{Role, View};
use crate::sync::Leading;

/// Reads of this node's gateway that have no index yet.
pub(crate) struct Reads {
    /// Not asked for yet.
    waiting: Vec<u64>,
    /// Asked for by the current question to the leader.
    asked: Vec<u64>,
    /// Id of the last question.
    id: u64,
    again_at: Nanos,
}

impl Reads {
    /// `random`: answers to questions of an earlier start must not be mistaken for answers to this one's.
    pub fn new(random: u64) -> Reads {
        Reads {
            waiting: Vec::new(),
            asked: Vec::new(),
            id: random,
            again_at: 0,
        }
    }

    pub fn add(&mut self, token: u64) {
        self.waiting.push(token);
    }

    pub fn on_index(&mut self, id: u64, index: u64, out: &mut Out) {
        if id == self.id {
            out.reads
                .extend(self.asked.drain(..).map(|token| (token, index)));
        }
    }

    /// Takes back the reads that waited for a round of ours.
    pub fn take_back(&mut self, leading: &mut Leading) {
        let waits = leading.queue.drain(..);
        let waits = waits.chain(leading.reading.take().into_iter().flat_map(|r| r.who));
        self.waiting.extend(waits.filter_map(|who| match who {
            Who::Own(token) => Some(token),
            Who::Node(..) => None,
        }));
    }

    pub fn due(&self) -> Nanos {
        match self.asked.is_empty() && self.waiting.is_empty() {
            true => Nanos::MAX,
            false => self.again_at,
        }
    }
}

/// The origin of a read that waits for a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// A read of our own gateway.
    Own(u64),
    /// Another node, and the id of its question.
    Node(u8, u64),
}

/// Reads whose round is in progress.
pub(crate) struct Reading {
    pub round: u64,
    pub index: u64,
    pub who: Vec<Who>,
}

impl Node {
    /// Asks for an index for the reads that wait.
    pub(crate) fn tick_reads(&mut self, now: Nanos, role: &impl Role, out: &mut Out) {
        if let State::Leading(leading) = &mut self.state {
            let reads = &mut self.reads;
            let waiting = reads.asked.drain(..).chain(reads.waiting.drain(..));
            leading.queue.extend(waiting.map(Who::Own));
            let registers = role.view();
            return self.tick_rounds(now, &registers, out);
        }
        let Some(leader) = self.leader() else {
            self.reads.again_at = now + self.config.resend_after_ns();
            return;
        };
        let reads = &mut self.reads;
        let is_due = now >= reads.again_at || reads.asked.is_empty();
        if !is_due || reads.due() == Nanos::MAX {
            return;
        }
        if reads.asked.is_empty() {
            // A new question: an answer to the last one says nothing about reads that arrived since. A question that is
            // asked again keeps its id, so that an answer counts even if it takes longer than that.
            reads.id = reads.id.wrapping_add(1);
            reads.asked.append(&mut reads.waiting);
        }
        reads.again_at = now + 2 * self.config.resend_after_ns();
        let ask = Control::Ask { id: reads.id };
        self.say(To::Node(leader), self.epoch(), &ask, out);
    }

    /// Handles a follower's question.
    pub(crate) fn on_ask(&mut self, from: u8, epoch: u64, id: u64, _out: &mut Out) {
        let is_ours = epoch == self.epoch();
        if let State::Leading(leading) = &mut self.state {
            // A repeated question replaces the one before.
            let is_other = |who: &Who| !matches!(who, Who::Node(node, _) if *node == from);
            leading.queue.retain(is_other);
            if is_ours {
                leading.queue.push(Who::Node(from, id));
            }
        }
    }

    fn tick_rounds(&mut self, now: Nanos, registers: &View, out: &mut Out) {
        let (cluster, epoch) = (self.cluster(), self.epoch());
        let State::Leading(leading) = &mut self.state else {
            return;
        };
        let is_answered = |reading: &mut Reading| {
            cluster.is_majority(|node| registers.peers[usize::from(node)].round >= reading.round)
        };
        let mut answers = Vec::new();
        if let Some(reading) = leading.reading.take_if(is_answered) {
            for who in reading.who {
                match who {
                    Who::Own(token) => out.reads.push((token, reading.index)),
                    Who::Node(node, id) => answers.push((node, id, reading.index)),
                }
            }
        }
        let is_established = registers.committed >= registers.established_at;
        if leading.reading.is_none() && !leading.queue.is_empty() && is_established {
            leading.round += 1;
            leading.reading = Some(Reading {
                round: leading.round,
                index: registers.committed,
                who: std::mem::take(&mut leading.queue),
            });
            leading.heartbeat_at = now + cluster.config.heartbeat_ns();
            commit(&cluster.config, epoch, leading.round, registers, out);
        }
        for (node, id, index) in answers {
            self.say(To::Node(node), epoch, &Control::Index { id, index }, out);
        }
    }
}
