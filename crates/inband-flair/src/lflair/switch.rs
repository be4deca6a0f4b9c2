//! The leader's knowledge of one switch.

use crate::dataplane::wire::Header;

use crate::timing::Nanos;

/// A time reported by a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SwitchTime {
    /// By the switch's clock.
    pub time_ns: u64,
    /// When this host received it, which is later than when it was sent.
    pub at: Nanos,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Switch {
    incarnation: Option<u64>,
    /// The highest session that this incarnation is known to have.
    session: u64,
    heard_at: Option<Nanos>,
    told: Option<SwitchTime>,
    /// By this host's clock: until then, it may serve an earlier session, of any leader.
    may_serve_until: Nanos,
}

impl Switch {
    /// Returns a switch about which nothing is known, except that it may serve until then.
    pub fn since(may_serve_until: Nanos) -> Switch {
        Switch {
            may_serve_until,
            ..Switch::default()
        }
    }

    /// Notes an answer. Returns whether it is the first from this incarnation.
    pub fn hear(&mut self, now: Nanos, header: &Header) -> bool {
        let incarnation = Some(header.incarnation());
        let is_first = self.incarnation != incarnation;
        if is_first {
            self.incarnation = incarnation;
            (self.session, self.told) = (0, None);
        }
        self.heard_at = Some(now);
        self.session = self.session.max(header.session);
        let time_ns = header.switch_time_ns();
        if self.told.is_none_or(|told| time_ns > told.time_ns) {
            self.told = Some(SwitchTime { time_ns, at: now });
        }
        is_first
    }

    pub fn incarnation(&self) -> Option<u64> {
        self.incarnation
    }

    pub fn heard_at(&self) -> Option<Nanos> {
        self.heard_at
    }

    pub fn told(&self) -> Option<SwitchTime> {
        self.told
    }

    /// Returns whether it has this session. The session gets no heartbeats there, so the switch serves neither it nor
    /// any earlier one.
    pub fn is_mute_for(&self, session: u64) -> bool {
        self.session == session
    }

    pub fn may_serve_until(&self) -> Nanos {
        self.may_serve_until
    }

    /// A heartbeat was sent that lets it serve until then, by this host's clock at the latest.
    pub fn renewed(&mut self, until: Nanos) {
        self.may_serve_until = self.may_serve_until.max(until);
    }
}
