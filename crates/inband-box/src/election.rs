//! Election and discovery: a candidate lets a majority promise its epoch, and takes over the freshest of their logs.

use std::collections::BTreeMap;

use crate::control::Control;
use crate::membership::{bitmap, ids};
use crate::node::{Node, Out, State, To, IDS};
use crate::owner_of;
use crate::promise::{next, Founders, Nanos};
use crate::role::{Put, Record, Role};

/// Maximum number of records that are pulled at a time.
const PULL_MAX: u64 = 64;
/// A candidate gives up after this many election timeouts without progress.
const ELECTION_TIMEOUTS: u64 = 3;

/// Describes the end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ending {
    pub last_epoch: u64,
    pub last: u64,
    pub committed: u64,
    pub first: u64,
}

impl Ending {
    /// Returns the key by which logs are compared. The epoch of the last record comes first, so a log half of which was
    /// copied from another one looks neither fresher nor older than it is.
    fn freshness(&self) -> (u64, u64) {
        (self.last_epoch, self.last)
    }

    fn of(role: &impl Role) -> Ending {
        let now = role.view();
        Ending {
            last_epoch: now.last_epoch,
            last: now.last,
            committed: now.committed,
            first: now.first,
        }
    }
}

/// What a node that promised an epoch says about itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vote {
    pub ending: Ending,
    /// See [`Stored::new_id`](crate::promise::Stored::new_id).
    pub new_id: u64,
}

/// State of pulling the freshest log.
struct Pull {
    from: u8,
    last: u64,
    /// Records that arrived early, with their `committed`.
    early: BTreeMap<u64, (Record, u64)>,
}

/// An election in progress, for the epoch that the node has promised last.
pub(crate) struct Election {
    promises: [Option<Vote>; IDS],
    /// The own [`new_id`](crate::promise::Stored::new_id) when it began.
    candidate: u64,
    pull: Option<Pull>,
    again_at: Nanos,
    until: Nanos,
}

impl Election {
    pub fn due(&self) -> Nanos {
        self.again_at.min(self.until)
    }

    /// Its timeouts begin again; `after`: the election timeout.
    pub fn begin_again(&mut self, now: Nanos, resend_after: Nanos, after: Nanos) {
        self.again_at = now + resend_after;
        self.until = now + ELECTION_TIMEOUTS * after;
    }
}

/// The question whether an election may begin. A node that can send but not receive gets no answer, and so cannot
/// depose a leader that the others hear.
pub(crate) struct PreElection {
    id: u64,
    /// Bit n is set if node n is willing.
    willing: u8,
    again_at: Nanos,
    until: Nanos,
}

impl PreElection {
    pub fn due(&self) -> Nanos {
        self.again_at
    }
}

impl Node {
    /// Asks who else misses a leader. Nothing is promised yet.
    pub(crate) fn pre_elect(&mut self, now: Nanos, role: &impl Role, out: &mut Out) {
        let again_after = self.config.resend_after_ns();
        let is_over = |pre: &PreElection| now >= pre.until;
        if self.pre_election.as_ref().is_none_or(is_over) {
            let until = now + self.election_after_ns();
            self.pre_election = Some(PreElection {
                id: self.draw(u64::MAX),
                willing: 1 << self.config.node,
                again_at: now,
                until,
            });
        }
        let willing = self.pre_election.as_ref().map_or(0, |pre| pre.willing);
        if self.is_enough(willing, role) {
            return self.elect(now, role, out);
        }
        let pre_election = self.pre_election.as_mut().expect("it is there now");
        if now >= pre_election.again_at {
            pre_election.again_at = now + again_after;
            let id = pre_election.id;
            self.say(To::Others, self.epoch(), &Control::PreElect { id }, out);
        }
    }

    /// Handles the question of a node that would like to lead, and has promised this epoch.
    pub(crate) fn on_pre_elect(
        &mut self,
        now: Nanos,
        from: u8,
        (promised, id): (u64, u64),
        role: &impl Role,
        out: &mut Out,
    ) {
        self.on_hello(now, from, promised, role, out);
        let led_at = self.led_at.max(role.view().led_ns(&self.config));
        let is_led = matches!(self.state, State::Leading(_))
            || led_at > 0 && now < led_at + self.config.willing_after_ns();
        if !is_led && !self.recovering {
            let new_id = self.stored.new_id;
            let willing = Control::Willing { id, new_id };
            self.say(To::Node(from), self.epoch(), &willing, out);
        }
    }

    /// Returns whether the vote of a node counts. One that is new may have lost its directory, and with it what it
    /// acknowledged, unless it is one of those that began together, or all of them are new.
    fn counts(&self, node: u8, new_id: u64) -> bool {
        match self.stored.new_id {
            0 => new_id == 0 || self.stored.founders[usize::from(node)] == new_id,
            _ => new_id > 0,
        }
    }

    /// Returns whether the votes of these nodes, which count, elect a leader.
    fn is_enough(&self, votes: u8, role: &impl Role) -> bool {
        let founding = self.config.founding.members;
        match self.stored.new_id {
            0 => self.latest(role).has_majority(votes),
            _ => votes & founding == founding,
        }
    }

    /// Records that another node misses a leader, too.
    pub(crate) fn on_willing(&mut self, from: u8, id: u64, new_id: u64) {
        if !self.counts(from, new_id) {
            return;
        }
        if let Some(pre_election) = self.pre_election.as_mut().filter(|pre| pre.id == id) {
            pre_election.willing |= 1 << from;
        }
    }

    pub(crate) fn elect(&mut self, now: Nanos, role: &impl Role, out: &mut Out) {
        let epoch = next(self.epoch().max(self.seen), self.config.node);
        self.elections += 1;
        self.hint = self.config.node;
        self.promise(epoch, role, out);
        let mut promises = [None; IDS];
        let candidate = self.stored.new_id;
        promises[usize::from(self.config.node)] = Some(self.own_vote(role));
        self.state = State::Electing(Election {
            promises,
            candidate,
            pull: None,
            again_at: now + self.config.resend_after_ns(),
            until: now + ELECTION_TIMEOUTS * self.election_after_ns(),
        });
        self.say(To::Others, epoch, &Control::Elect { candidate }, out);
    }

    fn own_vote(&self, role: &impl Role) -> Vote {
        Vote {
            ending: Ending::of(role),
            new_id: self.stored.new_id,
        }
    }

    /// Handles a node's candidacy.
    pub(crate) fn on_elect(
        &mut self,
        now: Nanos,
        from: u8,
        (epoch, candidate): (u64, u64),
        role: &impl Role,
        out: &mut Out,
    ) {
        if owner_of(epoch) != from {
            return;
        }
        self.seen = self.seen.max(epoch);
        if self.recovering {
            return; // a record that it has lost might be committed
        }
        if epoch < self.epoch() {
            return self.say(To::Node(from), self.epoch(), &Control::Denied, out);
        }
        if epoch > self.epoch() {
            self.promise(epoch, role, out);
            self.hint = from;
            self.promised_to = candidate;
            self.wait(now);
        } else if !matches!(self.state, State::Waiting) {
            return; // it has been elected since
        } else if candidate > 0 && candidate != self.promised_to {
            // Its directory was lost since we promised it this epoch: it must not be led twice.
            return self.say(To::Node(from), self.epoch(), &Control::Denied, out);
        }
        // Only after the role's epoch was raised: nothing is acknowledged any more that is not in this view.
        let Vote { ending, new_id } = self.own_vote(role);
        let promise = Control::Promise {
            last_epoch: ending.last_epoch,
            last: ending.last,
            committed: ending.committed,
            first: ending.first,
            new_id,
            candidate,
        };
        self.say(To::Node(from), epoch, &promise, out);
    }

    /// Records a promise of our epoch.
    pub(crate) fn on_promise(
        &mut self,
        now: Nanos,
        from: u8,
        (epoch, candidate): (u64, u64),
        vote: Vote,
        role: &impl Role,
        out: &mut Out,
    ) {
        let is_ours = epoch == self.epoch();
        let State::Electing(election) = &mut self.state else {
            return;
        };
        if is_ours && candidate == election.candidate {
            election.promises[usize::from(from)] = Some(vote);
            self.count_promises(now, role, out);
        }
    }

    /// Starts leading if our log is the freshest of those of a majority. The members are those that the log names now,
    /// which may differ from those it named when the election began.
    fn count_promises(&mut self, now: Nanos, role: &impl Role, out: &mut Out) {
        let own = self.config.node;
        let own_vote = self.own_vote(role);
        let State::Electing(election) = &mut self.state else {
            return;
        };
        if election.pull.is_some() {
            return;
        }
        election.promises[usize::from(own)] = Some(own_vote);
        let by_id = (0..).zip(election.promises);
        let all = by_id.filter_map(|(node, vote): (u8, _)| Some((node, vote?)));
        let votes: Vec<(u8, Vote)> = all
            .filter(|(node, vote)| self.counts(*node, vote.new_id))
            .collect();
        if !self.latest(role).is_member(own) {
            return self.wait(now); // another member must lead
        }
        if !self.is_enough(bitmap(votes.iter().map(|(node, _)| *node)), role) {
            return;
        }
        let endings = votes.iter().map(|(node, vote)| (*node, vote.ending));
        let best = endings.max_by_key(|(node, ending)| (ending.freshness(), *node == own));
        let (freshest, ending) = best.expect("the own one is there");
        if freshest == own {
            if own_vote.new_id > 0 {
                self.found(&votes, out);
            }
            let committed = votes.iter().map(|(_, vote)| vote.ending.committed).max();
            learn(role, committed.unwrap_or(0));
            return self.lead(now, role, out);
        }
        let State::Electing(election) = &mut self.state else {
            return;
        };
        if ending.first > role.view().committed + 1 {
            // We would need the table as well; another candidate may not.
            self.wait(now);
            return;
        }
        election.pull = Some(Pull {
            from: freshest,
            last: ending.last,
            early: BTreeMap::new(),
        });
        self.pull(now, role, out);
    }

    /// All nodes that begin together are new, and have promised us the first epoch.
    fn found(&mut self, votes: &[(u8, Vote)], out: &mut Out) {
        for (node, vote) in votes {
            self.stored.founders[usize::from(*node)] = vote.new_id;
        }
        self.stored.new_id = 0;
        out.store = Some(self.stored);
    }

    /// Notes which nodes began together; if this one is one of them, it has its place. Returns whether that is to be
    /// stored.
    pub(crate) fn learn_founders(&mut self, founders: &Founders) -> bool {
        let before = self.stored;
        if before.founders == Founders::default() {
            self.stored.founders = *founders;
        }
        if founders[usize::from(self.config.node)] == before.new_id {
            self.stored.new_id = 0;
        }
        self.stored != before
    }

    /// Tells a node that says it is new that it has its place, if it has.
    pub(crate) fn tell_founders(&self, to: u8, new_id: u64, out: &mut Out) {
        let founders = self.stored.founders;
        if new_id > 0 && founders[usize::from(to)] == new_id {
            let founders = Control::Founders(founders);
            self.say(To::Node(to), self.epoch(), &founders, out);
        }
    }

    /// Asks for the records that follow.
    fn pull(&mut self, now: Nanos, role: &impl Role, out: &mut Out) {
        let State::Electing(election) = &mut self.state else {
            return;
        };
        let Some(pull) = &election.pull else {
            return;
        };
        election.again_at = now + self.config.resend_after_ns();
        let from = role.view().matched + 1;
        let to = To::Node(pull.from);
        self.say(to, self.epoch(), &Control::Pull { from }, out);
    }

    /// Sends a candidate the records of our log, which does not change as long as its epoch is our last.
    pub(crate) fn on_pull(
        &mut self,
        from: u8,
        epoch: u64,
        first: u64,
        role: &impl Role,
        out: &mut Out,
    ) {
        if epoch != self.epoch() {
            return self.say(To::Node(from), self.epoch(), &Control::Denied, out);
        }
        if !matches!(self.state, State::Waiting) || self.recovering || owner_of(epoch) != from {
            return;
        }
        let now = role.view();
        for zxid in first..=now.last.min(first.saturating_add(PULL_MAX - 1)) {
            let Some(record) = role.read(zxid) else {
                return;
            };
            let committed = now.committed;
            let record = Control::Record { record, committed };
            self.say(To::Node(from), epoch, &record, out);
        }
    }

    /// Handles a record of the freshest log.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn on_record(
        &mut self,
        now: Nanos,
        from: u8,
        epoch: u64,
        record: Record,
        committed: u64,
        role: &impl Role,
        out: &mut Out,
    ) {
        let is_ours = epoch == self.epoch();
        let election_after_ns = self.election_after_ns();
        let State::Electing(election) = &mut self.state else {
            return;
        };
        let Some(pull) = election.pull.as_mut().filter(|p| p.from == from && is_ours) else {
            return;
        };
        if pull.early.len() < 2 * PULL_MAX as usize {
            pull.early.insert(record.zxid, (record, committed));
        }
        election.until = now + ELECTION_TIMEOUTS * election_after_ns;
        self.take_pulled(now, role, out);
    }

    /// Appends the pulled records, as a follower would.
    fn take_pulled(&mut self, now: Nanos, role: &impl Role, out: &mut Out) {
        let epoch = self.epoch();
        let State::Electing(election) = &mut self.state else {
            return;
        };
        let Some(pull) = &mut election.pull else {
            return;
        };
        let before = role.view().matched;
        let mut matched = before;
        pull.early.retain(|zxid, _| *zxid > before);
        while let Some((record, committed)) = pull.early.get(&(matched + 1)) {
            if role.put(epoch, record, *committed) != Put::Taken {
                break; // the slot's record is not applied yet
            }
            pull.early.remove(&(matched + 1));
            matched += 1;
        }
        if matched >= pull.last {
            election.pull = None;
            self.count_promises(now, role, out);
        } else if matched / PULL_MAX > before / PULL_MAX {
            self.pull(now, role, out);
        }
    }

    pub(crate) fn tick_electing(&mut self, now: Nanos, role: &impl Role, out: &mut Out) {
        let State::Electing(election) = &mut self.state else {
            return;
        };
        if now >= election.until {
            self.wait(now);
            self.elect_again(now);
            return;
        }
        if now < election.again_at {
            return;
        }
        election.again_at = now + self.config.resend_after_ns();
        if election.pull.is_some() {
            self.take_pulled(now, role, out);
            return self.pull(now, role, out);
        }
        let (promises, candidate) = (election.promises, election.candidate);
        for node in ids(self.reach()) {
            if promises[usize::from(node)].is_none() {
                let elect = Control::Elect { candidate };
                self.say(To::Node(node), self.epoch(), &elect, out);
            }
        }
    }
}

/// Records that everything up to this zxid is committed and in our log.
fn learn(role: &impl Role, committed: u64) {
    let now = role.view();
    for zxid in now.matched + 1..=committed.min(now.last) {
        let is_taken = role
            .read(zxid)
            .is_some_and(|record| role.put(now.epoch, &record, committed) == Put::Taken);
        if !is_taken {
            return;
        }
    }
}
