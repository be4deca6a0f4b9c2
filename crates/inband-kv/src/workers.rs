//! Threads that take part in a turn of a replica's loop, where there are cores for them.
//!
//! The replica's thread alone decides what happens, and in which order. Where many partitions or connections each have
//! something to do that concerns no other, it does that together with the workers and continues when all of it is done.
//! So every other part of a turn still runs alone, and no result depends on the number of workers.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{clock_gettime, ClockId};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// How many workers there are, and what they are woken for: that takes about as long as a few SETs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Number of threads besides the replica's; 0: it does everything itself.
    pub threads: usize,
    /// Fewest connections that are read, or written, together.
    pub connections_min: usize,
    /// Fewest bytes of decided values that are applied together.
    pub values_bytes_min: usize,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            threads: 0,
            connections_min: 8,
            values_bytes_min: 4096,
        }
    }
}

impl WorkerConfig {
    /// Workers that are woken whenever there is anything for two threads, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn eager(threads: usize) -> Self {
        Self {
            threads,
            connections_min: 2,
            values_bytes_min: 0,
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Workers {
    pub(crate) config: WorkerConfig,
    /// `None`: no threads.
    pool: Option<Arc<ThreadPool>>,
    figures: Arc<Figures>,
}

/// What was done together.
#[derive(Default)]
struct Figures {
    rounds: AtomicU64,
    /// CPU time of all threads, the replica's included.
    cpu_ns: AtomicU64,
}

impl Workers {
    pub(crate) fn start(config: WorkerConfig) -> io::Result<Self> {
        let threads = || {
            ThreadPoolBuilder::new()
                .num_threads(config.threads)
                .thread_name(|number| format!("ib-work{number}"))
                .build()
        };
        let pool = (config.threads > 0).then(threads).transpose();
        let pool = pool.map_err(|error| {
            io::Error::other(format!(
                "{} worker threads: {error}; lower host.limits.worker_threads",
                config.threads
            ))
        })?;
        Ok(Self {
            config,
            pool: pool.map(Arc::new),
            figures: Arc::default(),
        })
    }

    /// Returns whether there are any.
    pub(crate) fn is_any(&self) -> bool {
        self.pool.is_some()
    }

    /// How often they took part.
    pub(crate) fn rounds(&self) -> u64 {
        self.figures.rounds.load(Ordering::Relaxed)
    }

    /// CPU time of all threads for what was done together.
    pub(crate) fn cpu_us(&self) -> u64 {
        self.figures.cpu_ns.load(Ordering::Relaxed) / 1000
    }

    /// Calls `work` once with each item. Returns after the last call. A panic in one of them goes on in the caller.
    pub(crate) fn each<T: Send>(&self, items: &mut [T], work: impl Fn(&mut T) + Sync) {
        let Some(pool) = self.pool.as_ref().filter(|_| items.len() > 1) else {
            return items.iter_mut().for_each(work);
        };
        self.figures.rounds.fetch_add(1, Ordering::Relaxed);
        let helpers = self.config.threads.min(items.len() - 1);
        // One at a time: some take much longer than others.
        let left = Mutex::new(items.iter_mut());
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
        let take_part = || {
            let before_ns = thread_cpu_ns();
            while let Some(item) = next() {
                work(item);
            }
            let used_ns = thread_cpu_ns().saturating_sub(before_ns);
            self.figures.cpu_ns.fetch_add(used_ns, Ordering::Relaxed);
        };
        pool.in_place_scope(|scope| {
            (0..helpers).for_each(|_| scope.spawn(|_| take_part()));
            take_part();
        });
    }
}

/// Returns how long a round takes in which each thread has nothing to do, after all of them have slept: the median of
/// `rounds`. For benchmarks.
pub fn empty_round(threads: usize, rounds: usize) -> io::Result<Duration> {
    let workers = Workers::start(WorkerConfig {
        threads,
        ..WorkerConfig::default()
    })?;
    let mut items = vec![(); threads + 1];
    let mut lengths: Vec<Duration> = (0..rounds.max(1))
        .map(|_| {
            thread::sleep(Duration::from_millis(1));
            let begun = Instant::now();
            workers.each(&mut items, |_| ());
            begun.elapsed()
        })
        .collect();
    lengths.sort_unstable();
    Ok(lengths[lengths.len() / 2])
}

/// CPU time of the calling thread so far.
fn thread_cpu_ns() -> u64 {
    // It cannot fail: the clock exists wherever there are threads.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::panic::{catch_unwind, AssertUnwindSafe};
    use std::sync::Barrier;

    use super::*;

    fn workers(threads: usize) -> Workers {
        Workers::start(WorkerConfig::eager(threads)).expect("starts")
    }

    #[test]
    fn each_item_is_worked_on_once() {
        for threads in [0, 1, 3] {
            let workers = workers(threads);
            for count in [0, 1, 2, 100] {
                let mut items = vec![0; count];
                workers.each(&mut items, |item| *item += 1);
                assert_eq!(items, vec![1; count]);
            }
        }
    }

    /// All of them meet, so they work at the same time; the caller is one of them.
    #[test]
    fn workers_work_at_the_same_time() {
        let meeting = Barrier::new(3);
        let mut items = vec![None; 3];
        workers(2).each(&mut items, |item| {
            meeting.wait();
            *item = Some(thread::current().id());
        });
        let threads: HashSet<_> = items.into_iter().flatten().collect();
        assert!(threads.len() == 3 && threads.contains(&thread::current().id()));
    }

    #[test]
    fn a_panic_goes_on_in_the_caller() {
        for threads in [0, 2] {
            let workers = workers(threads);
            let run = || workers.each(&mut [1, 2, 3, 4], |item| assert_ne!(*item, 3));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            let mut items = [0; 2];
            workers.each(&mut items, |item| *item = 1);
            assert_eq!(items, [1; 2], "the others go on");
        }
    }

    #[test]
    fn a_round_takes_some_time() {
        assert!(empty_round(1, 3).expect("it runs") > Duration::ZERO);
    }
}
