//! Leading and following: nodes join, and get what they miss.

use std::collections::VecDeque;

use crate::control::{Control, Joined};
use crate::membership::{ids, Cluster, Membership};
use crate::node::{commit, Config, Node, Out, State, To, IDS};
use crate::owner_of;
use crate::promise::{Founders, Nanos};
use crate::reads::{Reading, Who};
use crate::role::{Record, Role, View};
use crate::snapshot::Serving;
use crate::wire;

/// Records retransmitted in one turn, so that heartbeats and other nodes do not wait longer.
const RESEND_MAX: u64 = 128;
/// The same for a node that takes none of them.
const RESEND_MIN: u64 = 4;
/// The records of so many turns are in flight to a node that catches up: a round trip on a busy machine takes
/// milliseconds.
const TURNS_IN_FLIGHT: u64 = 4;
/// A leader whose role is heard, but whose process has not been heard from for this many suspicion timeouts, is suspected.
/// A process sends a heartbeat every fifth of one, and may be busy for several of them.
const PROCESS_SILENCE: u64 = 10;
/// A leader that has not heard from a majority for this many suspicion timeouts stops leading.
const MAJORITY_TIMEOUT: u64 = 6;

impl Config {
    /// Returns for how long a leader counts on a node that it does not hear.
    fn majority_timeout_ns(&self) -> Nanos {
        MAJORITY_TIMEOUT * self.suspect_after_ns
    }

    fn process_silence_ns(&self) -> Nanos {
        PROCESS_SILENCE * self.suspect_after_ns
    }
}

impl View {
    /// If following: returns when the leader was last heard from. Packets of its role alone count only as long as its
    /// process was heard from recently: reads and retransmissions need the process.
    pub(crate) fn led_ns(&self, config: &Config) -> Nanos {
        let process_until = self.process_heard_ns + config.process_silence_ns();
        self.heard_ns.min(process_until)
    }

    /// If leading: returns whether a node was heard of late, so that it can be counted on.
    pub(crate) fn is_heard(&self, node: u8, config: &Config, now: Nanos) -> bool {
        self.peers[usize::from(node)].heard_ns + config.majority_timeout_ns() > now
    }
}

/// What a leader knows about a node, besides what the role knows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Follower {
    /// Identifies the start in which it joined.
    nonce: Option<u64>,
    /// What it said when it was new, if it was then.
    new_id: u64,
    /// What it had when last checked, and since when.
    has: u64,
    since: Nanos,
    /// Records up to here were retransmitted, and when.
    resent_to: u64,
    resent_at: Nanos,
    /// How many are retransmitted in one turn. A node takes records in their order only, and so none of those that
    /// follow a packet that was lost or overtaken: the fewer it has taken, the fewer are sent.
    burst: u64,
    /// What it had when the last retransmission began, or when it had last taken a turn's records, and how many gaps it
    /// has reported since.
    resent_from: u64,
    gaps: u64,
    /// There were more records then: what follows must be retransmitted, too.
    has_more: bool,
    /// Whether it has lost its log, and what it had acknowledged before.
    recovering: bool,
    had: u64,
    /// Its log is on disk.
    is_durable: bool,
    /// What it had when it last reported a gap, and since when. It may have less than it once had, after a restart with
    /// its log.
    gap_has: u64,
    gap_at: Nanos,
    /// The snapshot that it pulls, or has pulled.
    pub snapshot: u64,
}

/// The state of a leader.
pub(crate) struct Leading {
    is_begun: bool,
    pub followers: [Follower; IDS],
    pub heartbeat_at: Nanos,
    pub round: u64,
    majority_at: Nanos,
    /// Membership records of our log that are not applied: their zxids and memberships.
    pub pending: Vec<(u64, Membership)>,
    /// Reads that wait for the next round.
    pub queue: Vec<Who>,
    /// Reads of the round in progress.
    pub reading: Option<Reading>,
    /// Number of snapshots made in this epoch.
    pub snapshots: u64,
    /// The latest snapshot.
    pub serving: Option<Serving>,
}

impl Follower {
    /// Restarts retransmission after `has`.
    fn begin(&mut self, has: u64) {
        let taken = has.saturating_sub(self.resent_from);
        self.burst = (2 * taken).clamp(RESEND_MIN, RESEND_MAX);
        (self.resent_from, self.gaps) = (has, 0);
    }

    /// Notes what it has. New records are gaps, too, while it catches up: they must not add up.
    fn takes(&mut self, has: u64) {
        if has >= self.resent_from + self.burst {
            self.burst = (2 * self.burst).clamp(RESEND_MIN, RESEND_MAX);
            (self.resent_from, self.gaps) = (has, 0);
        }
    }

    /// Returns whether more may be sent before it has taken everything.
    fn has_room(&self, has: u64) -> bool {
        has + TURNS_IN_FLIGHT * self.burst >= self.resent_to + self.burst
    }
}

impl Leading {
    /// Returns up to where a node has our log.
    pub fn has(&self, registers: &View, node: u8) -> u64 {
        let peer = &registers.peers[usize::from(node)];
        match peer.matched > self.followers[usize::from(node)].had {
            true => peer.matched.max(peer.recovered),
            false => peer.recovered,
        }
    }

    /// Returns whether this node may be told that it is behind. If its log is in memory it then discards it, and a
    /// majority of the nodes must still have theirs, or no node could lead. Until then it keeps its vote.
    fn may_begin_again(&self, node: u8, cluster: &Cluster, registers: &View) -> bool {
        let follower = &self.followers[usize::from(node)];
        follower.recovering
            || follower.is_durable
            || cluster.is_majority(|other| other != node && self.has_log(other, registers))
    }

    /// Returns whether a node follows, and has a log that counts.
    pub fn has_log(&self, node: u8, registers: &View) -> bool {
        let follower = &self.followers[usize::from(node)];
        let matched = registers.peers[usize::from(node)].matched;
        follower.nonce.is_some() && (!follower.recovering || matched > follower.had)
    }

    /// Returns whether a majority of these members has the log and was heard lately. Without one, the change could not be
    /// committed, and nobody could lead them if this leader were lost.
    pub fn may_lead_to(
        &self,
        next: Membership,
        cluster: &Cluster,
        registers: &View,
        now: Nanos,
    ) -> bool {
        let next = Cluster {
            membership: next,
            ..*cluster
        };
        next.is_majority(|node| {
            self.has_log(node, registers) && registers.is_heard(node, &cluster.config, now)
        })
    }

    /// Sends a node the records after `has`: what was sent before is lost, or of no use to it.
    fn send_from(
        &mut self,
        (node, has): (u8, u64),
        now: Nanos,
        cluster: &Cluster,
        role: &impl Role,
        out: &mut Out,
    ) {
        self.followers[usize::from(node)].begin(has);
        self.send_on((node, has), now, cluster, role, out);
    }

    /// Sends a node the records after `has`, which it has or is about to get.
    fn send_on(
        &mut self,
        (node, has): (u8, u64),
        now: Nanos,
        cluster: &Cluster,
        role: &impl Role,
        out: &mut Out,
    ) {
        let registers = role.view();
        let burst = self.followers[usize::from(node)].burst;
        let until = registers.last.min(has + burst);
        let mut resent_to = has;
        for zxid in has + 1..=until {
            let retained = |record: &Record| {
                wire::propose(record, role.node(), registers.epoch, registers.committed)
            };
            let propose = role.propose(zxid);
            let Some(propose) = propose.or_else(|| self.retained(zxid, now).map(retained)) else {
                break;
            };
            out.packets.push((To::Node(node), propose));
            resent_to = zxid;
        }
        let mut has_more = resent_to < registers.last;
        let first = role.view().first;
        let is_behind = resent_to == has && has + 1 < first;
        if is_behind && self.may_begin_again(node, cluster, &registers) {
            let (header, value) = Control::Behind { first }.encode(role.node(), registers.epoch);
            out.packet(To::Node(node), &header, &value);
            // It is not told so again for each record that it misses.
            resent_to = until;
        }
        has_more &= !is_behind;
        let follower = &mut self.followers[usize::from(node)];
        (follower.resent_to, follower.resent_at) = (resent_to, now);
        follower.has_more = has_more;
    }

    pub fn due(&self, now: Nanos, cluster: &Cluster, registers: &View) -> Nanos {
        let lags = cluster
            .others()
            .filter(|node| self.followers[usize::from(*node)].nonce.is_some())
            .any(|node| self.has(registers, node) < registers.last);
        let soon = now + cluster.config.resend_after_ns() / 2;
        match lags || self.reading.is_some() || !self.is_begun {
            true => self.heartbeat_at.min(soon),
            false => self.heartbeat_at,
        }
    }
}

impl Node {
    /// Starts leading: the election is won, and our log has everything that is committed.
    pub(crate) fn lead(&mut self, now: Nanos, role: &impl Role, out: &mut Out) {
        self.hint = self.config.node;
        self.catches_up = false;
        self.state = State::Leading(Leading {
            is_begun: false,
            followers: [Follower::default(); IDS],
            heartbeat_at: now,
            round: 0,
            majority_at: now,
            pending: self.unapplied(role),
            queue: Vec::new(),
            reading: None,
            snapshots: 0,
            serving: None,
        });
        // Must precede the first acknowledgement that counts.
        self.tell_role(role);
        if !role.lead(self.epoch()) {
            self.leave();
            return self.wait(now);
        }
        let registers = role.view();
        self.tick_leading(now, &registers, role, out);
    }

    pub(crate) fn tick_leading(
        &mut self,
        now: Nanos,
        registers: &View,
        role: &impl Role,
        out: &mut Out,
    ) {
        let epoch = self.epoch();
        if registers.higher_epoch > epoch {
            return self.step_down(now, role);
        }
        let is_begun = matches!(&self.state, State::Leading(leading) if leading.is_begun);
        if !is_begun {
            // The first record of the epoch: nothing is committed before it. It contains the membership, so that one of
            // the records does, whatever the nodes were started with.
            let membership = Membership {
                is_forced: false,
                ..self.cluster().membership
            };
            let begun = self.propose_membership(membership, role, out);
            if let State::Leading(leading) = &mut self.state {
                leading.is_begun = begun.is_some();
            }
        }
        self.go_on_changing(now, registers, role, out);
        let cluster = self.cluster();
        let config = cluster.config;
        let State::Leading(leading) = &mut self.state else {
            return;
        };
        if cluster.is_majority(|node| registers.is_heard(node, &config, now)) {
            leading.majority_at = now;
        } else if now > leading.majority_at + config.majority_timeout_ns() {
            return self.step_down(now, role);
        }
        if now >= leading.heartbeat_at {
            leading.heartbeat_at = now + config.heartbeat_ns();
            leading.round += 1;
            commit(&config, epoch, leading.round, registers, out);
            let joining = cluster.membership.joining;
            let absent: VecDeque<u8> = cluster
                .others()
                .filter(|node| {
                    let follower = &leading.followers[usize::from(*node)];
                    // The report that it has caught up may have been lost.
                    follower.nonce.is_none() || *node == joining && follower.recovering
                })
                .collect();
            for node in absent {
                self.say_lead(node, out);
            }
        }
        self.resend_what_is_late(now, registers, role, out);
    }

    /// If leading: returns whether a node has, as far as we know, everything that it can ever have acknowledged, so that it may
    /// count.
    pub fn has_caught_up(&self, node: u8) -> bool {
        let State::Leading(leading) = &self.state else {
            return false;
        };
        let follower = &leading.followers[usize::from(node)];
        follower.nonce.is_some() && !follower.recovering
    }

    fn resend_what_is_late(
        &mut self,
        now: Nanos,
        registers: &View,
        role: &impl Role,
        out: &mut Out,
    ) {
        let cluster = self.cluster();
        let resend_after_ns = cluster.config.resend_after_ns();
        let State::Leading(leading) = &mut self.state else {
            return;
        };
        leading.forget_snapshot(now);
        for node in cluster.others() {
            let has = leading.has(registers, node);
            let follower = &mut leading.followers[usize::from(node)];
            if has != follower.has {
                (follower.has, follower.since) = (has, now);
                follower.takes(has);
            }
            if follower.nonce.is_none() || has >= registers.last {
                continue;
            }
            let is_timed_out = now >= follower.since + resend_after_ns
                && now >= follower.resent_at + resend_after_ns;
            let goes_on = follower.has_more && has <= follower.resent_to && follower.has_room(has);
            let resent_to = follower.resent_to;
            if is_timed_out {
                leading.send_from((node, has), now, &cluster, role, out);
            } else if goes_on {
                leading.send_on((node, resent_to), now, &cluster, role, out);
            }
        }
    }

    /// Answers a node that has no leader.
    pub(crate) fn on_hello(
        &mut self,
        now: Nanos,
        from: u8,
        promised: u64,
        role: &impl Role,
        out: &mut Out,
    ) {
        let is_leading = matches!(self.state, State::Leading(_));
        if is_leading && ids(self.reach()).all(|node| node != from) {
            return; // it was removed, or may not join yet: it must depose nobody
        }
        self.on_higher(now, promised, role);
        if matches!(self.state, State::Leading(_)) {
            self.say_lead(from, out);
        }
    }

    fn say_lead(&self, to: u8, out: &mut Out) {
        let founders = self.stored.founders;
        self.say(To::Node(to), self.epoch(), &Control::Lead { founders }, out);
    }

    /// Handles the announcement of a leader.
    pub(crate) fn on_lead(
        &mut self,
        now: Nanos,
        from: u8,
        (epoch, founders): (u64, Founders),
        role: &impl Role,
        out: &mut Out,
    ) {
        if owner_of(epoch) != from {
            return;
        }
        if epoch < self.epoch() {
            return self.say(To::Node(from), self.epoch(), &Control::Denied, out);
        }
        if epoch == self.epoch() && matches!(self.state, State::Following { .. }) {
            return self.say_joined(role, out);
        }
        self.hint = from;
        (self.contact, self.led_at) = (now, now);
        let mut is_promised = epoch == self.epoch() && self.is_stored;
        let mut is_to_be_stored = self.learn_founders(&founders);
        if self.stored.new_id > 0 && !self.recovering {
            // The cluster began without this directory: it may have had another one, and lost it.
            (self.recovering, self.stored.has_log) = (true, false);
            is_to_be_stored = true;
        }
        self.promise(epoch, role, out);
        if is_to_be_stored {
            out.store = Some(self.stored);
            is_promised = false;
        }
        self.state = State::Joining;
        if is_promised {
            self.finish_joining(now, role, out);
        } // otherwise nothing is acknowledged in this epoch before its promise is stored
    }

    /// Takes part in the epoch, once the promise is stored.
    pub(crate) fn finish_joining(&mut self, now: Nanos, role: &impl Role, out: &mut Out) {
        if !matches!(self.state, State::Joining) || out.store.is_some() {
            return;
        }
        if !role.follow(self.epoch(), self.recovering, now) {
            return self.wait(now);
        }
        self.forget_unmatched(role);
        self.contact = now;
        self.state = State::Following {
            target: None,
            join_again_at: now + self.config.resend_after_ns(),
            fetch: None,
        };
        self.say_joined(role, out);
    }

    pub(crate) fn say_joined(&self, role: &impl Role, out: &mut Out) {
        let joined = Joined {
            matched: self.matched(&role.view()),
            nonce: self.nonce,
            recovering: self.recovering,
            durable: self.durable.is_some(),
            new_id: self.stored.new_id,
        };
        let joined = Control::Joined(joined);
        self.say(To::Node(self.hint), self.epoch(), &joined, out);
    }

    /// Handles a node that follows us, in our epoch.
    pub(crate) fn on_joined(
        &mut self,
        now: Nanos,
        from: u8,
        joined: Joined,
        role: &impl Role,
        out: &mut Out,
    ) {
        let Joined {
            matched,
            nonce,
            recovering,
            ..
        } = joined;
        let cluster = self.cluster();
        let config = cluster.config;
        let State::Leading(leading) = &mut self.state else {
            return;
        };
        // A member has its place, and so has a node that joins from its answer on. If one that has lost it were let in
        // again, it would use its sessions a second time, and might break a promise.
        let known = leading.followers[usize::from(from)];
        let has_run = cluster.membership.is_member(from) || known.nonce.is_some();
        if joined.new_id > 0 && joined.new_id != known.new_id && has_run {
            return self.say(To::Node(from), self.epoch(), &Control::Lost { nonce }, out);
        }
        // Its log is not of our history: several clusters were founded, against all rules. It does not count.
        if matched > role.view().last {
            return;
        }
        let follower = &mut leading.followers[usize::from(from)];
        let is_new = follower.nonce != Some(nonce);
        if is_new || recovering {
            role.set_joined(from, matched, recovering);
        }
        let registers = role.view();
        if is_new {
            *follower = Follower {
                nonce: Some(nonce),
                new_id: joined.new_id.max(known.new_id),
                had: match recovering {
                    true => registers.peers[usize::from(from)].matched,
                    false => 0,
                },
                ..Follower::default()
            };
        }
        if !recovering {
            // It has all that it had acknowledged: from now on its acknowledgements say what it has.
            follower.had = 0;
        }
        (follower.recovering, follower.is_durable) = (recovering, joined.durable);
        let last = registers.last;
        if matched < last && now >= follower.resent_at + config.resend_after_ns() {
            leading.send_from((from, matched), now, &cluster, role, out);
        }
        let target = Control::Target { nonce, zxid: last };
        self.say(To::Node(from), self.epoch(), &target, out);
    }

    /// Handles a follower's report that it misses records.
    pub(crate) fn on_gap(
        &mut self,
        now: Nanos,
        from: u8,
        matched: u64,
        role: &impl Role,
        out: &mut Out,
    ) {
        let cluster = self.cluster();
        let config = cluster.config;
        let State::Leading(leading) = &mut self.state else {
            return;
        };
        let follower = &mut leading.followers[usize::from(from)];
        // While it catches up every new record is a gap, although nothing need be lost.
        let is_timed_out =
            matched == follower.gap_has && now >= follower.gap_at + config.resend_after_ns() / 2;
        if matched != follower.gap_has || is_timed_out {
            (follower.gap_has, follower.gap_at) = (matched, now);
        }
        follower.takes(matched);
        follower.gaps += 1;
        // Each record in flight that it cannot take is a gap: it has got all of them.
        let is_answered = matched + follower.gaps >= follower.resent_to;
        if is_timed_out || is_answered {
            leading.send_from((from, matched), now, &cluster, role, out);
        }
    }

    /// Notes that we count again once we have this record.
    pub(crate) fn on_target(&mut self, epoch: u64, nonce: u64, zxid: u64, out: &mut Out) {
        let is_ours = epoch == self.epoch() && nonce == self.nonce;
        let State::Following { target, .. } = &mut self.state else {
            return;
        };
        if is_ours {
            target.get_or_insert(zxid);
            if std::mem::take(&mut self.stored.new_id) > 0 {
                out.store = Some(self.stored);
            }
        }
    }

    pub(crate) fn tick_following(
        &mut self,
        now: Nanos,
        registers: &View,
        role: &impl Role,
        out: &mut Out,
    ) {
        let again_after = self.config.resend_after_ns();
        let State::Following {
            target,
            join_again_at,
            fetch,
        } = &mut self.state
        else {
            return;
        };
        let pulls = fetch.as_ref().is_some_and(|fetch| now >= fetch.again_at);
        if self.recovering || self.catches_up {
            let matched = registers.matched.min(self.durable.unwrap_or(u64::MAX));
            let is_reached = target.is_some_and(|target| matched >= target);
            // Nothing counts before it is stored that the node has its place.
            if is_reached && out.store.is_none() {
                // It has everything that it can ever have acknowledged, to this leader or in an earlier epoch.
                self.catches_up = false;
                if std::mem::take(&mut self.recovering) {
                    if self.durable.is_some() {
                        self.stored.has_log = true;
                        out.store = Some(self.stored);
                    }
                    role.set_recovering(false);
                    self.say_joined(role, out);
                }
            } else if now >= *join_again_at {
                *join_again_at = now + again_after;
                self.say_joined(role, out);
            }
        }
        if pulls {
            self.pull_again(now, out);
        }
        let is_suspected = now >= self.suspect_at(self.contact.max(registers.led_ns(&self.config)));
        let may_elect = || !self.recovering && self.latest(role).is_member(self.config.node);
        match (is_suspected, is_suspected && may_elect()) {
            // It still follows until it promises another epoch.
            (true, true) => self.pre_elect(now, role, out),
            (true, false) => {
                self.leave();
                self.wait(now);
            }
            (false, _) => self.pre_election = None,
        }
    }
}
