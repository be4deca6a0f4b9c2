//! When a leader is suspected, and which of several candidates takes over first.

use super::{Leadership, BACKOFF_DOUBLINGS_MAX};
use crate::dataplane::round;
use crate::timing::Micros;

/// After this long without another futile election, the back-off of suspicion is halved again.
const BACKOFF_KEPT_US: Micros = 10_000_000;

/// The back-off adds at most this to a suspicion, however long the configured time is.
const BACKOFF_MAX_US: Micros = 1_500_000;

impl Leadership {
    /// Returns how long a leader need not be probed after it was heard from: its next ALIVE is due within that time. If
    /// it does not arrive, there is time for several probes before the leader is suspected.
    pub(super) fn quiet_us(&self) -> Micros {
        let timing = &self.config.timing;
        let latest_us = timing
            .suspect_after_us
            .saturating_sub(3 * timing.probe_interval_us);
        (timing.alive_us + timing.probe_interval_us).min(latest_us)
    }

    pub(super) fn suspect_after_us(&self) -> Micros {
        let suspect_after_us = self.config.timing.suspect_after_us;
        (suspect_after_us << self.backoff).min(suspect_after_us + BACKOFF_MAX_US)
    }

    /// Returns how long to wait for the leader: the node after the last known leader goes first, the others follow at
    /// intervals of half that time, so that two rarely try at once.
    pub(super) fn take_over_after_us(&self) -> Micros {
        let suspect_after_us = self.suspect_after_us();
        let leaders = &self.config.leaders;
        let last = round::owner(self.heard_round);
        let count = leaders.len() as u64;
        match leaders.iter().position(|l| *l == last) {
            Some(place) if last != self.config.node => {
                let behind = (self.rank + count - place as u64) % count;
                suspect_after_us + (behind - 1) * suspect_after_us / 2
            }
            _ => suspect_after_us * (1 + self.rank),
        }
    }

    /// An election was futile. The next suspicion takes twice as long.
    pub(super) fn be_more_patient(&mut self, now: Micros) {
        self.backoff = (self.backoff + 1).min(BACKOFF_DOUBLINGS_MAX);
        self.backoff_until = now + BACKOFF_KEPT_US;
    }

    /// The first node in order may take over from a healthy leader; that is not a futile election.
    pub(super) fn was_deposed(&mut self, now: Micros, round: u64) {
        if self.config.leaders.first() != Some(&round::owner(round)) {
            self.be_more_patient(now);
        }
    }

    /// While this process did not run it could not hear the leader, so that time does not count as the leader's
    /// silence. But a process that is late repeatedly must not wait without a bound: one timeout per silence is
    /// forgiven.
    pub(super) fn forgive_own_lateness(&mut self, now: Micros) {
        let late_us = now.saturating_sub(self.probe_at);
        if late_us > self.config.timing.probe_interval_us {
            let left_us = self.config.timing.suspect_after_us - self.forgiven_us;
            let forgiven_us = late_us.min(left_us);
            self.forgiven_us += forgiven_us;
            self.heard_at = (self.heard_at + forgiven_us).min(now);
        }
    }

    pub(super) fn forget_futile_elections(&mut self, now: Micros) {
        while self.backoff > 0 && now >= self.backoff_until {
            self.backoff -= 1;
            self.backoff_until += BACKOFF_KEPT_US;
        }
    }
}
