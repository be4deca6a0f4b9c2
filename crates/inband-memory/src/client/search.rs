//! How a client finds the active switch, and leaves one that does not answer.

use super::{Client, Out};
use crate::epoch::{is_ahead, is_switch, Nanos, MS};
use crate::switch_host::WINDOW_MAX;
use crate::wire::{emit, Header, F_ACTIVATE, F_NOT_ACTIVE, HELLO, READ_REQUEST};

/// Retransmission interval of probes and HELLOs.
const HELLO_AGAIN_NS: Nanos = 2 * MS;
/// Attempts to open a session at one switch before giving up.
const HELLOS_MAX: u32 = 10;
/// How long to wait before asking a switch without room again.
const FULL_AGAIN_NS: Nanos = 50 * MS;
/// How long a switch may take to become active before the next one is asked.
const ACTIVATE_AGAIN_NS: Nanos = 30 * MS;
/// How long to keep trying an active switch that gives no session or answers no request before having another one
/// activated. Doubles each time.
pub(super) const USELESS_MIN_NS: Nanos = 50 * MS;
const USELESS_MAX_NS: Nanos = 1_000 * MS;

/// Looking for an active switch.
pub(super) struct Looking {
    /// Answers with another nonce are stale.
    pub nonce: u64,
    pub since: Nanos,
    pub probe_at: Nanos,
    /// The last answer of each switch in this search: whether it is active, and its epoch.
    pub heard: Vec<Option<(bool, u64)>>,
    pub activate_at: Nanos,
    /// How many switches have been asked to become active.
    pub asked: usize,
}

/// Asking a switch for a session.
pub(super) struct Joining {
    pub switch: usize,
    pub nonce: u64,
    pub send_at: Nanos,
    pub sends: u32,
}

/// A switch that was left because it was silent for too long.
pub(super) struct Left {
    switch: usize,
    silent_since: Nanos,
}

impl Client {
    /// Starts looking for an active switch, while the current session stays in use.
    pub(super) fn look(&mut self, now: Nanos) {
        if self.looking.is_none() {
            let min_ns = self.config.suspect_after_min_ns;
            let silent_since = self.joined.as_ref().map_or(now, |j| j.answered_at);
            let bears_ns = self.bears(now);
            let since = *self.looks_since.get_or_insert(now);
            self.looking = Some(Looking {
                nonce: self.draw(),
                since,
                probe_at: now,
                heard: vec![None; self.config.switches],
                activate_at: (now + min_ns).max(silent_since + bears_ns),
                asked: 0,
            });
        }
    }

    /// Returns how long a silence is tolerated before the switch is suspected.
    pub(super) fn bears(&self, now: Nanos) -> Nanos {
        let (min_ns, max_ns) = (
            self.config.suspect_after_min_ns,
            self.config.suspect_after_max_ns,
        );
        self.round_trip.suspect_after(now, min_ns, max_ns)
    }

    /// Handles a packet from a switch that was left as silent: it had not failed, so a silence of that length is to be
    /// tolerated from now on.
    pub(super) fn hear_of_left(&mut self, now: Nanos, switch: usize) {
        let Some(left) = self.left.take_if(|left| left.switch == switch) else {
            return;
        };
        let silence_ns = now - left.silent_since;
        if silence_ns < self.config.suspect_after_max_ns {
            self.round_trip.was_silent(now, silence_ns);
        }
    }

    pub(super) fn join(&mut self, now: Nanos, switch: usize, out: &mut Out) {
        self.looking = None;
        let nonce = self.unanswered[switch].unwrap_or_else(|| self.draw());
        self.unanswered[switch] = Some(nonce);
        self.joining = Some(Joining {
            switch,
            nonce,
            send_at: now,
            sends: 0,
        });
        self.ask(now, out);
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.nonce = self.nonce.wrapping_add(1);
        self.nonce
    }

    /// Records the epoch of a switch. Epochs that servers propose to fence off a switch do not tell which switch is the
    /// latest.
    pub(super) fn hear(&mut self, epoch: u64) {
        if is_switch(epoch) {
            self.epoch = self.epoch.max(epoch);
        }
    }

    fn is_probed_with(&self, nonce: u64) -> bool {
        let looking = self.looking.as_ref();
        looking.is_some_and(|looking| looking.nonce == nonce)
    }

    /// Records the epoch of a switch in a packet that may be late, or somebody else's, unless it `answers` what the
    /// client asks now. Returns false, and records nothing, if it is too far ahead for that.
    fn hear_late(&mut self, epoch: u64, answers: bool) -> bool {
        if !answers && is_ahead(epoch, self.epoch) {
            return false;
        }
        self.hear(epoch);
        true
    }

    /// Sends HELLO to ask for a session.
    pub(super) fn ask(&mut self, now: Nanos, out: &mut Out) {
        let Some(joining) = self
            .joining
            .as_mut()
            .filter(|joining| now >= joining.send_at)
        else {
            return;
        };
        if joining.sends == HELLOS_MAX {
            self.gave_no_session = Some(joining.switch);
            self.joining = None;
            self.look(now);
            return;
        }
        joining.sends += 1;
        joining.send_at = now + HELLO_AGAIN_NS;
        let hello = Header {
            kind: HELLO,
            epoch: self.epoch,
            session: self.last_session[joining.switch],
            request: joining.nonce,
            slot: self.config.window.clamp(1, WINDOW_MAX),
            ..Header::default()
        };
        emit(&hello, &[], out.packet(joining.switch));
    }

    pub(super) fn on_welcome(&mut self, now: Nanos, switch: usize, header: &Header, out: &mut Out) {
        let is_active = header.flags & F_NOT_ACTIVE == 0;
        let is_room = header.slot.is_power_of_two() && header.slot <= WINDOW_MAX;
        let is_session = is_active && header.session != 0 && is_room;
        let answers_hello = self.unanswered.get(switch) == Some(&Some(header.request));
        let answers_probe = self.is_probed_with(header.request);
        if !self.hear_late(header.epoch, answers_hello || answers_probe) {
            return;
        }
        if answers_hello && is_active && header.session == 0 {
            self.heard_full(now, switch);
        }
        let joining = self.joining.as_ref();
        if answers_hello && joining.is_some_and(|joining| joining.switch == switch) {
            if is_session {
                self.joining = None;
                self.joins(now, switch, header, out);
            } else if !is_active {
                (self.joining, self.full) = (None, None);
                self.look(now);
                self.tick(now, out);
            } // otherwise retransmission asks again
            return;
        }
        let Some(looking) = &mut self.looking else {
            return;
        };
        if let Some(heard) = looking.heard.get_mut(switch).filter(|_| answers_probe) {
            *heard = Some((is_active, header.epoch));
        }
        let is_latest = header.epoch >= self.epoch;
        if !is_active || !is_latest || !(answers_probe || answers_hello) {
            return;
        }
        if !answers_hello || !self.is_elsewhere(switch, header.epoch) {
            self.found(now, switch, header.epoch, out);
        } else if is_session {
            // The answer took longer than the HELLO's retransmission interval.
            self.joins(now, switch, header, out);
        }
    }

    /// Handles a switch without room for another session. Its process is alive, so no other switch is activated
    /// instead: that would end everyone's sessions.
    fn heard_full(&mut self, now: Nanos, switch: usize) {
        (self.gave_no_session, self.full) = (None, Some(switch));
        // The pause does not count as silence of the switch.
        let again_at = now + FULL_AGAIN_NS;
        self.looks_since = Some(again_at);
        if let Some(looking) = &mut self.looking {
            looking.since = again_at;
        }
        let joining = self.joining.as_mut();
        if let Some(joining) = joining.filter(|joining| joining.switch == switch) {
            (joining.sends, joining.send_at) = (0, again_at);
        }
    }

    /// Returns whether this is another switch than the one in use, and in a later epoch.
    fn is_elsewhere(&self, switch: usize, epoch: u64) -> bool {
        let joined = self.joined.as_ref();
        joined.is_none_or(|joined| joined.switch != switch && epoch > joined.epoch)
    }

    /// Handles a probe's answer. It comes from the switch's role itself, since the process beside it may be waiting for
    /// a CPU.
    pub(super) fn on_probed(&mut self, now: Nanos, switch: usize, header: &Header, out: &mut Out) {
        if !self.hear_late(header.epoch, self.is_probed_with(header.request)) {
            return;
        }
        let is_active = header.flags & F_NOT_ACTIVE == 0;
        let looking = self.looking.as_mut();
        let Some(looking) = looking.filter(|looking| looking.nonce == header.request) else {
            return;
        };
        if let Some(heard) = looking.heard.get_mut(switch) {
            *heard = Some((is_active, header.epoch));
        }
        if is_active && header.epoch >= self.epoch {
            self.found(now, switch, header.epoch, out);
        }
    }

    /// Handles a switch that claims to be active in the latest epoch.
    fn found(&mut self, now: Nanos, switch: usize, epoch: u64, out: &mut Out) {
        match &self.joined {
            Some(joined) if joined.switch == switch && joined.is_idle() => {
                (self.looking, self.looks_since) = (None, None);
            }
            // Its role answers but its process does not: have another switch activated, and give it time to answer.
            _ if self.gave_no_session == Some(switch)
                && self.is_useless(now)
                && (self.is_another_heard(switch) || self.waits_for_others(now)) => {}
            // The switch in use may answer again. If it does not, another switch is activated.
            _ if !self.is_elsewhere(switch, epoch) => {}
            _ => self.join(now, switch, out),
        }
    }

    fn useless_after(&self, now: Nanos) -> Nanos {
        self.useless_after_ns.max(self.bears(now))
    }

    /// Returns whether the search has lasted so long that even an active switch should be replaced.
    fn is_useless(&self, now: Nanos) -> bool {
        let since = self.looks_since;
        since.is_some_and(|since| now > since + self.useless_after(now))
    }

    /// Returns whether it is too early to have a switch activated.
    fn waits_for_others(&self, now: Nanos) -> bool {
        let looking = self.looking.as_ref();
        looking.is_some_and(|looking| now < looking.activate_at)
    }

    fn is_another_heard(&self, switch: usize) -> bool {
        let looking = self.looking.iter();
        let mut heard = looking.flat_map(|looking| looking.heard.iter().enumerate());
        heard.any(|(other, heard)| other != switch && heard.is_some())
    }

    /// Asks all switches whether they are active, and asks one of them to become active if none is.
    pub(super) fn probe(&mut self, now: Nanos, out: &mut Out) {
        let useless_after_ns = self.useless_after(now);
        let used = self.joined.as_ref().map(|joined| joined.switch);
        let Some(looking) = &mut self.looking else {
            return;
        };
        let mut hello = Header {
            kind: HELLO,
            epoch: self.epoch,
            request: looking.nonce,
            ..Header::default()
        };
        if now >= looking.probe_at {
            looking.probe_at = now + HELLO_AGAIN_NS;
            // It names no session: the role refuses it, and the refusal says whether it is active.
            let read = Header {
                kind: READ_REQUEST,
                lines: 1,
                ..hello
            };
            for switch in 0..self.config.switches {
                emit(&hello, &[], out.packet(switch));
                emit(&read, &[], out.packet(switch));
            }
        }
        if now < looking.activate_at {
            return;
        }
        let heard = &looking.heard;
        let latest = self.epoch;
        let is_active = |switch: usize| {
            heard[switch].is_some_and(|(is_active, epoch)| is_active && epoch >= latest)
        };
        let is_useless = now > looking.since + useless_after_ns;
        if !is_useless && (0..heard.len()).any(is_active) {
            return;
        }
        // Start with the switch in use, then try the others in turn.
        let first = used.unwrap_or(self.config.first_switch);
        let order = (0..heard.len()).map(|n| (first + n) % heard.len());
        let candidates: Vec<usize> = order
            .filter(|s| heard[*s].is_some() && !is_active(*s))
            .collect();
        if candidates.is_empty() {
            return;
        }
        hello.flags = F_ACTIVATE;
        self.full = None;
        emit(
            &hello,
            &[],
            out.packet(candidates[looking.asked % candidates.len()]),
        );
        if let (0, Some(joined)) = (looking.asked, &self.joined) {
            self.left = Some(Left {
                switch: joined.switch,
                silent_since: joined.answered_at,
            });
        }
        looking.asked += 1;
        looking.activate_at = now + ACTIVATE_AGAIN_NS;
        if is_useless {
            looking.since = now;
            self.looks_since = Some(now);
            self.useless_after_ns = (2 * useless_after_ns).min(USELESS_MAX_NS);
        }
        // Earlier answers are out of date now.
        looking.heard.fill(None);
    }
}
