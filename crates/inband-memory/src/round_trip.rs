//! Round-trip times: when a request is retransmitted (RFC 6298), and how long a silence is tolerated.

use crate::epoch::{Nanos, MS};

/// Bounds of the retransmission timeout.
const RESEND_MIN_NS: Nanos = MS;
const RESEND_MAX_NS: Nanos = 200 * MS;
/// The timeout before the first round trip has been measured.
const RESEND_FIRST_NS: Nanos = 5 * MS;
/// How often the timeout can double.
const DOUBLED_MAX: u32 = 10;
/// The longest silence that ended with an answer is halved after each such interval.
const SILENCE_HALVES_NS: Nanos = 5_000 * MS;
/// A switch is suspected after this many times the longest silence.
const SILENCES: Nanos = 3;

/// Round-trip estimator. See the [module](self).
#[derive(Debug, Clone, Copy, Default)]
pub struct RoundTrip {
    srtt_ns: Nanos,
    rttvar_ns: Nanos,
    /// The estimates are of another path, and are used until this one has a sample.
    is_of_other_way: bool,
    /// Timeouts since the last sample: each doubles the next one, for all requests.
    doubled: u32,
    /// A request that times out before then was sent before the last doubling, and does not double the timeout again.
    doubled_until: Nanos,
    silence_ns: Nanos,
    silence_at: Nanos,
}

impl RoundTrip {
    /// Returns the smoothed round-trip time; 0 before the first sample.
    pub fn srtt_ns(&self) -> Nanos {
        self.srtt_ns
    }

    /// Records the round trip of a request that was sent once.
    pub fn measured(&mut self, rtt_ns: Nanos) {
        self.doubled = 0;
        let is_first = std::mem::take(&mut self.is_of_other_way) || self.srtt_ns == 0;
        if is_first {
            (self.srtt_ns, self.rttvar_ns) = (rtt_ns.max(1), rtt_ns / 2);
        } else {
            let off = self.srtt_ns.abs_diff(rtt_ns);
            self.rttvar_ns = (3 * self.rttvar_ns + off) / 4;
            self.srtt_ns = ((7 * self.srtt_ns + rtt_ns) / 8).max(1);
        }
    }

    /// Records that a request was not answered in time.
    pub fn timed_out(&mut self, now: Nanos) {
        if now >= self.doubled_until {
            self.doubled = (self.doubled + 1).min(DOUBLED_MAX);
            self.doubled_until = now + self.resend_after(1);
        }
    }

    /// Starts over for a new path to the switch.
    pub fn other_way(&mut self) {
        (self.doubled, self.doubled_until) = (0, 0);
        self.is_of_other_way = true;
    }

    /// Returns the retransmission timeout of a request that has been sent `sends` times.
    pub fn resend_after(&self, sends: u32) -> Nanos {
        let once = match self.srtt_ns {
            0 => RESEND_FIRST_NS,
            // Equal round trips have no deviation, and yet the next one may be longer.
            srtt => (srtt + (4 * self.rttvar_ns).max(srtt)).clamp(RESEND_MIN_NS, RESEND_MAX_NS),
        };
        let doubled = self.doubled.max(sends.saturating_sub(1)).min(DOUBLED_MAX);
        (once << doubled).min(RESEND_MAX_NS)
    }

    fn silence(&self, now: Nanos) -> Nanos {
        let halved = now.saturating_sub(self.silence_at) / SILENCE_HALVES_NS;
        self.silence_ns >> halved.min(63)
    }

    /// Records a silence of a working switch: it, this client or a server was waiting for a CPU.
    pub fn was_silent(&mut self, now: Nanos, silence_ns: Nanos) {
        if silence_ns >= self.silence(now) {
            (self.silence_ns, self.silence_at) = (silence_ns, now);
        }
    }

    /// Returns after how much silence a switch is suspected to have failed.
    pub fn suspect_after(&self, now: Nanos, min_ns: Nanos, max_ns: Nanos) -> Nanos {
        (SILENCES * self.silence(now)).clamp(min_ns, max_ns.max(min_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_is_doubled_once_for_all_requests_until_there_is_a_sample() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.resend_after(1), RESEND_FIRST_NS);
        trip.measured(4 * MS);
        assert_eq!(trip.resend_after(1), 12 * MS);
        for _ in 0..5 {
            trip.timed_out(20 * MS); // of requests sent together
        }
        assert_eq!(trip.resend_after(1), 24 * MS);
        trip.timed_out(43 * MS);
        assert_eq!(trip.resend_after(1), 24 * MS);
        trip.timed_out(44 * MS);
        assert_eq!(trip.resend_after(1), 48 * MS);
        assert_eq!(trip.resend_after(5), 192 * MS);
        trip.measured(4 * MS);
        assert!(trip.resend_after(1) < 12 * MS);
        for at in 1..100 {
            trip.timed_out(at * 1_000 * MS);
        }
        assert_eq!(trip.resend_after(1), RESEND_MAX_NS);
        trip.other_way();
        assert!(trip.resend_after(1) < 12 * MS);
    }

    #[test]
    fn the_first_round_trip_of_another_way_replaces_those_of_the_last_one() {
        let mut trip = RoundTrip::default();
        trip.other_way();
        trip.measured(40 * MS);
        trip.measured(40 * MS);
        trip.other_way();
        assert!(trip.resend_after(1) > 80 * MS, "until there is a sample");
        trip.measured(MS);
        assert_eq!((trip.srtt_ns(), trip.resend_after(1)), (MS, 3 * MS));
        trip.measured(9 * MS);
        assert_eq!(trip.srtt_ns(), 2 * MS);
    }

    #[test]
    fn a_long_silence_is_remembered_for_a_while() {
        let mut trip = RoundTrip::default();
        let after = |trip: &RoundTrip, now| trip.suspect_after(now, 10 * MS, 100 * MS) / MS;
        assert_eq!(after(&trip, 0), 10);
        trip.was_silent(MS, 20 * MS);
        trip.was_silent(2 * MS, MS);
        assert_eq!(after(&trip, 2 * MS), 60);
        assert_eq!(after(&trip, 2 * MS + SILENCE_HALVES_NS), 30);
        assert_eq!(after(&trip, 2 * MS + 2 * SILENCE_HALVES_NS), 15);
        assert_eq!(after(&trip, 2 * MS + 3 * SILENCE_HALVES_NS), 10);
        trip.was_silent(3 * MS, 70 * MS);
        assert_eq!(after(&trip, 3 * MS), 100);
    }
}
