//! Cluster time as one replica knows it. Sans-I/O.
//!
//! Replicated time is a function of the log alone: every value carries its proposer's *cluster time*, and
//! applying the value advances the store's time to it, never back. This module decides what a proposer
//! stamps. No single wall clock can move it:
//!
//! * Cluster time advances with the host's monotonic clock and is never behind the time of what was applied.
//! * At start a replica copies it from a replica that has it. If none has it (new cluster, full stop), it is the time
//!   on which the wall clocks of a majority of all replicas agree, within [`CLOCK_SKEW_MS_MAX`]. Until then the replica
//!   proposes nothing; if a majority answers and disagrees, it refuses commands. A replica that reaches no majority for
//!   [`CLOCK_LONE_MS`] uses its own wall clock, provided that it is at most [`CLOCK_LONE_STEP_MS_MAX`] ahead of the
//!   time of what was applied; otherwise it continues from there.
//! * Running replicas compare their cluster times. One that differs from the median by more than [`CLOCK_TOLERANCE_MS`]
//!   steps to it. Wall clocks that agree only slew it, by one part in [`CLOCK_SLEW`], so a time to live is at most that
//!   much too short or too long.
//!
//! Medians are lower medians: a lock that lives too long is safer than one that ends early.

use crate::limits::{
    CLOCK_LONE_MS, CLOCK_LONE_STEP_MS_MAX, CLOCK_ROUND_TRIP_MS_MAX, CLOCK_SKEW_MS_MAX, CLOCK_SLEW,
    CLOCK_TOLERANCE_MS,
};

/// A replica's clocks, as it reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// Cluster time, if it is known.
    pub time_ms: Option<u64>,
    pub wall_ms: u64,
}

/// Another replica's answer, with the times of the query and the answer by the local monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockAnswer {
    pub told: ClockReading,
    /// When the query was sent.
    pub asked_us: u64,
    /// When the answer arrived.
    pub answered_us: u64,
}

impl ClockAnswer {
    fn is_prompt(&self) -> bool {
        self.answered_us - self.asked_us <= CLOCK_ROUND_TRIP_MS_MAX * 1000
    }

    /// Returns what a remote clock that showed `ms` shows at `now_us`: it is assumed to have been read midway through
    /// the round trip.
    fn now_us(&self, ms: u64, now_us: u64) -> i64 {
        let middle_us = self.asked_us + (self.answered_us - self.asked_us) / 2;
        micros(ms) + now_us.saturating_sub(middle_us) as i64
    }
}

/// The state of the replicas' wall clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Walls {
    /// Fewer than a majority have answered.
    Unknown,
    /// A majority agrees on this time, as of now.
    Agree(i64),
    /// A majority has answered, and its closest clocks are this many milliseconds apart.
    Disagree(u64),
}

/// A running clock and its starting point.
#[derive(Debug, Clone, Copy)]
struct Running {
    at_us: u64,
    shows_us: i64,
    /// Remaining slew; negative if the clock is to be slowed down.
    slew_us: i64,
}

impl Running {
    fn slewed_us(&self, now_us: u64) -> i64 {
        let most_us = (now_us.saturating_sub(self.at_us) / CLOCK_SLEW) as i64;
        self.slew_us.clamp(-most_us, most_us)
    }

    fn shows_us(&self, now_us: u64) -> i64 {
        let passed_us = now_us.saturating_sub(self.at_us) as i64;
        self.shows_us + passed_us + self.slewed_us(now_us)
    }
}

#[derive(Debug)]
pub struct ClusterClock {
    /// `None` until cluster time is known.
    running: Option<Running>,
    started_us: u64,
    /// Number of replicas, this one included.
    replicas: usize,
    /// The latest applied time.
    applied_us: i64,
    walls: Walls,
    /// How far the local wall clock is ahead of the majority's.
    skew_us: Option<i64>,
    /// Number of other replicas that answered in the last round.
    heard: usize,
}

/// Saturates.
fn micros(ms: u64) -> i64 {
    i64::try_from(ms.saturating_mul(1000)).unwrap_or(i64::MAX / 4)
}

fn lower_median(mut of: Vec<i64>) -> Option<i64> {
    of.sort_unstable();
    of.get(of.len().saturating_sub(1) / 2).copied()
}

impl ClusterClock {
    /// `now_us` is the monotonic clock at the start; `replicas` includes this one.
    pub fn new(now_us: u64, replicas: usize) -> Self {
        Self {
            running: None,
            started_us: now_us,
            replicas,
            applied_us: 0,
            walls: Walls::Unknown,
            skew_us: None,
            heard: 0,
        }
    }

    /// Changes the number of replicas.
    pub fn set_replicas(&mut self, replicas: usize) {
        self.replicas = replicas;
    }

    /// Replicated time has advanced to `time_ms`.
    pub fn applied(&mut self, now_us: u64, time_ms: u64) {
        self.applied_us = self.applied_us.max(micros(time_ms));
        let applied_us = self.applied_us;
        if self
            .running
            .is_some_and(|r| r.shows_us(now_us) < applied_us)
        {
            self.set(now_us, applied_us);
        }
    }

    /// Cluster time; `None` if it is not known yet.
    pub fn time_ms(&self, now_us: u64) -> Option<u64> {
        let running = self.running.as_ref()?;
        Some((running.shows_us(now_us).max(self.applied_us) / 1000) as u64)
    }

    /// Returns the answer to another replica's query.
    pub fn tell(&self, now_us: u64, wall_ms: u64) -> ClockReading {
        ClockReading {
            time_ms: self.time_ms(now_us),
            wall_ms,
        }
    }

    /// Returns how far the local wall clock is ahead of the majority's, in milliseconds.
    pub fn skew_ms(&self) -> Option<i64> {
        self.skew_us.map(|us| us / 1000)
    }

    /// Returns the number of other replicas that answered in the last round.
    pub fn heard_of(&self) -> usize {
        self.heard
    }

    /// Returns why commands are refused at present, if they are.
    pub fn refusal(&self) -> Option<String> {
        match (self.running, self.walls) {
            (None, Walls::Disagree(ms)) => Some(format!(
                "CLOCK the replicas' clocks do not agree: those of a majority are {ms} ms apart or more, and the \
                 limit is {CLOCK_SKEW_MS_MAX} ms; set the clocks of their hosts; they then continue by themselves"
            )),
            _ => None,
        }
    }

    fn set(&mut self, now_us: u64, shows_us: i64) {
        let slew_us = self.running.map_or(0, |r| r.slew_us - r.slewed_us(now_us));
        self.running = Some(Running {
            at_us: now_us,
            shows_us: shows_us.max(self.applied_us),
            slew_us,
        });
    }

    fn majority(&self) -> usize {
        self.replicas / 2 + 1
    }

    /// A round of queries to all others has ended; the local wall clock shows `wall_ms`.
    pub fn heard(&mut self, now_us: u64, wall_ms: u64, answers: &[ClockAnswer]) {
        let prompt: Vec<&ClockAnswer> = answers.iter().filter(|heard| heard.is_prompt()).collect();
        self.heard = prompt.len();
        let others = prompt.iter().map(|h| h.now_us(h.told.wall_ms, now_us));
        self.walls = self.agreed(others.chain([micros(wall_ms)]).collect());
        self.skew_us = match self.walls {
            Walls::Agree(at_us) => Some(micros(wall_ms) - at_us),
            _ => None,
        };
        let told = |h: &&ClockAnswer| h.told.time_ms.map(|ms| h.now_us(ms, now_us));
        let times: Vec<i64> = prompt.iter().filter_map(told).collect();
        match self.running {
            None => self.try_start(now_us, wall_ms, times),
            Some(running) => self.discipline(now_us, running, times),
        }
    }

    /// Returns the time on which a majority of these wall clocks agrees.
    fn agreed(&self, mut walls: Vec<i64>) -> Walls {
        walls.sort_unstable();
        let majority = self.majority();
        let apart = |group: &&[i64]| group[group.len() - 1] - group[0];
        let Some(closest) = walls.windows(majority).min_by_key(apart) else {
            return Walls::Unknown;
        };
        let apart_us = apart(&closest);
        if apart_us > micros(CLOCK_SKEW_MS_MAX) {
            return Walls::Disagree(apart_us as u64 / 1000);
        }
        Walls::Agree(closest[(majority - 1) / 2])
    }

    fn try_start(&mut self, now_us: u64, wall_ms: u64, times: Vec<i64>) {
        let is_alone = now_us.saturating_sub(self.started_us) >= CLOCK_LONE_MS * 1000;
        let start_us = match (lower_median(times), self.walls) {
            (Some(time_us), _) => time_us,
            (None, Walls::Agree(at_us)) => at_us,
            (None, Walls::Unknown) if is_alone => {
                let ahead_us = micros(wall_ms) - self.applied_us;
                let is_likely = ahead_us <= micros(CLOCK_LONE_STEP_MS_MAX) || self.applied_us == 0;
                match is_likely {
                    true => micros(wall_ms),
                    false => self.applied_us,
                }
            }
            (None, _) => return,
        };
        self.set(now_us, start_us);
    }

    fn discipline(&mut self, now_us: u64, running: Running, mut times: Vec<i64>) {
        let shows_us = running.shows_us(now_us);
        times.push(shows_us);
        if times.len() >= self.majority() {
            let median_us = lower_median(times).unwrap_or(shows_us);
            let is_off = (median_us - shows_us).abs() > micros(CLOCK_TOLERANCE_MS);
            self.set(now_us, if is_off { median_us } else { shows_us });
        }
        if let (Walls::Agree(at_us), Some(running)) = (self.walls, &mut self.running) {
            *running = Running {
                at_us: now_us,
                shows_us: running.shows_us(now_us),
                slew_us: at_us - running.shows_us(now_us),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON_MS: u64 = 1_700_000_000_000;
    /// 2040.
    const FAR_MS: u64 = 2_208_988_800_000;

    fn heard(at_us: u64, time_ms: Option<u64>, wall_ms: u64) -> ClockAnswer {
        ClockAnswer {
            told: ClockReading { time_ms, wall_ms },
            asked_us: at_us,
            answered_us: at_us,
        }
    }

    #[test]
    fn one_replica_goes_by_its_clock_and_then_by_what_passes() {
        let mut clock = ClusterClock::new(0, 1);
        assert_eq!(clock.time_ms(0), None);
        clock.heard(0, NOON_MS, &[]);
        assert_eq!(clock.time_ms(5_000_000), Some(NOON_MS + 5_000));
        // Its wall clock jumps by a year: cluster time slews towards it and does not step.
        clock.heard(5_000_000, NOON_MS + (365 << 26), &[]);
        let time_ms = clock.time_ms(6_000_000).unwrap();
        assert_eq!(time_ms, NOON_MS + 6_000 + 1_000 / CLOCK_SLEW);
        // The wall clock is corrected.
        clock.heard(6_000_000, time_ms, &[]);
        assert_eq!(clock.time_ms(7_000_000), Some(time_ms + 1_000));
    }

    #[test]
    fn the_wrong_one_of_three_moves_nothing_at_boot() {
        for wrong_ms in [FAR_MS, NOON_MS + 6_000, NOON_MS - 86_400_000, 0] {
            // The wrong one and a right one reach each other first.
            let mut right = ClusterClock::new(0, 3);
            right.heard(0, NOON_MS, &[heard(0, None, wrong_ms)]);
            let mut wrong = ClusterClock::new(0, 3);
            wrong.heard(0, wrong_ms, &[heard(0, None, NOON_MS)]);
            assert_eq!((right.time_ms(0), wrong.time_ms(0)), (None, None));
            assert!(right.refusal().unwrap().contains("limit is 1000 ms"));
            // Then the third one answers.
            let third = heard(0, None, NOON_MS + 3);
            right.heard(0, NOON_MS, &[heard(0, None, wrong_ms), third]);
            assert_eq!(right.time_ms(0), Some(NOON_MS));
            assert_eq!(right.skew_ms(), Some(0));
            assert_eq!(right.refusal(), None);
            let told = heard(0, Some(NOON_MS), NOON_MS);
            wrong.heard(0, wrong_ms, &[told, third]);
            assert_eq!(wrong.time_ms(0), Some(NOON_MS));
            assert_eq!(wrong.skew_ms(), Some(wrong_ms as i64 - NOON_MS as i64));
        }
    }

    #[test]
    fn one_that_starts_takes_the_time_from_who_has_it() {
        let mut clock = ClusterClock::new(0, 3);
        let mut slow = heard(0, Some(FAR_MS), FAR_MS);
        slow.answered_us = 3_000_000;
        clock.heard(3_000_000, FAR_MS, &[slow]);
        assert_eq!(clock.time_ms(3_000_000), None, "too slow to say anything");
        let mut prompt = heard(4_000_000, Some(NOON_MS), NOON_MS);
        prompt.answered_us = 4_020_000;
        clock.heard(4_030_000, FAR_MS, &[prompt]);
        assert_eq!(clock.time_ms(4_030_000), Some(NOON_MS + 20));
    }

    #[test]
    fn who_hears_nobody_waits_and_then_believes_what_is_likely() {
        let start = |applied_ms, wall_ms| {
            let mut clock = ClusterClock::new(7, 3);
            clock.applied(7, applied_ms);
            clock.heard(7, wall_ms, &[]);
            assert_eq!(clock.time_ms(7), None);
            assert_eq!(clock.refusal(), None);
            let then_us = 7 + CLOCK_LONE_MS * 1000;
            clock.heard(then_us, wall_ms, &[]);
            clock.time_ms(then_us).unwrap()
        };
        assert_eq!(start(0, NOON_MS), NOON_MS);
        assert_eq!(start(NOON_MS - 86_400_000, NOON_MS), NOON_MS);
        assert_eq!(start(NOON_MS, NOON_MS - 5_000), NOON_MS);
        assert_eq!(start(NOON_MS, FAR_MS), NOON_MS);
    }

    #[test]
    fn it_is_never_behind_what_was_applied_nor_ahead_of_the_others() {
        let mut clock = ClusterClock::new(0, 3);
        clock.heard(0, NOON_MS, &[heard(0, None, NOON_MS)]);
        clock.applied(1_000_000, NOON_MS + 4_000);
        assert_eq!(clock.time_ms(1_000_000), Some(NOON_MS + 4_000));
        // Less time has passed for the others, so this one steps back, but not below what was applied.
        clock.applied(2_000_000, NOON_MS + 4_500);
        let others = [heard(2_000_000, Some(NOON_MS + 4_200), NOON_MS + 2_000); 2];
        clock.heard(2_000_000, NOON_MS + 2_000, &others);
        assert_eq!(clock.time_ms(2_000_000), Some(NOON_MS + 4_500));
        // From there it slowly loses its lead over the wall clocks.
        assert_eq!(
            clock.time_ms(2_000_000 + 64_000_000),
            Some(NOON_MS + 4_500 + 64_000 - 64_000 / CLOCK_SLEW)
        );
    }
}
