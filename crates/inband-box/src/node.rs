//! A node's process, sans-I/O: election, synchronisation, strong reads and the gateway's submissions. It does not
//! interpret records: the host applies what is committed, and reports it.
//!
//! What the host must do:
//! - it performs `out.store` and calls [`Node::on_stored`] before it sends anything of `out`, and before it calls again,
//! - after each call it applies records up to `committed` and calls [`Node::on_applied`] for each,
//! - it calls [`Node::on_tick`] at [`Node::due`], after [`Node::submit`], and when the role has advanced.

use crate::control::Control;
use crate::disk_times::DiskTimes;
use crate::durable_acks::Owed;
use crate::election::{Election, Ending, PreElection, Vote};
use crate::membership::{ids, Membership};
pub use crate::node_config::{
    Config, Quorum, Start, SUSPECT_AFTER_MAX_NS, SUSPECT_AFTER_MIN_NS, SUSPECT_AFTER_NS,
    SUSPECT_AFTER_SYNC_NS, SUSPECT_AFTER_US,
};
pub use crate::node_status::{Doing, Status};
pub use crate::output::{Out, To};
use crate::promise::{Nanos, Stored, EPOCH_AHEAD_MAX, EPOCH_END};
use crate::reads::Reads;
use crate::role::{Record, Role, View};
use crate::snapshot::Fetch;
use crate::submitter::Submitter;
use crate::sync::Leading;
use crate::wire::{flag, Header, Type};

/// One more than the highest node id.
pub const IDS: usize = crate::c::IB_BOX_NODES_MAX as usize + 1;

/// See [`Node::jitter`].
const JITTER_ONE: u64 = 1 << 16;

#[expect(clippy::large_enum_variant, reason = "a process has one")]
pub(crate) enum State {
    /// For a leader, or for its turn to become one.
    Waiting,
    Electing(Election),
    /// The promise of the leader's epoch is being stored.
    Joining,
    Following {
        /// If recovering: the node counts again once it has everything up to here.
        target: Option<u64>,
        join_again_at: Nanos,
        /// If recovering: a snapshot being pulled.
        fetch: Option<Fetch>,
    },
    Leading(Leading),
}

pub struct Node {
    pub(crate) config: Config,
    pub(crate) stored: Stored,
    pub(crate) is_stored: bool,
    pub(crate) recovering: bool,
    /// The new node that it has promised its epoch to; 0: another one.
    pub(crate) promised_to: u64,
    /// Identifies this start of the process.
    pub(crate) nonce: u64,
    random: u64,
    pub(crate) state: State,
    /// The last node that led or wanted to.
    pub(crate) hint: u8,
    /// When that node was heard of.
    pub(crate) contact: Nanos,
    /// When a leader was last heard from, apart from what the role's registers say.
    pub(crate) led_at: Nanos,
    /// If waiting: when to ask the others whether an election may begin.
    pub(crate) elect_at: Nanos,
    /// If waiting, or following a suspected leader: the question to the others.
    pub(crate) pre_election: Option<PreElection>,
    /// Added to each of its turns, in parts of [`JITTER_ONE`] of the time between two turns.
    pub(crate) jitter: u64,
    pub(crate) hello_at: Nanos,
    /// If it hands over its lead: when it asks a follower again.
    pub(crate) hand_over_at: Option<Nanos>,
    pub(crate) disk: DiskTimes,
    /// The highest epoch heard of.
    pub(crate) seen: u64,
    pub(crate) elections: u64,
    pub(crate) epochs_refused: u64,
    /// Our log is on disk up to here; `None`: it is in memory.
    pub(crate) durable: Option<u64>,
    pub(crate) owed: Option<Owed>,
    /// The membership of the records applied here.
    pub(crate) membership: Membership,
    /// The role must be told of a change.
    pub(crate) has_membership_changed: bool,
    /// The node has started with a log from its disk, and does not have everything yet that its leader had when it
    /// joined. Meanwhile it submits nothing, and so may install a table.
    pub(crate) catches_up: bool,
    pub(crate) submitter: Submitter,
    pub(crate) reads: Reads,
}

impl Node {
    /// Creates the state of a process that has just started, with an empty role. `stored`: what was stored last;
    /// `random` must be drawn afresh at each start; `membership`: the membership of the records in its table.
    ///
    /// # Panics
    /// If the configuration is impossible.
    pub fn new(
        config: Config,
        start: Start,
        stored: Stored,
        membership: Option<Membership>,
        random: u64,
        now: Nanos,
        role: &impl Role,
    ) -> Node {
        assert!(
            (1..=config.nodes).contains(&config.node) && usize::from(config.nodes) < IDS,
            "node {} of {}",
            config.node,
            config.nodes
        );
        let session = stored.session + 1;
        let is_first_start = stored == Stored::default();
        let new_id = match is_first_start {
            true => random.max(1),
            false => stored.new_id,
        };
        let begins = start == Start::Founding || !is_first_start;
        let may_found = new_id > 0 && begins && config.founding.is_member(config.node);
        if stored.promise > 0 {
            role.raise_epoch(stored.promise);
        }
        let mut node = Node {
            config,
            stored: Stored {
                session,
                new_id,
                ..stored
            },
            is_stored: false,
            recovering: start != Start::WithLog && !may_found,
            promised_to: 0,
            nonce: random,
            random,
            state: State::Waiting,
            hint: 0,
            contact: now,
            led_at: 0,
            elect_at: 0,
            pre_election: None,
            jitter: 0,
            disk: DiskTimes::default(),
            hello_at: now,
            hand_over_at: None,
            seen: stored.promise,
            elections: 0,
            epochs_refused: 0,
            durable: None,
            owed: None,
            membership: membership.unwrap_or(config.founding),
            has_membership_changed: true,
            catches_up: start == Start::WithLog,
            submitter: Submitter::new(session),
            reads: Reads::new(random),
        };
        node.tell_role(role);
        node.wait(now);
        node
    }

    pub(crate) fn lacks_records(&self) -> bool {
        self.recovering || self.catches_up
    }

    pub(crate) fn draw(&mut self, below: u64) -> u64 {
        // splitmix64
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = self.random;
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % below.max(1)
    }

    /// Returns the highest epoch that the node has proposed or promised.
    pub fn epoch(&self) -> u64 {
        self.stored.promise
    }

    /// Returns the session of its gateway.
    pub fn session(&self) -> u64 {
        self.stored.session
    }

    /// Returns whether the node has lost its log, and does not count yet.
    pub fn is_recovering(&self) -> bool {
        self.recovering
    }

    /// Returns the leader, as far as known.
    pub fn leader(&self) -> Option<u8> {
        match self.state {
            State::Leading(_) => Some(self.config.node),
            State::Following { .. } => Some(self.hint),
            _ => None,
        }
    }

    /// Submits a record of the gateway and returns its number in the session. [`Node::on_applied`] must be told when it
    /// is executed.
    pub fn submit(&mut self, value: Vec<u8>) -> u64 {
        self.submitter.submit(value)
    }

    /// Returns the number of the gateway's records that have not been executed yet.
    pub fn outstanding(&self) -> usize {
        self.submitter.outstanding()
    }

    /// Starts a strong read. Its token is returned in `out.reads`, with the index that must be applied before it is
    /// answered.
    pub fn read_index(&mut self, token: u64) {
        self.reads.add(token);
    }

    /// Records that a record was applied here. `is_executed`: whether [`crate::sessions::Sessions::admit`] has admitted
    /// it.
    pub fn on_applied(&mut self, record: &Record, is_executed: bool, now: Nanos) {
        self.retain(record);
        if let Some(membership) = Membership::of(record) {
            self.membership = membership;
            self.has_membership_changed = true;
            if let State::Leading(leading) = &mut self.state {
                leading.pending.retain(|(zxid, _)| *zxid > record.zxid);
            }
        }
        let is_own = record.origin == self.config.node;
        if is_own && record.origin_session == self.session() {
            self.submitter
                .on_applied(record.origin_seq, is_executed, now);
        }
    }

    /// Handles a packet that the role passes on.
    pub fn on_packet(
        &mut self,
        now: Nanos,
        header: &Header,
        value: &[u8],
        role: &impl Role,
        out: &mut Out,
    ) {
        self.finish_joining(now, role, out);
        let from = header.node as u8;
        if from == 0 || from > self.config.nodes || from == self.config.node {
            return;
        }
        if !self.admits_epoch(header.epoch) {
            self.epochs_refused += 1;
            return;
        }
        match header.kind {
            Type::Control => {
                if let Some(control) = Control::decode(header, value) {
                    self.on_control(now, from, header.epoch, control, role, out);
                }
            }
            Type::Ack if header.flags & flag::GAP != 0 && header.epoch == self.epoch() => {
                self.on_gap(now, from, header.zxid, role, out);
            }
            Type::Propose | Type::Commit
                if self.durable.is_some()
                    && (from, header.epoch) == (self.hint, self.epoch())
                    && matches!(self.state, State::Following { .. }) =>
            {
                self.owe(header, role);
            }
            // From a leader that we do not follow: it may not know that.
            Type::Propose | Type::Commit if header.epoch >= self.epoch() && !self.recovering => {
                self.seen = self.seen.max(header.epoch);
                (self.contact, self.led_at) = (now, now);
            }
            Type::Refused if header.flags & flag::EPOCH != 0 => {
                self.on_higher(now, header.epoch, role)
            }
            Type::Refused if header.flags & flag::BUSY != 0 => {
                self.submitter
                    .on_busy(now + self.config.resend_after_ns() / 2);
            }
            Type::Refused if header.flags & flag::NOT_LEADER != 0 => {
                self.submitter
                    .on_refused(now + self.config.resend_after_ns());
            }
            _ => {}
        }
        self.on_tick(now, role, out);
    }

    /// Returns whether any node might have proposed the epoch. One packet must not use up the epochs.
    fn admits_epoch(&self, epoch: u64) -> bool {
        let known = self.epoch().max(self.seen);
        epoch <= known + EPOCH_AHEAD_MAX || self.recovering && epoch < EPOCH_END
    }

    fn on_control(
        &mut self,
        now: Nanos,
        from: u8,
        epoch: u64,
        control: Control,
        role: &impl Role,
        out: &mut Out,
    ) {
        match control {
            Control::Hello { new_id } => {
                self.on_hello(now, from, epoch, role, out);
                self.tell_founders(from, new_id, out);
            }
            Control::Founders(founders) => {
                if self.learn_founders(&founders) {
                    out.store = Some(self.stored);
                }
            }
            Control::PreElect { id } => self.on_pre_elect(now, from, (epoch, id), role, out),
            Control::Willing { id, new_id } => self.on_willing(from, id, new_id),
            Control::Elect { candidate } => {
                self.on_elect(now, from, (epoch, candidate), role, out);
            }
            Control::Promise {
                last_epoch,
                last,
                committed,
                first,
                new_id,
                candidate,
            } => {
                let ending = Ending {
                    last_epoch,
                    last,
                    committed,
                    first,
                };
                let vote = Vote { ending, new_id };
                self.on_promise(now, from, (epoch, candidate), vote, role, out);
            }
            Control::Denied => self.on_higher(now, epoch, role),
            Control::Pull { from: first } => self.on_pull(from, epoch, first, role, out),
            Control::Record { record, committed } => {
                self.on_record(now, from, epoch, record, committed, role, out);
            }
            Control::Lead { founders } => self.on_lead(now, from, (epoch, founders), role, out),
            Control::Joined(joined) if epoch == self.epoch() => {
                self.on_joined(now, from, joined, role, out);
            }
            Control::Joined(_) => {}
            Control::Lost { nonce } => out.is_lost |= epoch == self.epoch() && nonce == self.nonce,
            Control::Target { nonce, zxid } => self.on_target(epoch, nonce, zxid, out),
            Control::Ask { id } => self.on_ask(from, epoch, id, out),
            Control::Index { id, index } => self.reads.on_index(id, index, out),
            Control::TakeOver => self.on_take_over(now, from, epoch, role, out),
            Control::Behind { first } => self.on_behind(now, from, epoch, first, role, out),
            Control::PullSnapshot { id, offset } => {
                self.on_pull_snapshot(now, from, epoch, (id, offset), out);
            }
            Control::SnapshotPart {
                id,
                zxid,
                len_bytes,
                offset,
                bytes,
            } => {
                let (snapshot, part) = ((id, zxid, len_bytes), (offset, bytes));
                self.on_snapshot_part(now, from, epoch, snapshot, part, out);
            }
        }
    }

    /// Advances time. Must be called again at [`Node::due`] at the latest.
    pub fn on_tick(&mut self, now: Nanos, role: &impl Role, out: &mut Out) {
        self.finish_joining(now, role, out);
        if self.has_membership_changed {
            self.tell_role(role);
            out.is_removed |= self.membership.has_removed(self.config.node);
        }
        let registers = role.view();
        self.seen = self.seen.max(registers.higher_epoch);
        match &self.state {
            State::Waiting => self.tick_waiting(now, role, out),
            State::Electing(_) => self.tick_electing(now, role, out),
            State::Joining => {}
            State::Following { .. } => self.tick_following(now, &registers, role, out),
            State::Leading(_) => self.tick_leading(now, &registers, role, out),
        }
        self.tick_reads(now, role, out);
        self.tick_submitter(now, role, out);
        if !self.is_stored {
            out.store = Some(self.stored);
            self.is_stored = true;
        }
    }

    fn tick_waiting(&mut self, now: Nanos, role: &impl Role, out: &mut Out) {
        // Also while it asks for an election: only those that are greeted tell a new node that it has its place.
        if now >= self.hello_at {
            self.hello_at = now + self.config.stagger_ns();
            let new_id = self.stored.new_id;
            self.say(To::Others, self.epoch(), &Control::Hello { new_id }, out);
        }
        if now >= self.elect_at && !self.recovering {
            if self.latest(role).is_member(self.config.node) {
                return self.pre_elect(now, role, out);
            }
            self.elect_at = now + self.election_after_ns();
        }
    }

    /// Waits for another leader after one is suspected, or none was heard of. The nodes that follow it by id try one
    /// after the other.
    pub(crate) fn wait(&mut self, now: Nanos) {
        self.state = State::Waiting;
        self.pre_election = None;
        self.contact = self.contact.max(now);
        self.jitter = self.draw(JITTER_ONE / 2);
        self.elect_at = self.turn_at(now, self.election_after_ns());
    }

    /// Returns when a leader that was last heard at this time is suspected.
    pub(crate) fn suspect_at(&self, heard: Nanos) -> Nanos {
        let after = match self.durable {
            Some(_) => self.election_after_ns(),
            None => self.config.suspect_after_ns,
        };
        self.turn_at(heard, after)
    }

    /// Returns the timeout of an election: the suspicion timeout, or more if a promise takes long to store.
    pub(crate) fn election_after_ns(&self) -> Nanos {
        self.disk.timeout_ns(self.config.suspect_after_ns)
    }

    /// Draws when to try again after an election that failed.
    pub(crate) fn elect_again(&mut self, now: Nanos) {
        self.elect_at = now + self.draw(self.election_after_ns());
    }

    /// Must be called after `out.store` was performed, with the time that it took, before anything else is sent or
    /// handled. Timeouts that began before begin again: they are for what the others do.
    pub fn on_stored(&mut self, now: Nanos, took: Nanos) {
        self.disk.took(took);
        let after = self.election_after_ns();
        let turn_at = self.turn_at(now, after);
        match &mut self.state {
            State::Electing(election) => {
                election.begin_again(now, self.config.resend_after_ns(), after);
            }
            State::Waiting => {
                self.pre_election = None;
                self.elect_at = self.elect_at.max(turn_at);
            }
            _ => {}
        }
    }

    /// Must be called after records were put on disk, with the time that it took.
    pub fn on_log_stored(&mut self, took: Nanos) {
        self.disk.took(took);
    }

    /// Returns when it is this node's turn, if the turns of the nodes begin this long after a time.
    fn turn_at(&self, since: Nanos, after: Nanos) -> Nanos {
        let (node, hint) = (self.config.node, self.hint);
        let is_between = |id: &u8| match hint < node {
            true => (hint + 1..node).contains(id),
            false => *id > hint || *id < node,
        };
        let rank = ids(self.membership.members).filter(is_between).count() as u64;
        since + after + (rank * JITTER_ONE + self.jitter) * (after / 2) / JITTER_ONE
    }

    /// Handles the news that a node has promised a higher epoch than the one it refuses.
    pub(crate) fn on_higher(&mut self, now: Nanos, epoch: u64, role: &impl Role) {
        self.seen = self.seen.max(epoch);
        if epoch <= self.epoch() {
            return;
        }
        match self.state {
            State::Leading(_) => self.step_down(now, role),
            State::Electing(_) => {
                self.wait(now);
                self.elect_again(now);
            }
            _ => {}
        }
    }

    pub(crate) fn say(&self, to: To, epoch: u64, control: &Control, out: &mut Out) {
        let (header, value) = control.encode(self.config.node, epoch);
        out.packet(to, &header, &value);
    }

    /// Promises an epoch, which is stored before anything is sent. Packets of earlier epochs are refused from now on.
    pub(crate) fn promise(&mut self, epoch: u64, role: &impl Role, out: &mut Out) {
        self.leave();
        if epoch > self.stored.promise {
            self.stored.promise = epoch;
            self.is_stored = true;
            out.store = Some(self.stored);
        }
        role.raise_epoch(epoch);
    }

    /// Stops leading: its own gateway's questions are asked elsewhere.
    pub(crate) fn leave(&mut self) {
        if let State::Leading(leading) = &mut self.state {
            self.reads.take_back(leading);
        }
        self.state = State::Waiting;
        self.pre_election = None;
        self.owed = None;
        self.has_membership_changed = true;
    }

    pub(crate) fn step_down(&mut self, now: Nanos, role: &impl Role) {
        self.leave();
        role.raise_epoch(self.stored.promise);
        self.hint = self.config.node;
        self.wait(now);
        self.elect_at = now + self.draw(self.config.stagger_ns());
    }

    fn tick_submitter(&mut self, now: Nanos, role: &impl Role, out: &mut Out) {
        let Some(leader) = self.leader() else {
            return;
        };
        if self.lacks_records() {
            // A snapshot would contain what was submitted, and the outcomes would never be known.
            return;
        }
        let (epoch, node, session) = (self.epoch(), self.config.node, self.session());
        let again_after = 4 * self.config.resend_after_ns();
        self.submitter
            .poll(now, leader, epoch, again_after, |seq, value| {
                if leader == node {
                    let record = Record {
                        origin: node,
                        origin_session: session,
                        origin_seq: seq,
                        value: value.to_vec(),
                        ..Record::default()
                    };
                    return append(&record, role, out);
                }
                let header = Header {
                    node: node.into(),
                    epoch,
                    origin: node.into(),
                    origin_session: session,
                    origin_seq: seq,
                    ..Header::of(Type::Submit)
                };
                out.packet(To::Node(leader), &header, value);
                true
            });
    }

    /// Returns when [`Node::on_tick`] is due.
    pub fn due(&self, now: Nanos, role: &impl Role) -> Nanos {
        let registers = role.view();
        let state = match &self.state {
            _ if !self.is_stored || self.has_membership_changed => now,
            State::Waiting if self.recovering => self.hello_at,
            State::Waiting => match &self.pre_election {
                Some(pre_election) => pre_election.due().min(self.hello_at),
                None => self.elect_at.min(self.hello_at),
            },
            State::Electing(election) => election.due(),
            State::Joining => now,
            State::Following {
                join_again_at,
                fetch,
                ..
            } => {
                let suspect_at = self.suspect_at(self.contact.max(registers.led_ns(&self.config)));
                let fetch_at = fetch.as_ref().map_or(Nanos::MAX, |fetch| fetch.again_at);
                match (self.lacks_records(), &self.pre_election) {
                    (true, Some(pre_election)) => {
                        pre_election.due().min(*join_again_at).min(fetch_at)
                    }
                    (true, None) => suspect_at.min(*join_again_at).min(fetch_at),
                    (false, Some(pre_election)) => pre_election.due(),
                    (false, None) => suspect_at,
                }
            }
            State::Leading(leading) => leading.due(now, &self.cluster(), &registers),
        };
        let submitter = match self.leader() {
            Some(_) if !self.lacks_records() => self.submitter.due(),
            _ => Nanos::MAX,
        };
        state.min(submitter).min(self.reads.due()).max(now)
    }
}

/// Appends a record to our own log, and proposes it. Returns false if there is no room.
pub(crate) fn append(record: &Record, role: &impl Role, out: &mut Out) -> bool {
    let Ok(zxid) = role.append(record) else {
        return false;
    };
    out.packets
        .extend(role.propose(zxid).map(|packet| (To::Others, packet)));
    true
}

/// Sends COMMIT, which is also the heartbeat. `round`: the round to be answered.
pub(crate) fn commit(config: &Config, epoch: u64, round: u64, registers: &View, out: &mut Out) {
    let header = Header {
        flags: flag::ROUND,
        node: config.node.into(),
        epoch,
        zxid: registers.last,
        committed: registers.committed,
        round,
        leader: config.node.into(),
        ..Header::of(Type::Commit)
    };
    out.packet(To::Others, &header, &[]);
}
