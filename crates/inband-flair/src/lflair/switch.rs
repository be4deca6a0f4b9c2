//! What a leader knows of one switch.

use crate::dataplane::wire::Header;

use crate::timing::Nanos;

/// A time that a switch has told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SwitchTime {
    /// By the switch's clock.
    pub time_ns: u64,
    /// When it was heard here: later than it was told.
    pub at: Nanos,
}

/// See the module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Switch {
    incarnation: Option<u64>,
    /// The highest session that this incarnation is known to have.
    session: u64,
    heard_at: Option<Nanos>,
    told: Option<SwitchTime>,
    /// By this host's clock: it may serve a session of before, of whichever leader, until then.
    may_serve_until: Nanos,
}

impl Switch {
    /// Nothing is known of it, but that it may serve until then.
    pub fn since(may_serve_until: Nanos) -> Switch {
        Switch {
            may_serve_until,
            ..Switch::default()
        }
    }

    /// It has answered. Is this the first answer of its incarnation?
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

    /// It has this session, which gets no heartbeats there, so it serves none before it.
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
