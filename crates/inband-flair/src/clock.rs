//! Time and chance for the drivers. State machines are given both.

use std::fs::File;
use std::io::{self, Read};

use nix::time::{clock_gettime, ClockId};

/// Nanoseconds of a clock that goes on while the machine sleeps: a switch must not serve on after that.
pub fn boot_time_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux since 2.6.39 has it");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// A number that no other start has.
pub fn draw() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes).max(1))
}
