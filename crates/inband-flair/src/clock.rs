//! Time for the drivers. State machines are given it.

use nix::time::{clock_gettime, ClockId};

/// Nanoseconds of a clock that goes on while the machine sleeps: a switch must not serve on after that.
pub fn boot_time_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux since 2.6.39 has it");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}
