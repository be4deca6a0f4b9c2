//! Logs that make no progress.

use std::time::{Duration, Instant};

use inband_program::published::{Movement, Waits};

#[test]
fn a_log_stands_while_what_was_waited_for_does_not_come() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut movement = Movement::default();
    let mut look = |seconds, next, waits| {
        let waits = if waits { Waits::Log } else { Waits::Nothing };
        movement.look(at(seconds), next, waits).as_secs()
    };
    assert_eq!(look(0, 7, false), 0);
    assert_eq!(look(10, 7, true), 0);
    assert_eq!(look(12, 7, true), 2);
    // Given up, then submitted again.
    assert_eq!(look(20, 7, false), 10);
    assert_eq!(look(21, 7, true), 11);
    assert_eq!(look(22, 8, true), 0, "it moves");
    assert_eq!(look(25, 8, false), 3);
    assert_eq!(look(60, 8, false), 0, "forgotten");
}

/// Only its own replica holds it up: a restart would discard decided values.
#[test]
fn a_paused_log_does_not_stand() {
    let start = Instant::now();
    let mut movement = Movement::default();
    let mut look = |seconds, waits| {
        let stands = movement.look(start + Duration::from_secs(seconds), 7, waits);
        stands.as_secs()
    };
    assert_eq!(look(0, Waits::Log), 0);
    assert_eq!(look(1, Waits::Replica), 0);
    assert_eq!(look(9, Waits::Replica), 0);
    // It resumes, and waits from then on.
    assert_eq!(look(10, Waits::Log), 0);
    assert_eq!(look(13, Waits::Log), 3);
}
