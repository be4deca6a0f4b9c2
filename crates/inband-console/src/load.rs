//! Load for the charts: clients that read and write at a chosen rate, one request at a time each.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::feed::{now_ms, Event, Feed};
use crate::keys::{Session, Store};

/// Length of a bucket of the charts.
pub const BUCKET_MS: u64 = 50;
/// How often complete buckets are sent to the pages.
const SEND_INTERVAL: Duration = Duration::from_millis(200);
/// Connections of the load. They use the addresses in turn.
const CLIENTS: u64 = 6;
/// The most that the page may ask for.
pub const OPS_PER_S_MAX: u64 = 100_000;
/// A clock that differs by more than this from the last bucket has been set.
const STEP_MS: u64 = 10_000;
/// The load stops when no page has been open for this long.
const WITHOUT_PAGE: Duration = Duration::from_secs(60);
/// Keys that the load uses: `console:0` and so on.
const KEYS: u64 = 64;
/// Wait after a failure, so that a dead host is not asked all the time.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// What the requests that ended within one bucket's time were like.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Bucket {
    /// Its start, since 1970.
    pub at_ms: u64,
    pub ended: u64,
    pub failed: u64,
    pub p50_us: Option<u64>,
    pub max_us: Option<u64>,
}

/// The load that a page asks for; 0 operations per second stop it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    pub ops_per_s: u64,
    pub reads_percent: u64,
}

/// Latencies of the bucket that is being filled.
#[derive(Debug, Default)]
struct Filling {
    at_ms: u64,
    latencies_us: Vec<u64>,
    failed: u64,
    complete: Vec<Bucket>,
}

impl Filling {
    /// Completes the buckets before the one of this time.
    fn advance(&mut self, now_ms: u64) {
        let start_ms = now_ms - now_ms % BUCKET_MS;
        // Also at the beginning. After a step of the clock or a suspension there is nothing to fill in.
        if start_ms.abs_diff(self.at_ms) > STEP_MS {
            *self = Filling {
                at_ms: start_ms,
                complete: std::mem::take(&mut self.complete),
                ..Filling::default()
            };
        }
        while self.at_ms < start_ms {
            self.latencies_us.sort_unstable();
            let ended = self.latencies_us.len();
            self.complete.push(Bucket {
                at_ms: self.at_ms,
                ended: ended as u64,
                failed: std::mem::take(&mut self.failed),
                p50_us: self.latencies_us.get(ended / 2).copied(),
                max_us: self.latencies_us.last().copied(),
            });
            self.latencies_us.clear();
            self.at_ms += BUCKET_MS;
        }
    }
}

#[derive(Debug)]
pub struct Load {
    cluster: Arc<Cluster>,
    feed: Arc<Feed>,
    /// Of the present load; clients of an earlier one end.
    generation: AtomicU64,
    filling: Mutex<Filling>,
}

impl Load {
    pub fn new(cluster: Arc<Cluster>, feed: Arc<Feed>) -> Load {
        Load {
            cluster,
            feed,
            generation: AtomicU64::new(0),
            filling: Mutex::default(),
        }
    }

    /// Replaces the load by this one.
    pub fn set(self: &Arc<Load>, rate: Rate) -> Result<()> {
        let Rate {
            ops_per_s,
            reads_percent,
        } = rate;
        ensure!(
            ops_per_s <= OPS_PER_S_MAX,
            "{ops_per_s} operations per second; at most {OPS_PER_S_MAX} are allowed"
        );
        ensure!(
            reads_percent <= 100,
            "{reads_percent} % reads; at most 100 are possible"
        );
        if ops_per_s == 0 {
            self.generation.fetch_add(1, Relaxed);
            return Ok(());
        }
        let store = Store::of(&self.cluster.status()?).with_context(|| {
            let system = &self.cluster.system;
            format!("`inband up {system}` has no store to read and write")
        })?;
        let generation = self.generation.fetch_add(1, Relaxed) + 1;
        *self.filling.lock().unwrap_or_else(PoisonError::into_inner) = Filling::default();
        for client in 0..CLIENTS {
            let (load, store) = (Arc::clone(self), store.clone());
            let run = move || load.run(client, generation, rate, &store);
            thread::Builder::new()
                .name(format!("load/{client}"))
                .spawn(run)?;
        }
        let load = Arc::clone(self);
        let send = move || {
            let mut seen = Instant::now();
            while load.is_present(generation) {
                thread::sleep(SEND_INTERVAL);
                load.send();
                if load.feed.has_pages() {
                    seen = Instant::now();
                } else if seen.elapsed() > WITHOUT_PAGE {
                    load.stop(generation);
                }
            }
        };
        thread::Builder::new().name("buckets".into()).spawn(send)?;
        Ok(())
    }

    /// Ends the load of this generation, if it is still the present one.
    fn stop(&self, generation: u64) {
        let next = generation + 1;
        let _ = self
            .generation
            .compare_exchange(generation, next, Relaxed, Relaxed);
    }

    fn is_present(&self, generation: u64) -> bool {
        self.generation.load(Relaxed) == generation
    }

    fn send(&self) {
        let mut filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        filling.advance(now_ms());
        let complete = std::mem::take(&mut filling.complete);
        drop(filling);
        if !complete.is_empty() {
            self.feed.send(&Event::Load(complete));
        }
    }

    fn note(&self, latency: Option<Duration>) {
        let mut filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        filling.advance(now_ms());
        match latency {
            Some(latency) => filling
                .latencies_us
                .push(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX)),
            None => filling.failed += 1,
        }
    }

    fn run(&self, client: u64, generation: u64, rate: Rate, store: &Store) {
        let interval =
            Duration::from_secs(1).mul_f64(CLIENTS as f64 / rate.ops_per_s.max(1) as f64);
        let mut session: Option<Session> = None;
        let mut address = client as usize;
        let mut due = Instant::now();
        for number in client.. {
            if !self.is_present(generation) {
                return;
            }
            due = (due + interval).max(Instant::now() - Duration::from_secs(1));
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let key = format!("console:{}", number % KEYS);
            let began = Instant::now();
            let done = match session.take() {
                Some(session) => Ok(session),
                None => {
                    let addresses = store.addresses();
                    store.connect(&self.cluster.access, addresses[address % addresses.len()])
                }
            };
            let is_read = number.wrapping_mul(2_654_435_761) % 100 < rate.reads_percent;
            let done = done.and_then(|mut session| {
                match is_read {
                    true => drop(session.get(&key)?),
                    false => session.set(&key, &number.to_string())?,
                }
                Ok(session)
            });
            match done {
                Ok(same) => {
                    self.note(Some(began.elapsed()));
                    session = Some(same);
                }
                Err(error) => {
                    tracing::debug!("load: {error:#}");
                    self.note(None);
                    address += 1;
                    thread::sleep(RETRY_INTERVAL);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_no_gaps() {
        let mut filling = Filling::default();
        filling.advance(1_000_020);
        filling.latencies_us.extend([30, 10, 20]);
        filling.failed = 1;
        filling.advance(1_000_049);
        assert!(filling.complete.is_empty());
        filling.advance(1_000_160);
        let starts: Vec<u64> = filling.complete.iter().map(|bucket| bucket.at_ms).collect();
        assert_eq!(starts, [1_000_000, 1_000_050, 1_000_100]);
        let first = Bucket {
            at_ms: 1_000_000,
            ended: 3,
            failed: 1,
            p50_us: Some(20),
            max_us: Some(30),
        };
        assert_eq!(filling.complete[0], first);
        assert_eq!(
            filling.complete[1],
            Bucket {
                at_ms: 1_000_050,
                ..Bucket::default()
            }
        );
    }

    /// Hours would be hundreds of thousands of buckets.
    #[test]
    fn a_clock_that_is_set_begins_a_new_bucket() {
        let mut filling = Filling::default();
        filling.advance(1_000_000);
        for now_ms in [50_000_000_000, 2_000_000] {
            filling.advance(now_ms);
            assert_eq!((filling.at_ms, filling.complete.len()), (now_ms, 0));
        }
    }
}
