//! A replica: Raft, the store, and, while it leads, lflair.
//!
//! Events go in through the `on_...` functions. Their effects come out of [`Replica::advance`], which must be called
//! after every burst of events. Reads are answered immediately.

mod answer;
mod leases;
mod majority;
mod sessions;

use std::collections::HashMap;

use crate::dataplane::wire::{self, flag, Header, Type};
use inband_raft::{node_of, Applied, RaftError, RaftMessage, RaftNode, Tuning};
use inband_storage::Storage;
use serde::{Deserialize, Serialize};

use crate::digests::Digests;
use crate::entry::{Entry, Op};
use crate::groups::Groups;
use crate::lflair::{self, Action, Lflair};
use crate::limits::{KEY_LEN_BYTES_MAX, PENDING_WRITES_MAX, REPLICAS_MAX};
use crate::packets::Packets;
use crate::peers::{Load, Peers};
use crate::reads::Reads;
use crate::sets::set_of;
use crate::store::{Done, Store};
use crate::timing::{Nanos, Timing};
use answer::Answer;
pub use leases::Grant;
use leases::Leases;
use majority::Majority;
use sessions::LastSession;

/// Settings of a replica.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Its number in the set, from 0.
    pub replica: u8,
    /// The number of replicas in the set.
    pub replicas: u8,
    /// Its node id, in packets; different from that of any switch.
    pub node: u16,
    pub set: u16,
    /// The number of sets in the cluster.
    pub sets: u16,
    /// The number of switches.
    pub switches: u8,
    /// Key groups; must match the switches.
    pub groups: usize,
    /// Whether it founds the group of a new cluster, once all other replicas are up and none is in a group. Must be
    /// false when a replica with an in-memory log is restarted: it would found an empty group.
    pub founder: bool,
    pub reads: Reads,
    /// Send no reads to a leader that has writes to process.
    pub leader_avoidance: bool,
    /// Send fewer reads to replicas with long queues.
    pub load_awareness: bool,
    pub timing: Timing,
    /// Raft's timing, in ticks of `timing.tick_ns`.
    pub tuning: Tuning,
}

/// A message between replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    Raft(Box<RaftMessage>),
    /// Sent periodically: the state of the sender.
    Announce(Announcement),
    /// Read leases, from the leader.
    Grant(Grant),
}

/// What a replica announces about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// The Raft id of its log.
    pub raft_id: u64,
    /// Identifies the process. The clock may have begun anew with it.
    pub start: u64,
    /// Whether it belongs to a group.
    pub is_in_group: bool,
    /// Requests queued there.
    pub queue_len: u32,
    /// The time of its clock.
    pub time: Nanos,
}

/// The output of the state machine.
#[derive(Debug, Default)]
pub struct Out {
    /// Packets to switches.
    pub packets: Packets,
    /// Messages to replicas, by number.
    pub messages: Vec<(u8, Message)>,
}

impl Out {
    /// Removes everything; keeps the memory.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.messages.clear();
    }
}

/// The state of a replica, for status displays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub replica: u8,
    /// The leader, as far as this replica knows.
    pub leader: Option<u8>,
    pub term: u64,
    /// The index of the last entry applied.
    pub applied: u64,
    pub voters: Vec<u8>,
    /// If it leads: the active session and its switch.
    pub serving: Option<(u64, u8)>,
    /// If it leads: the replicas that get reads.
    pub readers: Vec<u8>,
    /// The number of keys.
    pub keys: usize,
    /// Its disk is full: until there is room, it acknowledges nothing.
    #[serde(default)]
    pub disk_is_full: bool,
}

impl Status {
    /// Returns whether it leads.
    pub fn leads(&self) -> bool {
        self.leader == Some(self.replica)
    }
}

/// Event counters of a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Counters {
    /// Reads answered as the leader.
    pub reads_leader: u64,
    /// Reads answered as a follower.
    pub reads_follower: u64,
    /// Of these, reads for which entries had to be applied first.
    pub reads_advanced: u64,
    /// Reads refused because the replica lacks the entry.
    pub reads_refused: u64,
    /// Writes accepted as the leader.
    pub writes: u64,
    /// Writes of an old session, or overtaken by a later write of their group.
    pub writes_dropped: u64,
    /// Replies sent for no client, so that a group becomes stable.
    pub refreshes: u64,
    pub bad_packets: u64,
}

pub struct Replica {
    config: Config,
    /// A random number that identifies this process.
    start: u64,
    raft: RaftNode<Store>,
    lflair: Lflair,
    groups: Groups,
    /// Proposed writes, by ticket.
    pending: HashMap<u64, Answer>,
    ticket: u64,
    /// The term in which it leads and has applied everything before; it may not serve yet.
    leads_in: Option<u64>,
    /// The ticket of the entry that begins a session.
    session_ticket: u64,
    announced: [Option<Announcement>; REPLICAS_MAX],
    /// The last announcement, if it named another log.
    contradicted: [Option<Announcement>; REPLICAS_MAX],
    heard_at: [Option<Nanos>; REPLICAS_MAX],
    load: Load,
    /// As of the last burst of events; used only while this replica leads.
    peers: Peers,
    queue_len: u32,
    digests: Digests,
    majority: Majority,
    leases: Leases,
    /// The last session in the log, whether applied or not.
    last_session: LastSession,
    tick_at: Nanos,
    announce_at: Nanos,
    actions: Vec<Action>,
    counters: Counters,
}

impl Replica {
    /// Creates a replica with an empty store, in no group yet. `random` must be different at every start.
    pub fn new(config: Config, random: u64, now: Nanos) -> Result<Replica, RaftError> {
        let raft = RaftNode::in_memory(config.replica, random, config.tuning)?;
        Ok(Replica::with(config, raft, random, now))
    }

    /// Opens a replica on the log in `storage`, which must be its own, or begins a new log there. Everything that it
    /// acknowledges is synced first.
    pub fn open(
        config: Config,
        storage: Box<dyn Storage>,
        random: u64,
        now: Nanos,
    ) -> Result<Replica, RaftError> {
        let raft = RaftNode::open(storage, config.replica, random, config.tuning)?;
        Ok(Replica::with(config, raft, random, now))
    }

    fn with(config: Config, raft: RaftNode<Store>, start: u64, now: Nanos) -> Replica {
        let lflair = lflair::Config {
            replica: config.replica,
            node: config.node,
            set: config.set,
            switches: config.switches,
            leader_avoidance: config.leader_avoidance && !config.reads.is_even(),
            timing: config.timing,
        };
        let lease_groups = match config.reads {
            Reads::FollowerLeases => config.groups,
            _ => 0,
        };
        let leases = Leases::new(lease_groups, raft.last_index());
        let mut last_session = LastSession::default();
        raft.unapplied().for_each(|p| last_session.note(p));
        Replica {
            raft,
            lflair: Lflair::new(lflair),
            groups: Groups::default(),
            pending: HashMap::new(),
            ticket: 0,
            leads_in: None,
            session_ticket: 0,
            announced: [None; REPLICAS_MAX],
            contradicted: [None; REPLICAS_MAX],
            heard_at: [None; REPLICAS_MAX],
            load: Load::default(),
            peers: Peers::default(),
            queue_len: 0,
            digests: Digests::default(),
            majority: Majority::default(),
            leases,
            last_session,
            tick_at: now,
            announce_at: now,
            actions: Vec::new(),
            counters: Counters::default(),
            start,
            config,
        }
    }

    /// Handles a packet from a switch.
    pub fn on_packet(&mut self, now: Nanos, switch: u8, packet: &[u8], out: &mut Out) {
        let Ok((header, key, data)) = wire::parse(packet) else {
            self.counters.bad_packets += 1;
            return;
        };
        if header.set != self.config.set || switch >= self.config.switches {
            self.counters.bad_packets += 1;
            return;
        }
        match header.kind {
            Type::Heartbeat | Type::Install => self.on_answer(now, switch, &header, out),
            Type::Read | Type::Write if !self.is_whole(&header, key, data) => {
                self.counters.bad_packets += 1;
            }
            Type::Read => self.on_read(now, switch, &header, key, out),
            Type::Write => self.on_write(switch, &header, key, data),
            Type::ReadReply | Type::WriteReply | Type::Nack => self.counters.bad_packets += 1,
        }
    }

    /// Handles a message from another replica.
    pub fn on_message(&mut self, now: Nanos, from: u8, message: Message) {
        let Some(heard_at) = self.heard_at.get_mut(usize::from(from)) else {
            return;
        };
        match message {
            // A replica sends Raft messages only for its own log.
            Message::Raft(raft) if node_of(raft.from) == from => {
                *heard_at = Some(now);
                raft.proposed().for_each(|p| self.last_session.note(p));
                if self.config.reads == Reads::FollowerLeases {
                    self.leases.revoke(&raft, &self.digests);
                }
                self.raft.on_message(*raft);
            }
            Message::Raft(_) => {}
            Message::Announce(announcement) if node_of(announcement.raft_id) == from => {
                *heard_at = Some(now);
                self.note_announcement(from, announcement);
                self.load.report(usize::from(from), announcement.queue_len);
                self.leases.told(from, &announcement, now);
            }
            Message::Announce(_) => {}
            Message::Grant(grant) => self.on_grant(now, grant),
        }
    }

    /// A message from an earlier process of the replica may arrive late. So a log other than the one announced before,
    /// or in the group, counts only after two announcements in a row. Otherwise a late message could remove a live
    /// voter.
    fn note_announcement(&mut self, from: u8, announcement: Announcement) {
        let at = usize::from(from);
        let is_same = |id: u64| id == announcement.raft_id;
        let again = |a: Announcement| is_same(a.raft_id) && announcement.time > a.time;
        if self.log_of(from).is_none_or(is_same) || self.contradicted[at].is_some_and(again) {
            self.announced[at] = Some(announcement);
            self.contradicted[at] = None;
        } else {
            self.contradicted[at] = Some(announcement);
        }
    }

    /// While this replica was not hearing from another one, that one may have started a new log that votes. Accept what
    /// it announces from now on.
    fn forget_contradictions(&mut self) {
        for replica in 0..self.config.replicas {
            let at = usize::from(replica);
            let in_group = self.log_in_group(replica);
            let is_other = |a: &Announcement| in_group.is_some_and(|id| id != a.raft_id);
            self.announced[at] = self.announced[at].filter(|a| !is_other(a));
            self.contradicted[at] = None;
        }
    }

    /// Sets the number of requests queued here, for the weights.
    pub fn set_queue_len(&mut self, queue_len: u32) {
        self.queue_len = queue_len;
    }

    /// Sets how keys and data are hashed. Must match the rest of the cluster, and must be called before the first
    /// packet.
    pub fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    /// Returns when to call [`Replica::tick`] next.
    pub fn due(&self) -> Nanos {
        self.tick_at.min(self.announce_at).min(self.lflair.due())
    }

    /// Handles timers.
    pub fn tick(&mut self, now: Nanos, out: &mut Out) {
        if now >= self.tick_at {
            // A host that was stalled skips the ticks that it missed.
            self.tick_at = now + self.config.timing.tick_ns;
            self.raft.tick();
            let wanted = self.wanted();
            self.raft.steer_voters(&wanted);
        }
        if now >= self.announce_at {
            self.announce_at = now + self.config.timing.announce_ns;
            self.announce(now, out);
        }
        if now >= self.lflair.due() {
            let peers = self.look_at_peers(now);
            self.lflair.tick(now, &peers, &mut self.actions);
            self.act(out);
        }
    }

    /// Processes the events since the last call: sends, applies and answers. An error is a bug.
    pub fn advance(&mut self, now: Nanos, out: &mut Out) -> Result<(), RaftError> {
        self.found_group()?;
        // Applied entries may cause further proposals.
        loop {
            if self.config.reads == Reads::Majority {
                self.ask_majority(now);
            }
            let outcome = self.raft.advance()?;
            let messages = outcome.messages.into_iter();
            let messages = messages.map(|m| (node_of(m.to), Message::Raft(Box::new(m))));
            out.messages.extend(messages);
            self.follow_leadership(now);
            let is_leader = self.lflair.term().is_some();
            if !is_leader || (outcome.applied.is_empty() && outcome.confirmed.is_empty()) {
                self.act(out);
                break;
            }
            let peers = self.look_at_peers(now);
            for applied in outcome.applied {
                self.on_applied(now, &applied, &peers, out);
            }
            for number in outcome.confirmed {
                if self.majority_has_answered(number, out) {
                    continue;
                }
                let actions = &mut self.actions;
                self.lflair.confirmed(now, number, &peers, actions);
            }
            self.act(out);
        }
        if self.config.reads == Reads::FollowerLeases {
            self.renew_leases(now, out);
        }
        Ok(())
    }

    /// Returns whether [`Replica::advance`] should be called again immediately, to write the next slice of a snapshot.
    pub fn has_work(&self) -> bool {
        self.raft.has_work()
    }

    /// Returns the replicated state, up to the last entry applied here.
    pub fn store(&self) -> &Store {
        self.raft.state()
    }

    /// Returns the index of the last entry applied here.
    pub fn applied(&self) -> u64 {
        self.raft.applied()
    }

    /// Returns the Raft ids of its own log, of the voters, and of the listeners.
    pub fn raft_ids(&self) -> (u64, Vec<u64>, Vec<u64>) {
        let (voters, learners) = self.raft.peers();
        (self.raft.id(), voters, learners)
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    pub fn status(&self, now: Nanos) -> Status {
        let numbers = |bitmap: u8| (0..8).filter(|n| bitmap >> n & 1 == 1).collect();
        let serving = self.lflair.serving();
        let readers = serving.map_or(0, |_| self.replicas_heard(now));
        Status {
            replica: self.config.replica,
            leader: self.raft.leader(),
            term: self.raft.term(),
            applied: self.raft.applied(),
            voters: self.raft.peers().0.into_iter().map(node_of).collect(),
            serving,
            readers: numbers(readers),
            keys: self.raft.state().len(),
            disk_is_full: false,
        }
    }

    fn others(&self) -> impl Iterator<Item = u8> {
        let own = self.config.replica;
        (0..self.config.replicas).filter(move |replica| *replica != own)
    }

    fn announcement(&self, now: Nanos) -> Announcement {
        Announcement {
            raft_id: self.raft.id(),
            start: self.start,
            is_in_group: self.raft.is_in_group(),
            queue_len: self.queue_len,
            time: now,
        }
    }

    fn announce(&mut self, now: Nanos, out: &mut Out) {
        let announcement = self.announcement(now);
        let own = usize::from(self.config.replica);
        self.announced[own] = Some(announcement);
        self.load.report(own, self.queue_len);
        let announce = |to| (to, Message::Announce(announcement));
        out.messages.extend(self.others().map(announce));
    }

    /// Founds the group if this is the founder, all others are up, and none is in a group.
    fn found_group(&mut self) -> Result<(), RaftError> {
        let is_new = |replica: u8| {
            let announced = self.announced[usize::from(replica)];
            announced.is_some_and(|a| !a.is_in_group)
        };
        let founds = self.config.founder && !self.raft.is_in_group();
        if !founds || !self.others().all(is_new) {
            return Ok(());
        }
        let (replica, tuning) = (self.config.replica, self.config.tuning);
        let nothing = RaftNode::in_memory(replica, self.raft.id(), tuning)?;
        let own = std::mem::replace(&mut self.raft, nothing);
        // Not retriable, unlike a full disk later: the log has been moved out.
        self.raft = own.found().map_err(|error| match error {
            RaftError::Storage(error) => RaftError::Journal(error.into()),
            error => error,
        })?;
        Ok(())
    }

    /// Raft ids of the logs that should vote: for each replica, the one that it announces.
    fn wanted(&self) -> Vec<u64> {
        let others = self.others().filter_map(|replica| self.log_of(replica));
        others.chain([self.raft.id()]).collect()
    }

    /// Returns the log of another replica: the one it announces, or else the one in the group.
    fn log_of(&self, replica: u8) -> Option<u64> {
        let announced = self.announced[usize::from(replica)].map(|a| a.raft_id);
        announced.or_else(|| self.log_in_group(replica))
    }

    fn log_in_group(&self, replica: u8) -> Option<u64> {
        let is_its = |id: &u64| node_of(*id) == replica;
        self.raft.all_peers().find(is_its)
    }

    fn replicas_heard(&self, now: Nanos) -> u8 {
        let silent_ns = self.config.timing.follower_silent_ns;
        let is_heard = |replica: &u8| {
            let heard_at = self.heard_at[usize::from(*replica)];
            heard_at.is_some_and(|at| now < at + silent_ns)
        };
        let spread = self.config.reads.spreads();
        let others = self.others().filter(|r| spread && is_heard(r));
        let others = others.map(|r| 1 << r);
        others.sum::<u8>() | 1 << self.config.replica
    }

    /// Returns what is known of the replicas of this set, while this one leads.
    fn look_at_peers(&mut self, now: Nanos) -> Peers {
        let mut matched = [0; REPLICAS_MAX];
        for id in self.raft.all_peers() {
            let replica = usize::from(node_of(id));
            let announced = self.announced.get(replica).copied().flatten();
            // A log that no longer exists holds nothing.
            if announced.is_none_or(|a| a.raft_id == id) && replica < REPLICAS_MAX {
                matched[replica] = self.raft.matched(id).unwrap_or(0);
            }
        }
        let weights = match self.config.load_awareness {
            true => self.load.weights(now, self.config.timing.weights_ns),
            false => [1; REPLICAS_MAX],
        };
        self.peers = Peers {
            matched,
            replicas: self.replicas_heard(now),
            weights,
        };
        self.peers
    }

    /// Returns whether a leader may begin to serve: what it acknowledges must survive any minority of the replicas. The
    /// founder of a group votes alone at first. Later, a replica that lost its log is no voter for a while.
    fn has_enough_voters(&self) -> bool {
        let replicas = usize::from(self.config.replicas);
        let voters = self.raft.peers().0.len();
        match self.raft.state().session().id {
            0 => voters >= replicas,
            _ => 2 * voters > replicas,
        }
    }

    fn follow_leadership(&mut self, now: Nanos) {
        let leads_in = self.raft.is_up_to_date().then(|| self.raft.term());
        if std::mem::replace(&mut self.leads_in, leads_in) != leads_in && leads_in.is_some() {
            self.forget_contradictions();
        }
        // Leases count by term, so in one term it begins to serve only once.
        let serves = |term: &u64| self.lflair.term() == Some(*term) || self.has_enough_voters();
        let serves_in = leads_in.filter(serves);
        if serves_in == self.lflair.term() {
            return;
        }
        self.pending.clear();
        self.session_ticket = 0;
        self.leases.deposed(self.raft.last_index());
        self.lflair.deposed();
        if let Some(term) = serves_in {
            let last = self.raft.state().session();
            let step_down_ns = last.step_down_max_ns;
            self.lflair.elected(now, term, last.switch, step_down_ns);
        }
    }

    fn propose(&mut self, entry: &Entry<'_>) -> Option<u64> {
        self.ticket += 1;
        self.raft.propose(self.ticket, entry).then_some(self.ticket)
    }

    /// Executes lflair's actions.
    fn act(&mut self, out: &mut Out) {
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Begin { switch } => self.begin_session(switch),
                Action::Confirm { number } => self.raft.confirm(number),
                Action::Send { switch, header } => out.packets.push(switch, &header, &[], &[]),
            }
        }
    }

    fn begin_session(&mut self, switch: u8) {
        let op = Op::Session {
            switch,
            step_down_ns: self.config.timing.step_down_ns,
        };
        let ticket = self.propose(&Entry {
            client_id: 0,
            client_seq: 0,
            client_low: 0,
            op,
        });
        if ticket.is_some() {
            let (index, term) = (self.raft.last_index(), self.raft.term());
            self.last_session.begun(index, term);
        }
        self.session_ticket = ticket.unwrap_or(0);
        self.lflair.proposed(ticket.is_some());
    }

    fn on_answer(&mut self, now: Nanos, switch: u8, header: &Header, out: &mut Out) {
        let peers = self.look_at_peers(now);
        let actions = &mut self.actions;
        self.lflair.on_answer(now, switch, header, &peers, actions);
        self.act(out);
    }

    fn on_write(&mut self, switch: u8, header: &Header, key: &[u8], data: &[u8]) {
        let is_served = self.lflair.serving() == Some((header.session, switch));
        let group = wire::group_of(header.key_hash, self.config.groups);
        let has_room = self.pending.len() < PENDING_WRITES_MAX;
        if !is_served || !has_room || !self.groups.take(group, header.seq) {
            self.counters.writes_dropped += 1;
            return;
        }
        let op = match header.flags & (flag::OPEN | flag::DELETE) {
            0 => Op::Put { key, data },
            flag::DELETE => Op::Delete { key },
            _ => Op::Open,
        };
        let window = u64::from(header.window);
        let proposed = self.propose(&Entry {
            client_id: header.client_id,
            client_seq: header.client_seq,
            client_low: header.client_seq.saturating_sub(window),
            op,
        });
        self.counters.writes += 1;
        match proposed {
            Some(ticket) => drop(
                self.pending
                    .insert(ticket, Answer::to(header, switch, group)),
            ),
            // It will never be applied; the client will retransmit the write.
            None => self.groups.give_up(group),
        }
    }

    fn on_applied(&mut self, now: Nanos, applied: &Applied<Done>, peers: &Peers, out: &mut Out) {
        if applied.output == Done::Session {
            if applied.ticket == self.session_ticket && Some(applied.term) == self.lflair.term() {
                self.session_ticket = 0;
                self.groups.begin(applied.index);
                let actions = &mut self.actions;
                self.lflair
                    .session_applied(now, applied.index, peers, actions);
            }
            return;
        }
        // Tickets are local to a leader; entries of other leaders have an older term.
        if Some(applied.term) != self.lflair.term() {
            return;
        }
        let Some(answer) = self.pending.remove(&applied.ticket) else {
            return;
        };
        // A replica that still lacks the entry when a read arrives refuses the read, and the leader answers it.
        let followers = peers.about_to_hold(applied.index);
        let (index, seq) = (applied.index, answer.seq);
        let (session, group) = (answer.session, answer.group);
        self.groups
            .applied(now, session, group, (seq, index, followers));
        let header = answer.written(applied.output, index, followers, self.identity());
        match self.config.reads {
            Reads::FollowerLeases => {
                self.reply_with_leases(index, answer.switch, header);
            }
            _ => out.packets.push(answer.switch, &header, &[], &[]),
        }
    }

    /// Returns whether the key belongs to this set and matches `key_hash`, by which the switch routed the packet, and
    /// whether the data is intact.
    fn is_whole(&self, header: &Header, key: &[u8], data: &[u8]) -> bool {
        let is_read = header.kind == Type::Read;
        let is_open = header.kind == Type::Write && header.has(flag::OPEN);
        let is_of_set = is_open || set_of(key, self.config.sets) == self.config.set;
        is_of_set
            && (1..=KEY_LEN_BYTES_MAX).contains(&key.len())
            && header.key_hash == self.config.reads.route(self.digests.of_key(key), is_read)
            && header.digest == self.digests.of_data(data)
    }
}
