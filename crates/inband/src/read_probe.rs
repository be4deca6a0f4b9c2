//! A linearizable read of every log for its own sake: it shows that this host reaches a majority, and up to which
//! instance a store must have applied to be current.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use inband_paxos::log::{Burst, ReadTicket, ReplicatedLog};

/// Shared by the threads that ask and the node's thread.
#[derive(Default)]
pub struct ReadProbe {
    /// Checked in every poll, so that an idle probe costs one load.
    is_wanted: AtomicBool,
    turn: Mutex<Turn>,
    ended: Condvar,
}

#[derive(Default)]
struct Turn {
    /// Number of the last probe that was asked for, and of the last that has begun. The first is 1.
    asked: u64,
    begun: u64,
    /// One per log, while a probe is under way.
    reads: Vec<Read>,
    /// One of them has failed.
    has_failed: bool,
    /// Number of the last probe that has ended, and the instance confirmed in each log; `None` if one failed.
    last: (u64, Option<Vec<u64>>),
}

#[derive(Clone, Copy)]
enum Read {
    Waits(ReadTicket),
    Confirmed(u64),
}

impl ReadProbe {
    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the node's thread read all logs, from now on, and waits for the result. Returns the instances that a store
    /// must have applied; `None` if no majority has answered by `deadline`. `wake` wakes the node's thread.
    pub fn read(&self, deadline: Instant, wake: impl FnOnce()) -> Option<Vec<u64>> {
        let number = {
            let mut turn = self.turn();
            turn.asked += 1;
            self.is_wanted.store(true, Ordering::Release);
            turn.asked
        };
        wake();
        let limit = deadline.saturating_duration_since(Instant::now());
        let waits = |turn: &mut Turn| turn.last.0 < number;
        let (turn, _) = self
            .ended
            .wait_timeout_while(self.turn(), limit, waits)
            .unwrap_or_else(PoisonError::into_inner);
        match &turn.last {
            (last, instances) if *last >= number => instances.clone(),
            _ => None,
        }
    }

    /// Called by the node's thread before each poll.
    pub fn begin(&self, log: &mut impl ReplicatedLog) {
        if !self.is_wanted.load(Ordering::Acquire) {
            return;
        }
        let mut turn = self.turn();
        if turn.reads.is_empty() && turn.begun < turn.asked {
            turn.begun = turn.asked;
            turn.reads = (0..log.partitions())
                .map(|partition| Read::Waits(log.confirm_read(partition)))
                .collect();
        }
    }

    /// Called after each poll: takes its own reads out of the bursts, whose owner does not know them.
    pub fn end(&self, bursts: &mut [Burst]) {
        if !self.is_wanted.load(Ordering::Acquire) {
            return;
        }
        let mut turn = self.turn();
        let mut has_failed = false;
        for (read, burst) in turn.reads.iter_mut().zip(bursts) {
            let Read::Waits(own) = *read else {
                continue;
            };
            burst.confirmed.retain(|(ticket, instance)| {
                if *ticket == own {
                    *read = Read::Confirmed(*instance);
                }
                *ticket != own
            });
            burst.reads_failed.retain(|(ticket, _)| {
                if *ticket == own {
                    // Ended as well; its instance is not used.
                    *read = Read::Confirmed(0);
                    has_failed = true;
                }
                *ticket != own
            });
        }
        turn.has_failed |= has_failed;
        let instances: Option<Vec<u64>> = turn
            .reads
            .iter()
            .map(|read| match read {
                Read::Confirmed(instance) => Some(*instance),
                Read::Waits(_) => None,
            })
            .collect();
        let Some(instances) = instances.filter(|instances| !instances.is_empty()) else {
            return;
        };
        turn.reads.clear();
        let succeeded = !std::mem::take(&mut turn.has_failed);
        turn.last = (turn.begun, succeeded.then_some(instances));
        self.is_wanted
            .store(turn.begun < turn.asked, Ordering::Release);
        self.ended.notify_all();
    }
}
