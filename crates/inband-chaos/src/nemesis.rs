//! Injects faults while clients use the cluster: one thread for hosts, one for links. The seed determines which faults
//! are chosen and when, but not how the cluster reacts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{anyhow, Result};
use inband_sim::Rng;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use super::fault_kind::FaultKind;
use super::history::{Fault, Recorder};
use super::subject::Subject;

/// Pauses between faults of hosts, and of links.
const HOSTS_PAUSE_MS: (u64, u64) = (100, 2_000);
const LINKS_PAUSE_MS: (u64, u64) = (50, 2_500);
/// How long a host is down or frozen.
pub const DOWN_MS: (u64, u64) = (100, 3_000);
/// How long to wait until the cluster can spare a host.
pub const SPARE_LIMIT: Duration = Duration::from_secs(10);
/// Link faults active at a time.
const LINK_FAULTS_MAX: usize = 3;
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub struct Nemesis {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Nemesis {
    /// Starts injecting faults of these kinds.
    pub fn start<S: Subject>(
        cluster: &Arc<S>,
        recorder: &Recorder,
        kinds: &[FaultKind],
        seed: u64,
    ) -> Nemesis {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (purpose, of_links) in [(1, true), (2, false)] {
            let kinds = kinds.iter().copied();
            let faults = FaultThread {
                cluster: Arc::clone(cluster),
                recorder: recorder.clone(),
                kinds: kinds
                    .filter(|kind| kind.is_of_links() == of_links)
                    .collect(),
                rng: Rng::new(seed, purpose),
                stop: Arc::clone(&stop),
            };
            if !faults.kinds.is_empty() {
                threads.push(thread::spawn(move || faults.run(of_links)));
            }
        }
        Nemesis { stop, threads }
    }

    /// Returns whether a thread has exited early, which means that the run cannot continue.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Stops the threads and ends all faults, except that hosts that are down stay down.
    pub fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads {
            let ended = thread.join().map_err(|_| anyhow!("the nemesis panicked"));
            ended??;
        }
        Ok(())
    }
}

/// One thread of the nemesis.
pub struct FaultThread<S> {
    pub cluster: Arc<S>,
    pub rng: Rng,
    pub recorder: Recorder,
    kinds: Vec<FaultKind>,
    stop: Arc<AtomicBool>,
}

impl<S: Subject> FaultThread<S> {
    fn run(self, of_links: bool) -> Result<()> {
        if of_links {
            self.inject_link_faults()
        } else {
            self.inject_host_faults()
        }
    }

    /// Returns whether the run is ending.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Sleeps for a random time; returns early when the run ends.
    pub fn pause(&mut self, (min_ms, max_ms): (u64, u64)) {
        let until = Instant::now() + Duration::from_millis(self.rng.between(min_ms, max_ms));
        while Instant::now() < until && !self.is_over() {
            thread::sleep(POLL_INTERVAL.min(until.saturating_duration_since(Instant::now())));
        }
    }

    /// Waits until the cluster can spare hosts. Returns false after [`SPARE_LIMIT`] or when the run ends.
    pub fn is_spare(&self, is_whole: impl Fn(&S) -> bool) -> bool {
        let deadline = Instant::now() + SPARE_LIMIT;
        while !is_whole(&self.cluster) {
            if Instant::now() >= deadline || self.is_over() {
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
        true
    }

    fn inject_link_faults(mut self) -> Result<()> {
        let clock = self.recorder.clock;
        let mut begin_ns = 0;
        while !self.is_over() {
            thread::sleep(POLL_INTERVAL);
            let now_ns = clock.now_ns();
            let mut has_changed = self.cluster.faults().end_due(now_ns, &self.recorder);
            if now_ns >= begin_ns {
                has_changed |= self.begin_link_fault(now_ns);
                let pause_ms = self.rng.between(LINKS_PAUSE_MS.0, LINKS_PAUSE_MS.1);
                begin_ns = now_ns + pause_ms * 1_000_000;
            }
            if has_changed {
                self.cluster.apply(&self.cluster.faults())?;
            }
        }
        let mut faults = self.cluster.faults();
        faults.end_all(clock.now_ns(), &self.recorder);
        self.cluster.apply(&faults)
    }

    /// Begins a fault unless too many are active or the whole cluster is off. Returns whether it did.
    fn begin_link_fault(&mut self, now_ns: u64) -> bool {
        let Some(&kind) = self.rng.pick(&self.kinds) else {
            return false;
        };
        let mut hosts = Vec::new();
        let names = self.cluster.with_lab(&mut |lab| {
            hosts = lab.hosts().iter().map(|h| h.name().to_owned()).collect();
            Ok(())
        });
        if names.is_err() || hosts.is_empty() {
            return false;
        }
        let important = self.cluster.important_hosts();
        let mut faults = self.cluster.faults();
        let has_room = faults.len() < LINK_FAULTS_MAX;
        if has_room {
            faults.begin(kind, &hosts, &important, now_ns, &mut self.rng);
        }
        has_room
    }

    fn inject_host_faults(mut self) -> Result<()> {
        loop {
            self.pause(HOSTS_PAUSE_MS);
            if self.is_over() {
                return Ok(());
            }
            let kind = *self.rng.pick(&self.kinds).unwrap_or(&FaultKind::Kill);
            let from_ns = self.recorder.clock.now_ns();
            let done = S::strike(&mut self, kind);
            // The cluster may refuse a change during faults: that is not a bug, so note it and continue.
            let (what, note) = match done {
                Ok(Some(what)) => (what, None),
                Ok(None) => continue,
                Err(error) => {
                    self.cluster.put_right()?;
                    (kind.name().to_owned(), Some(format!("{error:#}")))
                }
            };
            self.recorder.fault(Fault {
                fault: kind.name(),
                what,
                from_ns,
                to_ns: self.recorder.clock.now_ns(),
                note,
            });
        }
    }
}

/// Ignores errors: it fails only for a process that has exited by itself, and the check that all hosts are alive finds
/// that.
pub fn signal(pids: &[Pid], signal: Signal) {
    for pid in pids {
        let _ = kill(*pid, signal);
    }
}
