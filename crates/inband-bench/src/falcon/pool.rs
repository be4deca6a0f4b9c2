//! A lower bound for this machine: the same jobs run by threads of one process that wait on a lock. It involves no
//! packets and no other process, so no scheduler whose threads sleep can be faster here.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use inband_flair::clock::boot_time_ns;

use super::arrivals::JobTimes;
use super::host::{sleep_until, TIMER_SLACK_NS};
use super::testbed::{delays_of, Delays, Load};

/// Delay before the first job.
const START_NS: u64 = 20_000_000;

#[derive(Default)]
struct Queue {
    /// When each task was submitted, in nanoseconds.
    tasks: VecDeque<u64>,
    is_over: bool,
    /// From submission to start, for the tasks that count.
    delays_ns: Vec<u64>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    has_more: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One executor: runs one task after another.
    fn serve(&self, sleep: Duration, counted_from_ns: u64) {
        let mut queue = self.lock();
        loop {
            if let Some(submitted_ns) = queue.tasks.pop_front() {
                drop(queue);
                let begun_ns = boot_time_ns();
                thread::sleep(sleep);
                queue = self.lock();
                if submitted_ns >= counted_from_ns {
                    queue.delays_ns.push(begun_ns.saturating_sub(submitted_ns));
                }
            } else if queue.is_over {
                return;
            } else {
                let waited = self.has_more.wait(queue);
                queue = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn submit(&self, tasks: u64) {
        let now_ns = boot_time_ns();
        for _ in 0..tasks {
            self.lock().tasks.push_back(now_ns);
            self.has_more.notify_one();
        }
    }
}

/// Measures the delays of this load.
pub fn measure(load: &Load) -> Result<Delays> {
    nix::sys::prctl::set_timerslack(TIMER_SLACK_NS)?;
    let shared = Shared::default();
    let begin_ns = boot_time_ns() + START_NS;
    let counted_from_ns = begin_ns + load.warm_up.as_nanos() as u64;
    let end_ns = counted_from_ns + load.duration.as_nanos() as u64;
    let times = JobTimes::new(load.arrivals, load.jobs_per_s, begin_ns, load.seed);
    thread::scope(|scope| {
        for _ in 0..load.executors {
            scope.spawn(|| shared.serve(load.sleep, counted_from_ns));
        }
        for (due_ns, tasks) in times.jobs(load.tasks_per_job, end_ns) {
            sleep_until(due_ns);
            shared.submit(tasks);
        }
        shared.lock().is_over = true;
        shared.has_more.notify_all();
    });
    let delays_ns = std::mem::take(&mut shared.lock().delays_ns);
    Ok(delays_of(delays_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::falcon::arrivals::Arrivals;
    use inband_paxos::config::Dataplane;

    #[test]
    fn every_task_after_the_warm_up_counts() {
        let ms = Duration::from_millis;
        let load = Load {
            executors: 3,
            workers: 1,
            clients: 1,
            jobs_per_s: 200.0,
            tasks_per_job: 2.5,
            tasks_per_submit: 1,
            sleep: ms(1),
            arrivals: Arrivals::Periodic,
            seed: 1,
            warm_up: ms(20),
            duration: ms(40),
            steps: false,
            dataplane: Dataplane::Udp,
            timers: false,
        };
        let delays = measure(&load).expect("threads");
        // Jobs at 0, 5, ... 55 ms; those from 20 ms on count.
        assert_eq!(delays.len(), 20);
    }
}
