//! Simulated replica clocks: wall clocks that are wrong, jump and are corrected, hosts that restart, individually or
//! all at once, slow answers, slow replicas and silence. The check is what matters to a client: a lock lives, in true
//! time, as long as it was set for.

use inband_kv::cluster_clock::{ClockAnswer, ClusterClock};
use inband_kv::limits::{CLOCKS_APART_MS_MAX, CLOCK_PERIOD_MS, CLOCK_SLEW, CLOCK_START_PERIOD_MS};

const MS: u64 = 1000;
const STEP_US: u64 = 5 * MS;
/// Wall clock at the beginning.
const EPOCH_MS: u64 = 1_700_000_000_000;
/// The largest error of a correct clock.
const RIGHT_MS: i64 = 200;
/// How early or late a lock may end, in addition to an error proportional to its length. The world moves in steps.
const BOUND_MS: u64 = CLOCKS_APART_MS_MAX + STEP_US / MS;
/// Longest time until a value is decided.
const DECIDED_MS_MAX: u64 = 1_500;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

struct Replica {
    /// `None` while it is down.
    clock: Option<ClusterClock>,
    rate_ppm: u64,
    wall_ahead_ms: i64,
    /// Number of entries applied.
    applied: usize,
    /// How late it applies entries.
    delay_us: u64,
    next_round_us: u64,
    /// Answers in flight, and when the last one arrives.
    round: Option<(u64, Vec<ClockAnswer>)>,
    has_tick: bool,
}

impl Replica {
    fn steady_us(&self, now_us: u64) -> u64 {
        now_us / 1_000_000 * self.rate_ppm + now_us % 1_000_000 * self.rate_ppm / 1_000_000
    }

    fn wall_ms(&self, now_us: u64) -> u64 {
        (EPOCH_MS + now_us / MS).saturating_add_signed(self.wall_ahead_ms)
    }
}

struct Value {
    decided_us: u64,
    proposed_us: u64,
    by: usize,
    stamp_ms: u64,
    /// Set if the value sets a lock.
    ttl_ms: Option<u64>,
}

struct Lock {
    proposed_us: u64,
    decided_us: u64,
    ttl_ms: u64,
    expire_at_ms: u64,
}

struct World {
    rng: Rng,
    now_us: u64,
    replicas: Vec<Replica>,
    under_way: Vec<Value>,
    /// Replicated time after each decided entry, and when it was decided.
    log: Vec<(u64, u64)>,
    time_ms: u64,
    locks: Vec<Lock>,
    ended: usize,
    /// Expiries before this could not be observed.
    down_until_us: u64,
}

impl World {
    fn new(seed: u64, replicas: usize) -> Self {
        let mut rng = Rng(seed * 0x9e37_79b9_7f4a_7c15 + 1);
        let replica = |rng: &mut Rng| Replica {
            clock: None,
            rate_ppm: 999_900 + rng.below(200),
            wall_ahead_ms: rng.below(2 * RIGHT_MS as u64) as i64 - RIGHT_MS,
            applied: 0,
            delay_us: 0,
            next_round_us: 0,
            round: None,
            has_tick: false,
        };
        let replicas = (0..replicas).map(|_| replica(&mut rng)).collect();
        Self {
            rng,
            now_us: 1_000_000_000,
            replicas,
            under_way: Vec::new(),
            log: Vec::new(),
            time_ms: 0,
            locks: Vec::new(),
            ended: 0,
            down_until_us: 0,
        }
    }

    fn start(&mut self, at: usize) {
        let (count, time_ms) = (self.replicas.len(), self.applied_ms(at));
        let replica = &mut self.replicas[at];
        let now_us = replica.steady_us(self.now_us);
        let mut clock = ClusterClock::new(now_us, count);
        clock.applied(now_us, time_ms);
        replica.clock = Some(clock);
        replica.next_round_us = self.now_us;
    }

    fn stop(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        (replica.clock, replica.round, replica.has_tick) = (None, None, false);
    }

    fn applied_ms(&self, at: usize) -> u64 {
        let applied = self.replicas[at].applied;
        applied.checked_sub(1).map_or(0, |last| self.log[last].0)
    }

    fn up(&self) -> usize {
        self.replicas.iter().filter(|r| r.clock.is_some()).count()
    }

    /// Makes the wall clocks of fewer than half of all replicas wrong.
    fn break_clocks(&mut self) {
        let wrong_max = (self.replicas.len() - 1) / 2;
        for at in 0..self.replicas.len() {
            self.replicas[at].wall_ahead_ms = self.rng.below(2 * RIGHT_MS as u64) as i64 - RIGHT_MS;
        }
        for _ in 0..wrong_max {
            let at = self.rng.below(self.replicas.len() as u64) as usize;
            let wrong = [
                6_000,
                1_500,
                -4_000,
                -86_400_000,
                500_000_000_000,
                -1_600_000_000_000,
            ];
            self.replicas[at].wall_ahead_ms = wrong[self.rng.below(6) as usize];
        }
    }

    fn ask(&mut self, at: usize) {
        let mut answers = Vec::new();
        let mut there_us = self.now_us;
        for other in 0..self.replicas.len() {
            let Some(clock) = self.replicas[other].clock.as_ref().filter(|_| other != at) else {
                continue;
            };
            let theirs = &self.replicas[other];
            let told = clock.tell(theirs.steady_us(self.now_us), theirs.wall_ms(self.now_us));
            let slow = if self.rng.one_in(10) {
                200 * MS
            } else {
                10 * MS
            };
            let (out_us, back_us) = (self.rng.below(slow), self.rng.below(slow));
            let own = &self.replicas[at];
            answers.push(ClockAnswer {
                told,
                asked_us: own.steady_us(self.now_us - out_us),
                answered_us: own.steady_us(self.now_us + back_us),
            });
            there_us = there_us.max(self.now_us + back_us);
        }
        self.replicas[at].round = Some((there_us, answers));
    }

    fn step(&mut self) {
        self.now_us += STEP_US;
        let now_us = self.now_us;
        for at in 0..self.replicas.len() {
            if self.replicas[at].clock.is_none() {
                continue;
            }
            let replica = &mut self.replicas[at];
            let steady_us = replica.steady_us(now_us);
            let wall_ms = replica.wall_ms(now_us);
            let clock = replica.clock.as_mut().unwrap();
            while let Some((time_ms, decided_us)) = self.log.get(replica.applied) {
                if decided_us + replica.delay_us > now_us {
                    break;
                }
                clock.applied(steady_us, *time_ms);
                replica.applied += 1;
            }
            if replica
                .round
                .as_ref()
                .is_some_and(|(there_us, _)| *there_us <= now_us)
            {
                let (_, answers) = replica.round.take().unwrap();
                clock.heard(steady_us, wall_ms, &answers);
                let period_ms = match clock.time_ms(steady_us) {
                    Some(_) => CLOCK_PERIOD_MS,
                    None => CLOCK_START_PERIOD_MS,
                };
                replica.next_round_us = now_us + period_ms * MS;
            }
            let is_due = replica.round.is_none() && replica.next_round_us <= now_us;
            // A key that is due to expire makes a replica propose a tick.
            let shows_ms = clock.time_ms(steady_us);
            let is_late = |lock: &Lock| shows_ms.is_some_and(|ms| ms >= lock.expire_at_ms);
            let wants_tick = !replica.has_tick && self.locks.iter().any(is_late);
            if is_due {
                self.ask(at);
            }
            if wants_tick {
                self.replicas[at].has_tick = true;
                self.propose(at, None);
            }
        }
        self.decide();
    }

    fn propose(&mut self, at: usize, ttl_ms: Option<u64>) {
        let replica = &self.replicas[at];
        let clock = replica.clock.as_ref();
        let Some(stamp_ms) = clock.and_then(|c| c.time_ms(replica.steady_us(self.now_us))) else {
            return;
        };
        let most_ms = if self.rng.one_in(20) {
            DECIDED_MS_MAX
        } else {
            20
        };
        let decided_us = self.now_us + (1 + self.rng.below(most_ms)) * MS;
        self.under_way.push(Value {
            decided_us,
            proposed_us: self.now_us,
            by: at,
            stamp_ms,
            ttl_ms,
        });
    }

    fn decide(&mut self) {
        let now_us = self.now_us;
        self.under_way.sort_by_key(|value| value.decided_us);
        let count = self
            .under_way
            .iter()
            .take_while(|v| v.decided_us <= now_us)
            .count();
        for value in self.under_way.drain(..count).collect::<Vec<_>>() {
            // Replicated time depends only on the log.
            self.time_ms = self.time_ms.max(value.stamp_ms);
            self.log.push((self.time_ms, now_us));
            match value.ttl_ms {
                None => self.replicas[value.by].has_tick = false,
                Some(ttl_ms) => self.locks.push(Lock {
                    proposed_us: value.proposed_us,
                    decided_us: now_us,
                    ttl_ms,
                    expire_at_ms: self.time_ms + ttl_ms,
                }),
            }
            self.expire();
        }
    }

    fn expire(&mut self) {
        let (time_ms, now_us, down_until_us) = (self.time_ms, self.now_us, self.down_until_us);
        let mut ended = 0;
        self.locks.retain(|lock| {
            if lock.expire_at_ms > time_ms {
                return true;
            }
            ended += 1;
            let slack_ms = BOUND_MS + lock.ttl_ms / CLOCK_SLEW + lock.ttl_ms / 5_000;
            let lived_ms = (now_us - lock.proposed_us) / MS;
            assert!(
                lived_ms + slack_ms >= lock.ttl_ms,
                "a lock of {} ms ended {} ms after it was asked for",
                lock.ttl_ms,
                lived_ms
            );
            let due_us = (lock.decided_us + lock.ttl_ms * MS).max(down_until_us);
            let late_ms = now_us.saturating_sub(due_us) / MS;
            // A tick that was proposed slightly too early may be in flight.
            assert!(
                late_ms <= slack_ms + 2 * DECIDED_MS_MAX,
                "a lock of {} ms ended {late_ms} ms late",
                lock.ttl_ms
            );
            false
        });
        self.ended += ended;
    }

    fn someone(&mut self) -> usize {
        self.rng.below(self.replicas.len() as u64) as usize
    }

    fn run_for(&mut self, ms: u64, is_busy: bool) {
        for _ in 0..ms * MS / STEP_US {
            self.step();
            if is_busy && self.rng.one_in(20) {
                let at = self.someone();
                let ttl_ms = [200, 1_000, 5_000, 30_000][self.rng.below(4) as usize];
                self.propose(at, Some(ttl_ms));
            }
        }
    }

    fn play(&mut self) {
        self.break_clocks();
        (0..self.replicas.len()).for_each(|at| self.start(at));
        self.run_for(500, false);
        for _ in 0..25 {
            match self.rng.below(6) {
                0 | 1 => self.break_clocks(),
                2 => {
                    let at = self.someone();
                    if self.up() > self.replicas.len() / 2 + 1 {
                        self.stop(at);
                    }
                }
                3 => {
                    let at = self.someone();
                    self.replicas[at].delay_us = [0, 30, 3_000][self.rng.below(3) as usize] * MS;
                }
                4 => self.run_for(self.silence_ms(), false),
                _ => {
                    if self.rng.one_in(4) {
                        self.full_stop();
                    }
                }
            }
            let busy_ms = 200 + self.rng.below(8_000);
            self.run_for(busy_ms, true);
            for at in 0..self.replicas.len() {
                if self.replicas[at].clock.is_none() && self.rng.one_in(2) {
                    self.start(at);
                }
            }
        }
        // All locks end.
        self.run_for(40_000, false);
        assert!(self.locks.is_empty());
        assert!(self.ended > 100, "{} locks", self.ended);
        self.time_is_right();
    }

    /// However long the clocks were wrong, time matches the clocks that agree.
    fn time_is_right(&mut self) {
        (0..self.replicas.len()).for_each(|at| self.propose(at, Some(1)));
        self.run_for(DECIDED_MS_MAX + 100, false);
        let off_ms = self.time_ms as i64 - (EPOCH_MS + self.now_us / MS) as i64;
        assert!(off_ms.abs() < 3_000, "time is {off_ms} ms off");
    }

    fn silence_ms(&self) -> u64 {
        [1_000, 60_000, 600_000][(self.now_us / 7 % 3) as usize]
    }

    /// A power failure of all hosts, for a while.
    fn full_stop(&mut self) {
        (0..self.replicas.len()).for_each(|at| self.stop(at));
        self.under_way.clear();
        self.down_until_us = u64::MAX;
        self.now_us += self.rng.below(7_200_000) * MS;
        self.break_clocks();
        for at in 0..self.replicas.len() {
            self.start(at);
            let until_next_ms = self.rng.below(800);
            self.run_for(until_next_ms, true);
        }
        self.down_until_us = self.now_us + 1_000 * MS;
    }
}

#[test]
fn locks_live_as_long_as_they_were_set_for() {
    for seed in 1..=400 {
        let replicas = [1, 3, 5][seed as usize % 3];
        let mut world = World::new(seed, replicas);
        let play = std::panic::AssertUnwindSafe(|| world.play());
        if let Err(panic) = std::panic::catch_unwind(play) {
            eprintln!("seed {seed}, {replicas} replicas");
            std::panic::resume_unwind(panic);
        }
    }
}
