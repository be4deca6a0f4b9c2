//! The clock of a host: it may jump forward or stop, but never goes back.

use inband_paxos::timing::Micros;

/// A new clock shows simulated time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock {
    ahead_us: Micros,
    behind_us: Micros,
    stands_since: Option<Micros>,
}

impl Clock {
    /// Returns the clock's reading at this simulated time.
    pub fn shows(&self, now: Micros) -> Micros {
        self.stands_since.unwrap_or(now) + self.ahead_us - self.behind_us
    }

    /// Returns the simulated time at which the clock will show this.
    pub fn when(&self, shown: Micros) -> Micros {
        shown
            .saturating_add(self.behind_us)
            .saturating_sub(self.ahead_us)
    }

    pub fn stands(&self) -> bool {
        self.stands_since.is_some()
    }

    pub fn jump(&mut self, by_us: Micros) {
        self.ahead_us += by_us;
    }

    /// Stops the clock.
    pub fn stand(&mut self, now: Micros) {
        self.stands_since.get_or_insert(now);
    }

    /// Restarts the clock from where it stopped. Returns how long it was stopped.
    pub fn go_on(&mut self, now: Micros) -> Micros {
        let stood_us = self.stands_since.take().map_or(0, |since| now - since);
        self.behind_us += stood_us;
        stood_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_jumps_stands_and_never_goes_back() {
        let mut clock = Clock::default();
        assert_eq!(clock.shows(100), 100);
        clock.jump(50);
        assert_eq!((clock.shows(100), clock.when(150)), (150, 100));
        clock.stand(110);
        assert_eq!(clock.shows(200), 160);
        assert_eq!(clock.go_on(210), 100);
        assert_eq!((clock.shows(210), clock.when(170)), (160, 220));
    }
}
