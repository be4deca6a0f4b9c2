//! The clock of the drivers.

use std::time::Instant;

use crate::timing::Nanos;

/// Nanoseconds since its start.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Returns a clock that starts at 0 now.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn now(&self) -> Nanos {
        self.0.elapsed().as_nanos() as Nanos
    }
}
