//! SETs, GETs and mixes per second, and their latency. Every round starts every system afresh, one after another, so
//! that all see the same noise and none runs alongside another.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use inband_cluster::box_cluster::Quorum;

use super::memcached::{self, fill, Memcached};
use super::testbed::Testbed;
use super::udp::UdpLoad;
use super::zookeeper::{self, ZooKeeper};
use super::{goal_at_least, row, Run};
use crate::kv::{etcd, Operation, Shape};
use crate::libpaxos;
use crate::load::{Load, Operation as LoadOperation, Protocol};
use crate::row::{median, progress, Baseline, Output};
use crate::stats::Distribution;

const KEYS: u64 = 1_000;
const TABLE_BYTES: u64 = 64 << 20;
const WARM_UP: Duration = Duration::from_millis(150);
const DURATION: Duration = Duration::from_millis(600);
const COMPILE_FOR: Duration = Duration::from_secs(3);
const DURATION_QUICK: Duration = Duration::from_millis(200);
const VALUES_LEN_BYTES: [usize; 4] = [32, 128, 512, 1024];
const VALUES_LEN_BYTES_QUICK: [usize; 1] = [128];
const VALUES_LEN_BYTES_OF_LATENCY: [usize; 1] = [128];

/// What clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Sets,
    Gets,
    /// Reads of the leader's own copy, without a round: as in the paper, and as in ZooKeeper.
    LocalGets,
    Mixed10,
    Mixed20,
    UdpSets,
    UdpGets,
}

const KINDS: [Kind; 7] = [
    Kind::Sets,
    Kind::Gets,
    Kind::LocalGets,
    Kind::Mixed10,
    Kind::Mixed20,
    Kind::UdpSets,
    Kind::UdpGets,
];

impl Kind {
    fn sets_percent(self) -> u64 {
        match self {
            Kind::Sets | Kind::UdpSets => 100,
            Kind::Gets | Kind::LocalGets | Kind::UdpGets => 0,
            Kind::Mixed10 => 10,
            Kind::Mixed20 => 20,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Sets => "sets",
            Kind::Gets => "gets",
            Kind::LocalGets => "local gets",
            Kind::Mixed10 => "10 % sets",
            Kind::Mixed20 => "20 % sets",
            Kind::UdpSets => "UDP sets",
            Kind::UdpGets => "UDP gets",
        }
    }

    fn is_udp(self) -> bool {
        matches!(self, Kind::UdpSets | Kind::UdpGets)
    }
}

/// The system to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// Our cluster: the number of nodes, and whether every node must have a write.
    Ours(u8, bool),
    /// Three of our nodes, with direct links.
    Direct,
    ZooKeeper,
    Etcd,
    Memcached,
    LibPaxos,
}

const THREE: Who = Who::Ours(3, false);
const THREE_ALL: Who = Who::Ours(3, true);
const FOUR: Who = Who::Ours(4, false);
const SEVEN: Who = Who::Ours(7, false);
const PEERS: [Who; 3] = [Who::ZooKeeper, Who::Etcd, Who::Memcached];

impl Who {
    fn backend(self) -> &'static str {
        match self {
            Who::Ours(..) | Who::Direct => "inband",
            Who::ZooKeeper => "zookeeper",
            Who::Etcd => "etcd",
            Who::Memcached => "memcached",
            Who::LibPaxos => "libpaxos",
        }
    }

    fn name(self) -> String {
        match self {
            Who::Ours(nodes, false) => format!("{nodes} nodes"),
            Who::Ours(nodes, true) => format!("{nodes} nodes, quorum all"),
            Who::Direct => "3 nodes, direct links".to_owned(),
            Who::ZooKeeper | Who::Etcd | Who::LibPaxos => "3 nodes".to_owned(),
            Who::Memcached => "1 node".to_owned(),
        }
    }

    fn version(self) -> Result<String> {
        match self {
            Who::Ours(..) | Who::Direct => Ok(format!("inband {}", env!("CARGO_PKG_VERSION"))),
            Who::ZooKeeper => zookeeper::version(),
            Who::Etcd => etcd::version(),
            Who::Memcached => memcached::version(),
            Who::LibPaxos => Ok("libpaxos 3".to_owned()),
        }
    }

    /// Returns what a reader needs to know for the comparison.
    fn settings(self) -> &'static str {
        match self {
            Who::Ours(..) | Who::Direct => {
                "log and table in memory; clients at the leader"
            }
            Who::ZooKeeper => {
                "its log synced on tmpfs; loaded for seconds first; clients at the leader; reads are of its own copy"
            }
            Who::Etcd => "its log synced on tmpfs; clients at the leader; reads are linearizable",
            Who::Memcached => "one thread, not replicated",
            Who::LibPaxos => {
                "votes in memory, no store; its sample client, with as many values in flight, each as long as our \
                 values; in whole seconds; a value counts when the client has learned it"
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    per_s: f64,
    /// libpaxos and etcd do not tell all of these.
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    mean_us: Option<f64>,
}

/// A figure of a sample, if the system tells it.
type Of = fn(&Sample) -> Option<f64>;

impl Sample {
    fn of(per_s: f64, latency: &Distribution) -> Sample {
        Sample {
            per_s,
            p50_us: Some(latency.p50_us),
            p99_us: Some(latency.p99_us),
            mean_us: Some(latency.mean_us),
        }
    }
}

type Key = (Who, usize, Kind);

/// The samples of all rounds.
#[derive(Default)]
struct Samples(BTreeMap<Key, Vec<Sample>>);

impl Samples {
    /// `None` if the system was not measured, or does not tell this.
    fn median(&self, key: Key, of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        let samples = self.0.get(&key)?;
        let mut values = samples.iter().map(of).collect::<Option<Vec<f64>>>()?;
        Some(median(&mut values))
    }
}

/// Settings common to all measurements of a figure.
struct Plan<'a> {
    run: &'a Run<'a>,
    clients: usize,
    values_len_bytes: &'static [usize],
    duration: Duration,
    /// How long ZooKeeper is loaded before it is measured.
    compile_for: Duration,
}

impl Plan<'_> {
    fn load(
        &self,
        protocol: &dyn Protocol,
        address: SocketAddr,
        what: (usize, Kind),
    ) -> Result<Sample> {
        self.load_for(protocol, address, what, WARM_UP)
    }

    fn load_for(
        &self,
        protocol: &dyn Protocol,
        address: SocketAddr,
        (value_len_bytes, kind): (usize, Kind),
        warm_up: Duration,
    ) -> Result<Sample> {
        let load = Load {
            protocol,
            addresses: &[address],
            connections: self.clients,
            pipeline: 1,
            sets_percent: kind.sets_percent(),
            value_len_bytes,
            keys: KEYS,
            spins: false,
        };
        let report = load.run(warm_up, self.duration)?;
        ensure!(
            report.errors == 0,
            "{} answers were errors or had no value",
            report.errors
        );
        Ok(Sample::of(report.per_s, &report.latency))
    }

    fn udp_load(
        &self,
        address: SocketAddr,
        (value_len_bytes, kind): (usize, Kind),
    ) -> Result<Sample> {
        let load = UdpLoad {
            address,
            clients: self.clients,
            operation: match kind.sets_percent() {
                0 => LoadOperation::Get,
                _ => LoadOperation::Set,
            },
            value_len_bytes,
            keys: KEYS,
        };
        let report = load.run(WARM_UP, self.duration)?;
        ensure!(
            report.errors == 0,
            "{} replies over UDP were errors or had no value",
            report.errors
        );
        if report.resent > 0 {
            progress(&format!("{} datagrams without a reply", report.resent));
        }
        Ok(Sample::of(report.per_s, &report.latency))
    }

    /// Starts a system and makes all measurements.
    fn measure(&self, who: Who, samples: &mut Samples) -> Result<()> {
        let mut add = |value_len_bytes, kind, sample| {
            let key = (who, value_len_bytes, kind);
            samples.0.entry(key).or_default().push(sample);
        };
        match who {
            Who::Ours(..) | Who::Direct => {
                let (nodes, quorum) = match who {
                    Who::Ours(nodes, true) => (nodes, Quorum::All),
                    Who::Ours(nodes, false) => (nodes, Quorum::Majority),
                    _ => (3, Quorum::Majority),
                };
                let is_direct = who == Who::Direct;
                let args = self.run.args;
                let testbed = Testbed::with_links(nodes, quorum, TABLE_BYTES, args, is_direct)?;
                self.run.note_place(&testbed.place());
                let leader_name = testbed.leader()?;
                let leader = testbed.address(&leader_name)?;
                for len in self.values_len_bytes {
                    fill(&Memcached, leader, KEYS, *len)?;
                    for kind in KINDS {
                        let address = match kind {
                            Kind::LocalGets => testbed.local(&leader_name)?,
                            _ => leader,
                        };
                        let sample = match kind.is_udp() {
                            true => self.udp_load(testbed.udp(&leader_name), (*len, kind))?,
                            false => self.load(&Memcached, address, (*len, kind))?,
                        };
                        add(*len, kind, sample);
                    }
                }
            }
            Who::Memcached => {
                let alone = memcached::Alone::start()?;
                for len in self.values_len_bytes {
                    fill(&Memcached, alone.address, KEYS, *len)?;
                    for kind in KINDS.into_iter().filter(|kind| *kind != Kind::LocalGets) {
                        let sample = match kind.is_udp() {
                            true => self.udp_load(alone.address, (*len, kind))?,
                            false => self.load(&Memcached, alone.address, (*len, kind))?,
                        };
                        add(*len, kind, sample);
                    }
                }
            }
            Who::ZooKeeper => {
                let cluster = zookeeper::Cluster::start()?;
                cluster.create_keys(KEYS)?;
                // Warm up: ZooKeeper's JIT compiles its code while it runs.
                let load = |kind| (self.values_len_bytes[0], kind);
                for kind in [Kind::Sets, Kind::LocalGets] {
                    self.load_for(&ZooKeeper, cluster.leader, load(kind), self.compile_for)?;
                }
                for len in self.values_len_bytes {
                    fill(&ZooKeeper, cluster.leader, KEYS, *len)?;
                    let kinds = KINDS.into_iter().filter(|kind| !kind.is_udp());
                    for kind in kinds.filter(|kind| *kind != Kind::Gets) {
                        let sample = self.load(&ZooKeeper, cluster.leader, (*len, kind))?;
                        add(*len, kind, sample);
                    }
                }
            }
            Who::Etcd => {
                let cluster = etcd::Cluster::start()?;
                let shape = Shape {
                    connections: self.clients,
                    requests: 1,
                };
                let (warm_up_ms, ms) = (WARM_UP.as_millis(), self.duration.as_millis());
                for len in self.values_len_bytes {
                    for (kind, operation) in
                        [(Kind::Sets, Operation::Set), (Kind::Gets, Operation::Get)]
                    {
                        let sample = cluster.run(
                            operation,
                            shape,
                            *len,
                            KEYS,
                            warm_up_ms as u64,
                            ms as u64,
                        )?;
                        let sample = Sample {
                            per_s: sample.per_s,
                            p50_us: Some(sample.p50_us),
                            p99_us: Some(sample.p99_us),
                            mean_us: None,
                        };
                        add(*len, kind, sample);
                    }
                }
            }
            Who::LibPaxos => {
                let peer = self.run.args.peer.as_ref().context("no --peer")?;
                let seconds = self.duration.as_secs_f64().ceil() as usize;
                for len in self.values_len_bytes {
                    let (per_s, mean_us) = peer.rate_and_mean(self.clients, *len, seconds)?;
                    let sample = Sample {
                        per_s,
                        p50_us: None,
                        p99_us: None,
                        mean_us: Some(mean_us),
                    };
                    add(*len, Kind::Sets, sample);
                }
            }
        }
        Ok(())
    }

    /// Runs all rounds of these systems. A system that does not work here is skipped with a note.
    fn measure_all(
        &self,
        all: &[Who],
        output: &Output,
    ) -> Result<(Samples, BTreeMap<Who, String>)> {
        let mut versions = BTreeMap::new();
        for who in all {
            match who.version() {
                Ok(version) => drop(versions.insert(*who, version)),
                Err(error) => output.skipped(&format!("{}: {error:#}", who.backend())),
            }
        }
        let rounds = self.run.quick(1, self.run.args.rounds);
        let mut samples = Samples::default();
        for round in 1..=rounds {
            self.run.look_for_others()?;
            for who in versions.keys() {
                progress(&format!(
                    "{} {}, round {round} of {rounds}",
                    who.backend(),
                    who.name()
                ));
                match (self.measure(*who, &mut samples), who) {
                    (Err(error), who) if !matches!(who, Who::Ours(..)) => {
                        let who = format!("{} {}", who.backend(), who.name());
                        output.skipped(&format!("{who} in round {round}: {error:#}"));
                    }
                    (measured, _) => measured?,
                }
            }
        }
        Ok((samples, versions))
    }

    fn conditions(&self, who: Who, version: &str) -> String {
        format!(
            "{version}: {}; {} connections with a request each, from one thread; {KEYS} keys; {} ms after {} ms; {}",
            who.settings(),
            self.clients,
            self.duration.as_millis(),
            WARM_UP.as_millis(),
            self.run.conditions()
        )
    }
}

fn variant((who, value_len_bytes, kind): Key) -> String {
    format!("{}, {}, {value_len_bytes} B", kind.name(), who.name())
}

/// Adds to these of our clusters the other systems that are to be measured.
fn with_peers(ours: &[Who], run: &Run<'_>, output: &mut Output) -> Vec<Who> {
    let mut all = ours.to_vec();
    if run.args.direct {
        all.push(Who::Direct);
    }
    if !run.args.alone {
        all.extend(PEERS);
    }
    match (&run.args.peer, run.args.alone) {
        (Some(_), _) => all.push(Who::LibPaxos),
        (None, false) => libpaxos::left_out(output),
        (None, true) => {}
    }
    all
}

/// Returns libpaxos's figure, if `key` is what it is compared with.
fn beside_libpaxos(
    samples: &Samples,
    (who, len, kind): Key,
    of: impl Fn(&Sample) -> Option<f64>,
) -> Option<Baseline> {
    let is_compared = who == THREE && kind == Kind::Sets;
    let value = samples.median((Who::LibPaxos, len, kind), of);
    value.filter(|_| is_compared).map(|value| Baseline {
        name: "libpaxos".to_owned(),
        value,
    })
}

/// Requests per second.
pub fn throughput(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let plan = Plan {
        run,
        clients: run.args.clients,
        values_len_bytes: run.quick(&VALUES_LEN_BYTES_QUICK, &VALUES_LEN_BYTES),
        duration: run.quick(DURATION_QUICK, DURATION),
        compile_for: run.quick(WARM_UP, COMPILE_FOR),
    };
    let all = with_peers(&[THREE, THREE_ALL, FOUR, SEVEN], run, output);
    let (samples, versions) = plan.measure_all(&all, output)?;
    for (who, version) in &versions {
        let conditions = plan.conditions(*who, version);
        for key in samples.0.keys().filter(|key| key.0 == *who) {
            let of = |sample: &Sample| Some(sample.per_s);
            let figure = (samples.median(*key, of).unwrap_or(f64::NAN), "requests/s");
            let row = row(
                "requests_per_s",
                who.backend(),
                variant(*key),
                figure,
                &*conditions,
            );
            output.row(&row.beside(beside_libpaxos(&samples, *key, of)))?;
        }
    }
    let per_s = |who, len, kind| samples.median((who, len, kind), |sample| Some(sample.per_s));
    for len in plan.values_len_bytes {
        let ratio = |what: &str, (a, b), goal| {
            if let (Some(a), Some(b)) = (a, b) {
                let (a, b): (f64, f64) = (a, b);
                let what = format!("{what}, {len} B");
                goal_at_least((run, output), &what, a / b, goal, "times");
            }
        };
        let sets = |who| per_s(who, *len, Kind::Sets);
        ratio(
            "SETs beside ZooKeeper's",
            (sets(THREE), sets(Who::ZooKeeper)),
            10.0,
        );
        ratio("SETs beside etcd's", (sets(THREE), sets(Who::Etcd)), 10.0);
        let gets = |kind| {
            (
                per_s(THREE, *len, kind),
                per_s(Who::Memcached, *len, Kind::Gets),
            )
        };
        ratio("GETs beside memcached's", gets(Kind::Gets), 1.0);
        ratio("local GETs beside memcached's", gets(Kind::LocalGets), 1.0);
        let udp_gets = |who| per_s(who, *len, Kind::UdpGets);
        ratio(
            "UDP GETs beside memcached's over UDP (answered by the process, not yet by the packet program)",
            (udp_gets(THREE), udp_gets(Who::Memcached)),
            5.0,
        );
        ratio(
            "SETs of quorum all beside majority",
            (sets(THREE_ALL), sets(THREE)),
            0.9,
        );
        ratio("SETs of 7 nodes beside 3", (sets(SEVEN), sets(THREE)), 0.5);
    }
    Ok(())
}

/// Latency with one request in flight.
pub fn latency(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let plan = Plan {
        run,
        clients: 1,
        values_len_bytes: &VALUES_LEN_BYTES_OF_LATENCY,
        duration: run.quick(DURATION_QUICK, DURATION),
        compile_for: run.quick(WARM_UP, COMPILE_FOR),
    };
    let all = with_peers(&[THREE, THREE_ALL, SEVEN], run, output);
    let (samples, versions) = plan.measure_all(&all, output)?;
    for (who, version) in &versions {
        let conditions = plan.conditions(*who, version);
        let keys = samples.0.keys().filter(|key| key.0 == *who);
        for key in keys.filter(|key| ![Kind::Mixed10, Kind::Mixed20].contains(&key.2)) {
            let of: [(_, Of); 3] = [
                ("latency_p50_us", |sample| sample.p50_us),
                ("latency_p99_us", |sample| sample.p99_us),
                ("latency_mean_us", |sample| sample.mean_us),
            ];
            for (metric, of) in of {
                let Some(us) = samples.median(*key, of) else {
                    continue;
                };
                let backend = who.backend();
                let row = row(metric, backend, variant(*key), (us, "us"), &*conditions);
                output.row(&row.beside(beside_libpaxos(&samples, *key, of)))?;
            }
        }
    }
    Ok(())
}
