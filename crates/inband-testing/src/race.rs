//! Races: rounds in which several threads do at once what must not go wrong.

use std::time::{Duration, Instant};

/// Rounds of `round`, which gets its number, until it fails, or until `time` is over and there were more than
/// `rounds_min`: on a busy machine a watch takes longer, but shows no less. Returns how many there were.
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
