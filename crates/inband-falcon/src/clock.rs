//! The clock of the drivers.

use std::time::Instant;

use crate::timing::Nanos;

/// Nanoseconds since it was made.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// It is 0 now.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.0.elapsed().as_nanos() as Nanos
    }
}
