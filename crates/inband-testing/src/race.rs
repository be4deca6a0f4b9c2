//! Race tests: rounds in which several threads do conflicting things at once.

use std::time::{Duration, Instant};

/// Calls `round` with its number until it fails, or until `time` is over and more than `rounds_min` rounds have run. On
/// a busy machine this takes longer but tests no less. Returns the number of rounds.
pub fn rounds<E>(
    time: Duration,
    rounds_min: u64,
    mut round: impl FnMut(u64) -> Result<(), E>,
) -> Result<u64, E> {
    let began = Instant::now();
    let mut number = 0;
    while began.elapsed() <= time || number <= rounds_min {
        round(number)?;
        number += 1;
    }
    Ok(number)
}
