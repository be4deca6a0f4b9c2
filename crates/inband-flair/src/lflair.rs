//! lflair: the leader's protocol that makes exactly one switch serve its replica set.
//!
//! A session is bound to this leader, its term and one switch. It begins with a log entry. Then the leader installs it
//! on the switch, and neutralises all other switches or waits until their sessions have expired. Only then does it send
//! the first heartbeat, which makes the switch serve (docs/flair.md, Sessions).

mod switch;

use crate::dataplane::wire::{flag, Header, Type};

use crate::limits::CONFIRMATIONS_MAX;
use crate::peers::Peers;
use crate::timing::{with_drift, Nanos, Timing};
use switch::{Switch, SwitchTime};

/// No requests are served while a session is being installed, so packets are retransmitted faster than heartbeats.
const INSTALLS_PER_HEARTBEAT: Nanos = 8;

#[derive(Debug, Clone, Copy)]
pub struct Config {
    pub replica: u8,
    /// This replica's node id, in packets.
    pub node: u16,
    pub set: u16,
    /// The number of switches.
    pub switches: u8,
    /// Send no reads to a leader that has writes to process.
    pub leader_avoidance: bool,
    pub timing: Timing,
}

/// An action for the replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Commit an entry that begins a session on this switch.
    Begin { switch: u8 },
    /// Ask a majority to confirm that this replica still leads.
    Confirm {
        /// Identifies the question.
        number: u64,
    },
    /// Send a packet without key and data.
    Send { switch: u8, header: Header },
}

/// A session whose entry is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Session {
    /// The id is the index of its entry.
    id: u64,
    switch: u8,
    since: Nanos,
    /// The incarnation of the switch that has confirmed the INSTALL.
    installed: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not the leader.
    Idle,
    /// No switch has been chosen yet.
    Choosing { since: Nanos },
    /// The session's entry is about to be proposed, or has been.
    Beginning { switch: u8, is_proposed: bool },
    /// The session is being installed, and other switches neutralised.
    Installing(Session),
    /// The leader sends heartbeats.
    Serving(Session),
}

/// A time of the switch, pending confirmation by a majority.
#[derive(Debug, Clone, Copy)]
struct Asked {
    number: u64,
    incarnation: u64,
    told: SwitchTime,
}

#[derive(Debug)]
pub struct Lflair {
    config: Config,
    term: u64,
    preferred: u8,
    /// How long a switch may serve after a heartbeat, by this host's clock.
    wait_ns: Nanos,
    phase: Phase,
    switches: Vec<Switch>,
    number: u64,
    asked: Vec<Asked>,
    confirmed: Option<Asked>,
    beat_at: Nanos,
}

impl Lflair {
    /// Returns the state of a replica that does not lead.
    pub fn new(config: Config) -> Lflair {
        Lflair {
            config,
            term: 0,
            preferred: 0,
            wait_ns: 0,
            phase: Phase::Idle,
            switches: vec![Switch::default(); usize::from(config.switches)],
            number: 0,
            asked: Vec::new(),
            confirmed: None,
            beat_at: 0,
        }
    }

    /// This replica leads in a new term and has applied everything before it. `last` is the switch of the previous
    /// session; `step_down_max_ns` is the longest that any earlier session can stay active without its leader.
    pub fn elected(&mut self, now: Nanos, term: u64, last: u8, step_down_max_ns: Nanos) {
        self.term = term;
        self.preferred = last;
        let own = self.config.timing.step_down_ns;
        self.wait_ns = with_drift(own.max(step_down_max_ns));
        self.forget_questions();
        // Any switch may still have an earlier session.
        let switch = Switch::since(now + self.wait_ns);
        self.switches.fill(switch);
        self.phase = Phase::Choosing { since: now };
        self.beat_at = now;
    }

    /// This replica no longer leads.
    pub fn deposed(&mut self) {
        self.phase = Phase::Idle;
        self.forget_questions();
    }

    /// Returns the term in which it leads, if it does.
    pub fn term(&self) -> Option<u64> {
        (self.phase != Phase::Idle).then_some(self.term)
    }

    /// Returns the session whose packets are accepted: id and switch.
    pub fn serving(&self) -> Option<(u64, u8)> {
        match self.phase {
            Phase::Serving(session) => Some((session.id, session.switch)),
            _ => None,
        }
    }

    /// Returns when to call [`Lflair::tick`] next.
    pub fn due(&self) -> Nanos {
        match self.phase {
            Phase::Idle => Nanos::MAX,
            _ => self.beat_at,
        }
    }

    /// Handles timers.
    pub fn tick(&mut self, now: Nanos, peers: &Peers, actions: &mut Vec<Action>) {
        if now < self.due() {
            return;
        }
        let every_ns = self.config.timing.heartbeat_ns;
        self.beat_at = match self.phase {
            Phase::Installing(_) => now + every_ns / INSTALLS_PER_HEARTBEAT,
            _ => now + every_ns,
        };
        self.look_after(now, actions);
        self.talk(now, peers, actions);
    }

    /// Whether the entry of [`Action::Begin`] was proposed. If not, it is retried.
    pub fn proposed(&mut self, is_proposed: bool) {
        if let Phase::Beginning { switch, .. } = self.phase {
            self.phase = Phase::Beginning {
                switch,
                is_proposed,
            };
        }
    }

    /// The entry of the new session has been applied.
    pub fn session_applied(
        &mut self,
        now: Nanos,
        id: u64,
        peers: &Peers,
        actions: &mut Vec<Action>,
    ) {
        let Phase::Beginning { switch, .. } = self.phase else {
            return;
        };
        self.phase = Phase::Installing(Session {
            id,
            switch,
            since: now,
            installed: None,
        });
        self.beat_at = now;
        self.tick(now, peers, actions);
    }

    /// Handles an answer from a switch.
    pub fn on_answer(
        &mut self,
        now: Nanos,
        switch: u8,
        header: &Header,
        peers: &Peers,
        actions: &mut Vec<Action>,
    ) {
        let is_answer = matches!(header.kind, Type::Heartbeat | Type::Install);
        let known = self.switches.get_mut(usize::from(switch));
        let Some(known) = known.filter(|_| is_answer && header.has(flag::ANSWER)) else {
            return;
        };
        let is_first = known.hear(now, header);
        match self.phase {
            Phase::Idle => {}
            Phase::Choosing { .. } if switch == self.preferred => self.begin(switch, actions),
            Phase::Choosing { .. } | Phase::Beginning { .. } => {}
            Phase::Installing(session) => {
                self.note_installed(session, switch, header);
                if is_first {
                    self.talk_to(now, switch, peers, actions);
                }
                self.ask(session, actions);
                self.activate(now, peers, actions);
            }
            Phase::Serving(session) if session.switch == switch => {
                if session.is_lost(header) {
                    self.begin(switch, actions);
                } else {
                    self.ask(session, actions);
                }
            }
            Phase::Serving(_) => {}
        }
    }

    /// A majority has confirmed, after question `number` was asked, that this replica leads.
    pub fn confirmed(&mut self, now: Nanos, number: u64, peers: &Peers, actions: &mut Vec<Action>) {
        let Some(at) = self.asked.iter().position(|asked| asked.number == number) else {
            return;
        };
        self.confirmed = Some(self.asked[at]);
        self.asked.drain(..=at);
        self.activate(now, peers, actions);
    }

    fn forget_questions(&mut self) {
        self.asked.clear();
        self.confirmed = None;
    }

    fn begin(&mut self, switch: u8, actions: &mut Vec<Action>) {
        self.forget_questions();
        self.phase = Phase::Beginning {
            switch,
            is_proposed: false,
        };
        actions.push(Action::Begin { switch });
    }

    /// Chooses a switch, and replaces one that is silent while another answers.
    fn look_after(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let silent_ns = self.config.timing.switch_silent_ns;
        let is_silent = |s: &Switch, since| now >= s.heard_at().unwrap_or(since) + silent_ns;
        let alive = |other_than| {
            let mut switches = self.switches.iter().enumerate();
            switches.position(|(number, switch)| {
                Some(number as u8) != other_than
                    && switch.heard_at().is_some()
                    && !is_silent(switch, 0)
            })
        };
        match self.phase {
            Phase::Idle => {}
            Phase::Choosing { since } => {
                if now >= since + silent_ns {
                    if let Some(switch) = alive(None) {
                        self.begin(switch as u8, actions);
                    }
                }
            }
            Phase::Beginning {
                switch,
                is_proposed,
            } => {
                if !is_proposed {
                    actions.push(Action::Begin { switch });
                }
            }
            Phase::Installing(session) | Phase::Serving(session) => {
                let switch = &self.switches[usize::from(session.switch)];
                if is_silent(switch, session.since) {
                    if let Some(other) = alive(Some(session.switch)) {
                        self.begin(other as u8, actions);
                    }
                }
            }
        }
    }

    fn talk(&mut self, now: Nanos, peers: &Peers, actions: &mut Vec<Action>) {
        if self.phase == Phase::Idle {
            return;
        }
        for switch in 0..self.config.switches {
            self.talk_to(now, switch, peers, actions);
        }
        self.activate(now, peers, actions);
    }

    /// Sends a switch what it needs now: the session, or only a probe.
    fn talk_to(&mut self, now: Nanos, switch: u8, peers: &Peers, actions: &mut Vec<Action>) {
        let known = &self.switches[usize::from(switch)];
        let header = match (self.phase, known.incarnation()) {
            (Phase::Installing(session), Some(incarnation)) => {
                let is_own = session.switch == switch;
                let is_told = match is_own {
                    true => session.installed == Some(incarnation),
                    false => known.is_mute_for(session.id),
                };
                let waits = is_own && self.waits_for_followers(now, session, peers);
                match is_told || waits {
                    true => self.probe(),
                    false => self.install(session, switch, incarnation, peers),
                }
            }
            (Phase::Serving(session), _) if session.switch == switch => {
                return self.beat(session, peers, actions);
            }
            _ => self.probe(),
        };
        actions.push(Action::Send { switch, header });
    }

    /// Returns whether to delay the INSTALL: a follower that lacks the session's entry would get no reads of groups
    /// that are not written.
    fn waits_for_followers(&self, now: Nanos, session: Session, peers: &Peers) -> bool {
        let all = peers.replicas & !peers.holding(session.id) == 0;
        !all && now < session.since + self.config.timing.followers_wait_ns
    }

    fn header(&self, kind: Type, session: u64, incarnation: u64) -> Header {
        let mut header = Header::new(kind, self.config.set, self.config.node);
        header.session = session;
        header.seq = incarnation;
        header.term = self.term as u32;
        header.replica = self.config.replica;
        header
    }

    /// Returns a heartbeat that changes nothing and only asks for an answer.
    fn probe(&self) -> Header {
        self.header(Type::Heartbeat, 0, 0)
    }

    fn route(&self, header: &mut Header, session: Session, peers: &Peers) {
        header.set_weights(peers.weights);
        header.window = u16::from(peers.replicas);
        header.followers = peers.holding(session.id);
        if self.config.leader_avoidance {
            header.flags |= flag::LEADER_AVOIDANCE;
        }
    }

    fn install(&self, session: Session, switch: u8, incarnation: u64, peers: &Peers) -> Header {
        let mut header = self.header(Type::Install, session.id, incarnation);
        self.route(&mut header, session, peers);
        header.log_index = session.id;
        header.client_id = self.config.timing.step_down_ns;
        if switch != session.switch {
            header.flags |= flag::NEUTRALISE;
        }
        header
    }

    fn note_installed(&mut self, session: Session, switch: u8, header: &Header) {
        if switch == session.switch && header.session == session.id {
            self.phase = Phase::Installing(Session {
                installed: Some(header.incarnation()),
                ..session
            });
        }
    }

    /// Asks a majority to confirm leadership after the latest time received from the session's switch.
    fn ask(&mut self, session: Session, actions: &mut Vec<Action>) {
        let switch = &self.switches[usize::from(session.switch)];
        let (Some(incarnation), Some(told)) = (switch.incarnation(), switch.told()) else {
            return;
        };
        let last = self.asked.last().or(self.confirmed.as_ref());
        let is_new = last.is_none_or(|a| a.incarnation != incarnation || a.told != told);
        if !is_new || self.asked.len() >= CONFIRMATIONS_MAX {
            return;
        }
        self.number += 1;
        let number = self.number;
        self.asked.push(Asked {
            number,
            incarnation,
            told,
        });
        actions.push(Action::Confirm { number });
    }

    /// Sends the first heartbeat once all conditions are met.
    fn activate(&mut self, now: Nanos, peers: &Peers, actions: &mut Vec<Action>) {
        let Phase::Installing(session) = self.phase else {
            return;
        };
        let confirmed = self.confirmed.map(|asked| asked.incarnation);
        if session.installed.is_none() || confirmed != session.installed {
            return;
        }
        let is_safe = |(number, switch): (usize, &Switch)| {
            number == usize::from(session.switch)
                || switch.is_mute_for(session.id)
                || now >= switch.may_serve_until()
        };
        if self.switches.iter().enumerate().all(is_safe) {
            self.phase = Phase::Serving(session);
            self.beat(session, peers, actions);
        }
    }

    /// Sends a heartbeat of an installed session. It echoes the last confirmed time.
    fn beat(&mut self, session: Session, peers: &Peers, actions: &mut Vec<Action>) {
        let incarnation = session.installed.expect("it is installed before it serves");
        let mut header = self.header(Type::Heartbeat, session.id, incarnation);
        self.route(&mut header, session, peers);
        if let Some(asked) = self.confirmed.filter(|a| a.incarnation == incarnation) {
            header.client_seq = asked.told.time_ns;
            let switch = &mut self.switches[usize::from(session.switch)];
            switch.renewed(asked.told.at + self.wait_ns);
        }
        let switch = session.switch;
        actions.push(Action::Send { switch, header });
    }
}

impl Session {
    /// Returns whether the answer shows that the switch has lost the session. Answers from before the installation do
    /// not count.
    fn is_lost(&self, header: &Header) -> bool {
        let is_same = self.installed == Some(header.incarnation());
        !is_same || header.session > self.id
    }
}
