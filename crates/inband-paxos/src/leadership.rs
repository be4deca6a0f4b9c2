//! Leader election: watch the current leader, and if it is gone take over with phase 1.
//!
//! The same procedure serves the first start, the take-over by a backup in software or XDP, and a stalled leader that
//! takes over from itself (protocol.md, 16 and 19). Phase 1 is never skipped, not even by the first leader: it costs
//! one round trip once.
//!
//! Before any promise is raised, a suspecting node sounds the acceptors: a majority must answer a POSITION. So a host
//! that is cut off from them cannot depose a leader that is not.

mod phases;
mod suspicion;

use std::collections::BTreeMap;

use crate::dataplane::registers::LeaderView;
use crate::dataplane::round;
use crate::dataplane::wire::{flag, Header, Type};
use inband_ground::auth::Digest;

use crate::outbox::{Dest, Outbox};
use crate::partition::process_id;
use crate::quorum::{SlotPromises, Votes};
use crate::rounds::RoundSource;
use crate::timing::{next_beat, Micros, Timing};

/// Time before the first retransmission in a phase; doubles each time, up to [`BACKOFF_DOUBLINGS_MAX`] times.
const PHASE_RETRY_US: Micros = 10_000;
/// Retransmissions in a phase without progress before giving way.
const PHASE_TRIES_MAX: u32 = 10;
/// How often a timeout doubles at most: a round trip between slow hosts may take longer than a suspicion.
const BACKOFF_DOUBLINGS_MAX: u32 = 4;
/// After this many unanswered retransmissions of PHASE1A, this node may be cut off, and sounds the acceptors again.
const UNANSWERED_TRIES_MAX: u32 = 4;
/// How often a node that is to become leader tries to take over from a leader that may be healthy. Each attempt beyond
/// the sounding interrupts that leader.
const WANTED_TRIES_MAX: u32 = 10;
/// Longest time between two take-overs of a stalled leader from itself.
const STALL_BACKOFF_MAX_US: Micros = 3_200_000;

/// This node's place among the leaders.
#[derive(Debug, Clone)]
pub struct LeadershipConfig {
    pub node: u8,
    pub partition: u16,
    pub epoch: u32,
    /// Acceptors' node ids.
    pub acceptors: Vec<u8>,
    /// Nodes with a leader role, in take-over order for this partition.
    pub leaders: Vec<u8>,
    /// First instance of the epoch.
    pub first_instance: u64,
    /// Number of this process run, never reused by this node.
    pub incarnation: u64,
    /// How values are digested.
    pub digest: Digest,
    pub timing: Timing,
}

#[derive(Debug)]
enum State {
    /// Another leader is active, or there is none yet.
    Watching,
    /// The leader is suspected; checking whether a majority of acceptors can be reached.
    Sounding { voters: Votes },
    /// Waiting for promises for the partition.
    Promising {
        voters: Votes,
        floor: u64,
        highest: u64,
    },
    /// Waiting for answers about single slots.
    Scanning {
        floor: u64,
        highest: u64,
        /// The next instance to query.
        ask_next: u64,
        /// Queried, and not yet answered by a majority.
        slots: BTreeMap<u64, SlotPromises>,
    },
    /// Active with this round.
    Active,
}

/// An event for the host to act on or to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaderEvent {
    /// The current leader is suspected; a take-over begins.
    Suspected,
    /// Set the leader's registers to this.
    Activate(LeaderView),
    /// Clear the leader's registers.
    Deactivate,
}

#[derive(Debug)]
pub struct Leadership {
    config: LeadershipConfig,
    rank: u64,
    state: State,
    round: u64,
    /// When another active leader was last heard from, and its round.
    heard_at: Micros,
    heard_round: u64,
    probe_at: Micros,
    /// Number of probes of leaders and soundings of acceptors so far.
    probes: u64,
    soundings: u64,
    /// When an active leader next checks itself.
    watch_at: Micros,
    retry_at: Micros,
    tries: u32,
    /// Consecutive soundings that no majority answered in time: each doubles the time for the next.
    futile_soundings: u32,
    /// How often the suspicion timeout is doubled because earlier elections were futile: the leader was alive, or
    /// another candidate was faster. Slow hosts must not depose each other again and again.
    backoff: u32,
    backoff_until: Micros,
    /// For the leader's current silence: see `forgive_own_lateness`.
    forgiven_us: Micros,
    /// Acceptors that have promised the partition to a higher round.
    refused: Votes,
    /// A learner's recovery holds a slot with a higher round.
    outbid: bool,
    /// This node is requested to lead although the leader may be healthy: number of attempts left.
    wanted_tries: u32,
    /// The highest instance known to be decided together with all before it, and since when it has not moved.
    decided: u64,
    decided_at: Micros,
    stall_after: Micros,
    suspected_at: Option<Micros>,
    takeovers: u64,
}

/// The first node in order need not wait at the start: its probe shows whether there is a leader.
fn head_start_us(timing: &Timing) -> Micros {
    timing
        .suspect_after_us
        .saturating_sub(3 * timing.probe_interval_us)
}

fn rank_in(leaders: &[u8], node: u8) -> u64 {
    let rank = leaders.iter().position(|l| *l == node);
    rank.expect("a host with a leadership is among the leaders") as u64
}

impl Leadership {
    /// Starts watching at `now`.
    pub fn new(now: Micros, config: LeadershipConfig) -> Leadership {
        let rank = rank_in(&config.leaders, config.node);
        let head_start = head_start_us(&config.timing);
        Leadership {
            rank,
            state: State::Watching,
            round: 0,
            heard_at: if rank == 0 {
                now.saturating_sub(head_start)
            } else {
                now
            },
            heard_round: 0,
            probe_at: now,
            probes: 0,
            soundings: 0,
            watch_at: 0,
            retry_at: 0,
            tries: 0,
            futile_soundings: 0,
            backoff: 0,
            backoff_until: 0,
            forgiven_us: 0,
            refused: Votes::default(),
            outbid: false,
            wanted_tries: 0,
            decided: 0,
            decided_at: now,
            stall_after: config.timing.suspect_after_us,
            suspected_at: None,
            takeovers: 0,
            config,
        }
    }

    /// Enters a later epoch, which has no leader yet: with a new round and a majority of its acceptors. A node that
    /// led, or was about to, starts at once; the others give it the usual time.
    pub fn enter_epoch(
        &mut self,
        now: Micros,
        epoch: u32,
        acceptors: &[u8],
        leaders: Vec<u8>,
        out: &mut Outbox,
    ) -> Option<LeaderEvent> {
        let was_active = self.is_active();
        let begins = !matches!(self.state, State::Watching);
        self.rank = rank_in(&leaders, self.config.node);
        let last = round::owner(self.heard_round);
        let is_awaited = last != self.config.node && leaders.contains(&last);
        self.config.epoch = epoch;
        self.config.acceptors = acceptors.to_vec();
        self.config.leaders = leaders;
        self.probe_at = now;
        self.heard_at = if self.rank == 0 && !is_awaited {
            now.saturating_sub(head_start_us(&self.config.timing))
        } else {
            now
        };
        if begins {
            self.restart_probe(now, out);
        } else {
            self.state = State::Watching;
        }
        was_active.then_some(LeaderEvent::Deactivate)
    }

    /// The order of the same nodes has changed. If this node is now the first, it takes over from a leader that may be
    /// healthy, but only if it can reach a majority of acceptors.
    pub fn reorder(&mut self, now: Micros, leaders: Vec<u8>, out: &mut Outbox) {
        let was_first = self.rank == 0;
        self.rank = rank_in(&leaders, self.config.node);
        self.config.leaders = leaders;
        let is_wanted = self.rank == 0 && !was_first && !self.is_active();
        self.wanted_tries = if is_wanted { WANTED_TRIES_MAX } else { 0 };
        if is_wanted && matches!(self.state, State::Watching) {
            self.restart_probe(now, out);
        }
    }

    /// This node's leader is active.
    pub fn is_active(&self) -> bool {
        matches!(self.state, State::Active)
    }

    /// Returns the round of the active leader as far as known; 0: none.
    pub fn known_round(&self) -> u64 {
        if self.is_active() {
            self.round
        } else if round::owner(self.heard_round) == self.config.node {
            0 // that was this node, and it leads no more
        } else {
            self.heard_round
        }
    }

    /// Returns the number of take-overs completed by this node.
    pub fn takeovers(&self) -> u64 {
        self.takeovers
    }

    fn header(&self, kind: Type) -> Header {
        let mut header = Header::new(kind, u16::from(self.config.node), self.config.epoch);
        header.partition = self.config.partition;
        header.round = self.round;
        header
    }

    /// How far instances are decided, as far as this host knows: from its own learner, or from replicas' ALIVE
    /// messages, which report what they have applied and written; on a slow disk that lags behind.
    pub fn on_decided(&mut self, now: Micros, decided: u64) {
        if decided > self.decided {
            self.decided = decided;
            self.decided_at = now;
            // Not reset at once: if every decision takes long, a take-over after each makes it worse.
            self.stall_after = (self.stall_after / 2).max(self.config.timing.suspect_after_us);
        }
    }

    /// An active leader with this round was heard from: its answer to a probe, or its ALIVE.
    pub fn on_leader_heard(&mut self, now: Micros, round: u64) -> Option<LeaderEvent> {
        if round < self.heard_round || round == 0 {
            return None;
        }
        self.heard_at = now;
        self.forgiven_us = 0;
        self.heard_round = round;
        self.probe_at = self.probe_at.max(now + self.quiet_us());
        match self.state {
            // A majority has promised a higher round: everything stamped here is refused.
            State::Active if round > self.round => {
                self.was_deposed(now, round);
                self.give_way(now);
                Some(LeaderEvent::Deactivate)
            }
            State::Promising { .. } | State::Scanning { .. } if round > self.round => {
                self.be_more_patient(now);
                self.give_way(now);
                None
            }
            State::Sounding { .. } if self.wanted_tries == 0 => {
                self.be_more_patient(now);
                self.give_way(now);
                None
            }
            _ => None,
        }
    }

    /// A leader answered a probe. A delayed answer, or one meant for another process, says nothing about the present.
    pub fn on_leader_answered(&mut self, now: Micros, header: &Header) -> Option<LeaderEvent> {
        let probe = self.number_of(header)?;
        // Counted, not timed: a process that was suspended has sent no probes meanwhile.
        let timing = &self.config.timing;
        let probes_max = self.suspect_after_us() / timing.probe_interval_us.max(1);
        let is_of_now = probe.saturating_add(probes_max) >= self.probes;
        is_of_now.then(|| self.on_leader_heard(now, header.round))?
    }

    /// Returns the number of the probe that is answered; `None`: this process did not send it.
    fn number_of(&self, answer: &Header) -> Option<u64> {
        (answer.client_id == self.process_id()).then_some(answer.client_low)
    }

    fn process_id(&self) -> u64 {
        process_id(self.config.node, self.config.incarnation)
    }

    /// POSITION, to leaders or acceptors: answers carry back the sender and the number of the query.
    fn question(&self, number: u64) -> Header {
        let mut header = self.header(Type::Position);
        header.round = 0;
        header.client_id = self.process_id();
        header.client_low = number;
        header
    }

    /// An acceptor answered POSITION: it can be reached in both directions.
    pub fn on_acceptor_answered(
        &mut self,
        now: Micros,
        header: &Header,
        rounds: &mut RoundSource,
        out: &mut Outbox,
    ) -> Option<LeaderEvent> {
        let number = self.number_of(header)?;
        let State::Sounding { voters } = &mut self.state else {
            return None;
        };
        if header.has(flag::RECOVERING) || number != self.soundings {
            return None;
        }
        voters.add(&self.config.acceptors, header.node);
        let reached = voters.is_majority(&self.config.acceptors);
        reached.then(|| self.take_over(now, rounds, out))
    }

    /// Another node is a candidate: watch, and retry later, by rank.
    fn give_way(&mut self, now: Micros) {
        self.state = State::Watching;
        self.futile_soundings = 0;
        self.forgiven_us = 0;
        self.heard_at = now;
        if self.wanted_tries > 0 {
            self.wanted_tries -= 1;
            self.retry_at = now + self.config.timing.suspect_after_us;
        }
    }

    /// Watch, retransmit, suspect. `view` is the current contents of the leader's registers.
    pub fn on_tick(
        &mut self,
        now: Micros,
        view: LeaderView,
        rounds: &mut RoundSource,
        out: &mut Outbox,
    ) -> Option<LeaderEvent> {
        self.forget_futile_elections(now);
        match self.state {
            State::Watching => {
                self.forgive_own_lateness(now);
                self.probe_leaders(now, out);
                let is_wanted = self.wanted_tries > 0 && now >= self.retry_at;
                if is_wanted || now >= self.heard_at + self.take_over_after_us() {
                    self.restart_probe(now, out);
                }
                None
            }
            State::Sounding { .. } => {
                // Continues until acceptors or a leader can be heard: it is harmless.
                self.probe_leaders(now, out);
                if now >= self.retry_at {
                    self.tries += 1;
                    if self.tries > PHASE_TRIES_MAX && self.wanted_tries > 0 {
                        self.give_way(now); // the leader can reach them, perhaps
                    } else if self.tries > PHASE_TRIES_MAX {
                        self.futile_soundings =
                            (self.futile_soundings + 1).min(BACKOFF_DOUBLINGS_MAX);
                        self.restart_probe(now, out);
                    } else {
                        self.sound(now, out);
                    }
                }
                None
            }
            State::Promising { .. } | State::Scanning { .. } => {
                if now < self.retry_at {
                    return None;
                }
                self.tries += 1;
                let tries_max = match &self.state {
                    State::Promising { voters, .. } if voters.is_empty() => UNANSWERED_TRIES_MAX,
                    _ => PHASE_TRIES_MAX,
                };
                if self.tries > tries_max {
                    self.be_more_patient(now);
                    self.give_way(now);
                    return None;
                }
                match self.state {
                    State::Scanning { .. } if self.outbid => {
                        self.restart_phase_1(now, rounds, out);
                    }
                    State::Scanning { .. } => self.ask_slots_again(now, out),
                    _ => self.ask_promises(now, out),
                }
                None
            }
            State::Active => self.watch_self(now, view, rounds, out),
        }
    }

    fn watch_self(
        &mut self,
        now: Micros,
        view: LeaderView,
        rounds: &mut RoundSource,
        out: &mut Outbox,
    ) -> Option<LeaderEvent> {
        self.watch_at = next_beat(now, self.config.timing.probe_interval_us);
        if view.round != self.round {
            // The role deposed itself on an acceptor's NACK.
            self.give_way(now);
            return Some(LeaderEvent::Deactivate);
        }
        if view.next <= self.decided + 1 {
            self.decided_at = now; // nothing is outstanding
        }
        if now >= self.decided_at + self.stall_after {
            // All packets of a full window may be lost; no other node can know (schedules.md, 9).
            self.stall_after = (self.stall_after * 2).min(STALL_BACKOFF_MAX_US);
            self.decided_at = now;
            return Some(self.take_over(now, rounds, out));
        }
        None
    }

    fn take_over(
        &mut self,
        now: Micros,
        rounds: &mut RoundSource,
        out: &mut Outbox,
    ) -> LeaderEvent {
        self.suspected_at = Some(now);
        self.tries = 0;
        self.futile_soundings = 0;
        self.restart_phase_1(now, rounds, out);
        LeaderEvent::Suspected
    }

    fn probe_leaders(&mut self, now: Micros, out: &mut Outbox) {
        if now < self.probe_at {
            return;
        }
        self.probe_at = now + self.config.timing.probe_interval_us;
        self.probes += 1;
        let mut header = self.question(self.probes);
        header.flags = flag::LEADER;
        out.send(Dest::Leaders, &header, &[]);
    }

    /// Discards old answers: a majority must be reachable at about the same time.
    fn restart_probe(&mut self, now: Micros, out: &mut Outbox) {
        self.soundings += 1;
        self.state = State::Sounding {
            voters: Votes::default(),
        };
        self.tries = 0;
        self.sound(now, out);
    }

    fn sound(&mut self, now: Micros, out: &mut Outbox) {
        self.retry_at = now + (PHASE_RETRY_US << self.futile_soundings);
        let header = self.question(self.soundings);
        out.send(Dest::Acceptors, &header, &[]);
    }

    /// Returns when `on_tick` is next due.
    pub fn due(&self) -> Micros {
        match self.state {
            State::Watching if self.wanted_tries > 0 => self.probe_at.min(self.retry_at),
            State::Watching => self.probe_at,
            State::Sounding { .. } => self.probe_at.min(self.retry_at),
            State::Promising { .. } | State::Scanning { .. } => self.retry_at,
            State::Active => self.watch_at,
        }
    }

    /// Returns when the leader was last suspected, for reports.
    pub fn suspected_at(&self) -> Option<Micros> {
        self.suspected_at
    }
}
