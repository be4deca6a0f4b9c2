//! The clock of a host: any offset, a rate of its own, jumps ahead, never back.

use inband_falcon::timing::Nanos;

use super::limits::CLOCK_RATE_PPM;
use crate::rng::Rng;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    /// What it shows at true time 0.
    offset_ns: Nanos,
    /// Parts per million of true time; the exact rate is 1 000 000.
    rate_ppm: u64,
}

impl Clock {
    /// One as it comes.
    pub fn random(rng: &mut Rng) -> Clock {
        Clock {
            offset_ns: rng.below(1 << 50),
            rate_ppm: 1_000_000 - CLOCK_RATE_PPM + rng.below(2 * CLOCK_RATE_PPM + 1),
        }
    }

    pub fn shows(&self, now: Nanos) -> Nanos {
        self.offset_ns + (u128::from(now) * u128::from(self.rate_ppm) / 1_000_000) as Nanos
    }

    /// The first true time at which it shows at least this.
    pub fn when(&self, shown: Nanos) -> Nanos {
        let passed = u128::from(shown.saturating_sub(self.offset_ns)) * 1_000_000;
        (passed.div_ceil(u128::from(self.rate_ppm))).min(u128::from(u64::MAX)) as Nanos
    }

    /// It shows so much more from now on.
    pub fn jump(&mut self, ahead_ns: Nanos) {
        self.offset_ns += ahead_ns;
    }
}
