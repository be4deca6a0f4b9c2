//! Seeds of a world of its own (FLAIR's, Falcon's), played for a test.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use inband_sim::Seeds;

/// Threads that play them.
const JOBS: usize = 2;

/// The reports of the first `count` seeds, in order; no rule may be broken in any. Long runs are stopped by the first
/// violation if the environment says so (scripts/mutants). `judge`: a report's seed, and whether a rule was broken.
/// `again`: how a seed X is played again.
pub fn survive<R: Display + Send>(
    count: u64,
    play: impl Fn(u64) -> R + Sync,
    judge: impl Fn(&R) -> (u64, bool),
    again: &str,
) -> Vec<R> {
    let stops = std::env::var_os("INBAND_SIM_STOP_AT_VIOLATION").is_some();
    let is_over = AtomicBool::new(false);
    let seeds = Seeds {
        first: 1,
        count: Some(count),
        jobs: JOBS,
    };
    let mut reports = Vec::new();
    seeds.play(
        play,
        || is_over.load(Ordering::Relaxed),
        |report| {
            if judge(&report).1 && stops {
                is_over.store(true, Ordering::Relaxed);
            }
            reports.push(report);
        },
    );
    reports.sort_by_key(|report| judge(report).0);
    let mut failed = 0;
    for report in reports.iter().filter(|report| judge(report).1) {
        println!("{report}");
        failed += 1;
    }
    assert_eq!(failed, 0, "violations; {again} plays one again");
    reports
}
