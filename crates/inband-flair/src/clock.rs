//! Time for the drivers. The state machines take it as an argument.

use nix::time::{clock_gettime, ClockId};

/// Nanoseconds of a clock that keeps running during suspend: after a suspend, a switch must not serve on an old
/// session.
pub fn boot_time_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux since 2.6.39 has it");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}
