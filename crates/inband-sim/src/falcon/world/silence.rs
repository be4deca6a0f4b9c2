//! How much executor time is lost to clients that do not answer.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use inband_falcon::executor::Executor;
use inband_falcon::task::Attempt;
use inband_falcon::timing::{ExecutorTiming, Nanos, MS};

/// A silent client may take up at most one part in this many of an executor's time.
const PART: Nanos = 4;

/// When a client was found silent, and how long each executor has waited for its answers since.
struct Episode {
    since: Nanos,
    wasted_ns: Vec<Nanos>,
}

/// All times are true time.
#[derive(Default)]
pub(in crate::falcon) struct Silence {
    /// By executor: the client and attempt that it asks about, and since when.
    asking: Vec<Option<(SocketAddrV4, Attempt, Nanos)>>,
    /// By executor: how often it got no answer.
    in_vain: Vec<u64>,
    episodes: BTreeMap<SocketAddrV4, Episode>,
}

impl Silence {
    /// The worker hears from this client.
    pub fn heard(&mut self, client: SocketAddrV4) {
        self.episodes.remove(&client);
    }

    /// The worker was paused, which is not the clients' fault.
    pub fn forget(&mut self) {
        *self = Silence {
            in_vain: std::mem::take(&mut self.in_vain),
            ..Silence::default()
        };
    }

    /// Call after each event of the worker. Returns a description if too much time was lost.
    pub fn watch(
        &mut self,
        now: Nanos,
        executors: &[Executor<SocketAddrV4>],
        timing: &ExecutorTiming,
    ) -> Option<String> {
        self.asking.resize(executors.len(), None);
        self.in_vain.resize(executors.len(), 0);
        let mut breach = None;
        for (number, executor) in executors.iter().enumerate() {
            let in_vain = executor.counters().clients_silent;
            if std::mem::replace(&mut self.in_vain[number], in_vain) < in_vain {
                let asked = self.asking[number].take();
                breach = breach.or(self.asked_in_vain(now, number, asked, timing));
            }
            let asks = executor.asks().map(|(client, of, _)| (*client, of));
            let asked = self.asking[number].map(|(client, of, _)| (client, of));
            if asks != asked {
                self.asking[number] = asks.map(|(client, of)| (client, of, now));
            }
        }
        breach
    }

    fn asked_in_vain(
        &mut self,
        now: Nanos,
        number: usize,
        asked: Option<(SocketAddrV4, Attempt, Nanos)>,
        timing: &ExecutorTiming,
    ) -> Option<String> {
        let (client, of, began_at) = asked?;
        let executors = self.asking.len();
        let new = || Episode {
            since: now,
            wasted_ns: vec![0; executors],
        };
        let episode = self.episodes.entry(client).or_insert_with(new);
        // A client that submits again is alive and only cut off from this worker.
        if began_at < episode.since || episode.since == now || of.attempt > 1 {
            return None;
        }
        let wasted_ns = &mut episode.wasted_ns[number];
        *wasted_ns += now - began_at;
        let elapsed_ns = now - episode.since;
        let allowed_ns = elapsed_ns / PART + 2 * timing.client_probe_ns + MS;
        (*wasted_ns > allowed_ns).then(|| {
            format!(
                "executor {number} has asked {client} without an answer for {wasted_ns} of {elapsed_ns} ns after it was found silent"
            )
        })
    }
}
