//! Throughput against one-way latency (Figure 4.2b), compared with our Paxos on the same data plane and with libpaxos;
//! and the cost of reordering.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use hdrhistogram::Histogram;
use inband_ground::socket::HostSocket;
use inband_host::config::Dataplane;
use inband_host::namespace::enter;
use inband_netpaxos::client::Client;
use inband_netpaxos::cluster::Cluster;
use inband_netpaxos::proposer::Outcome;

use super::testbed::{Testbed, WHAT};
use super::{reordering, NetPaxosArgs, BENCH};
use crate::libpaxos;
use crate::loopback;
use crate::node::Load;
use crate::plot::{Chart, Series};
use crate::row::{machine, median, number, progress, quote, Baseline, Output, Quoted, Row};
use crate::testbed::{Job, Testbed as PaxosTestbed, TestbedSpec};

const VALUE_LEN_BYTES: usize = 64;
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);
const WARM_UP: Duration = Duration::from_millis(300);
const REORDERED_PPM: u32 = 10_000;
/// Requests in flight in the measurement with late copies; few enough that links do not lose any.
const REORDERED_OUTSTANDING: usize = 16;
/// Requests in flight in the measurement of what leaves together.
const TOGETHER_OUTSTANDING: usize = 64;
const PLACE: &str = "dissertation, 4.2, Figure 4.2b";
const GOAL_THROUGHPUT: f64 = 0.8;
const GOAL_REORDERED: f64 = 0.5;

/// One system with a number of requests in flight; one value per round.
#[derive(Debug, Clone, Default)]
struct Point {
    per_s: Vec<f64>,
    /// Median latency; for libpaxos the mean, because it reports no median.
    us: Vec<f64>,
    p99_us: Vec<f64>,
}

impl Point {
    fn add(&mut self, per_s: f64, us: f64, p99_us: f64) {
        self.per_s.push(per_s);
        self.us.push(us);
        self.p99_us.push(p99_us);
    }

    fn per_s(&self) -> f64 {
        median(&mut self.per_s.clone())
    }

    fn us(&self) -> f64 {
        median(&mut self.us.clone())
    }
}

/// A closed loop for this long. Returns requests per second, and the median and 99th percentile of the time from
/// submission to the first learner's answer.
fn load(cluster: &Cluster, outstanding: usize, duration: Duration) -> Result<(f64, f64, f64)> {
    load_with(cluster, outstanding, duration, true)
}

/// Like [`load`]. Requests that are submitted together leave in one system call, or each in its own.
fn load_with(
    cluster: &Cluster,
    outstanding: usize,
    duration: Duration,
    is_together: bool,
) -> Result<(f64, f64, f64)> {
    let measure = || -> Result<(f64, f64, f64)> {
        let mut client = Client::connect(cluster, CONNECT_LIMIT)?;
        let mut latency_ns = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
        let mut sent = BTreeMap::new();
        let value = [7; VALUE_LEN_BYTES];
        let began = Instant::now();
        let mut counted = 0u64;
        while began.elapsed() < WARM_UP + duration {
            while sent.len() < outstanding && client.is_ready() {
                let at = Instant::now();
                sent.insert(client.submit(&value, TIMEOUT), at);
                if !is_together {
                    client.flush();
                }
            }
            for (number, outcome) in client.poll(POLL)? {
                let at: Instant = sent.remove(&number).context("it was sent")?;
                ensure!(outcome != Outcome::Unknown, "a request was not answered");
                if began.elapsed() >= WARM_UP {
                    counted += 1;
                    latency_ns.saturating_record(at.elapsed().as_nanos() as u64);
                }
            }
        }
        let us = |quantile| latency_ns.value_at_quantile(quantile) as f64 / 1000.0;
        Ok((counted as f64 / duration.as_secs_f64(), us(0.5), us(0.99)))
    };
    // In a separate thread, because it may enter another network namespace.
    thread::scope(|scope| {
        let load = scope.spawn(measure);
        load.join().map_err(|_| anyhow!("the client panicked"))?
    })
}

/// Returns the same through a separate serializer on the client's host, which delays some copies.
fn load_reordered(
    cluster: &Cluster,
    (outstanding, duration): (usize, Duration),
    reordered_ppm: u32,
) -> Result<f64> {
    let ends = AtomicBool::new(false);
    let address = match &cluster.client {
        Some((address, _)) => *address,
        None => *cluster.serializers[0].ip(),
    };
    let serve = |ready: std::sync::mpsc::Sender<SocketAddrV4>| -> Result<()> {
        if let Some((_, namespace)) = &cluster.client {
            enter(namespace)?;
        }
        let socket = HostSocket::bind(SocketAddrV4::new(address, 0))?;
        let _ = ready.send(socket.local_address()?);
        reordering::serve(
            &socket,
            &mut cluster.gate()?,
            &cluster.minions,
            reordered_ppm,
            &ends,
        )
    };
    thread::scope(|scope| {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let serializer = scope.spawn(|| serve(ready));
        let found = is_ready.recv_timeout(CONNECT_LIMIT);
        let found = found
            .context("the serializer does not start")
            .and_then(|at| {
                let cluster = Cluster {
                    serializers: vec![at],
                    ..cluster.clone()
                };
                load(&cluster, outstanding, duration)
            });
        ends.store(true, Ordering::Release);
        let served = serializer.join();
        served.map_err(|_| anyhow!("the serializer panicked"))??;
        Ok(found?.0)
    })
}

/// The results on one data plane.
#[derive(Default)]
struct Curves {
    /// By number of requests in flight.
    ours: Vec<Point>,
    paxos: Vec<Point>,
    libpaxos: Vec<Point>,
    recovered_share: Vec<f64>,
    together_per_s: Vec<f64>,
    one_by_one_per_s: Vec<f64>,
    in_order_per_s: Vec<f64>,
    reordered_per_s: Vec<f64>,
    reordered_recovered_share: Vec<f64>,
}

/// Counts recovered instances of a learner, and delivered ones, since the last call.
struct Recovered {
    recovered: u64,
    fast: u64,
}

impl Recovered {
    fn new(testbed: &Testbed) -> Recovered {
        Recovered {
            recovered: testbed.counter("decided_by_recovery"),
            fast: testbed.counter("decided_fast"),
        }
    }

    /// Both learners count a fast decision, but only one of them a recovery.
    fn share(&self, testbed: &Testbed) -> f64 {
        let now = Recovered::new(testbed);
        let recovered = (now.recovered - self.recovered) as f64;
        let fast = (now.fast - self.fast) as f64 / 2.0;
        recovered * 100.0 / (recovered + fast).max(1.0)
    }
}

/// Measures and prints the rows.
pub fn measure(args: &NetPaxosArgs, output: &mut Output) -> Result<()> {
    ensure!(!args.outstanding.is_empty(), "--outstanding: at least one");
    if let Some(peer) = &args.peer {
        peer.check()?;
    } else {
        libpaxos::left_out(output);
    }
    let dataplanes = match args.dataplane {
        Dataplane::Auto => vec![Dataplane::Xdp, Dataplane::Udp],
        one => vec![one],
    };
    for dataplane in dataplanes {
        let machine = machine();
        let (curves, place) = curves(args, dataplane)?;
        show(args, dataplane, (&curves, &place, &machine), output)?;
    }
    Ok(())
}

fn paxos_xdp(
    dataplane: Dataplane,
    outstanding: usize,
    duration: Duration,
) -> Result<(f64, f64, f64)> {
    let load = match outstanding {
        1 => Load::Latency,
        _ => Load::Saturate,
    };
    let mut testbed = PaxosTestbed::create(TestbedSpec {
        learners: 2,
        keep: None,
    })?;
    let outcome = testbed.run(&Job {
        command_len_bytes: VALUE_LEN_BYTES,
        window: outstanding,
        ..Job::new(dataplane, load, duration)
    })?;
    ensure!(outcome.failed() == 0, "submissions to our Paxos failed");
    let latency = &outcome.reports[0].latency;
    Ok((outcome.delivered_per_s(), latency.p50_us, latency.p99_us))
}

fn curves(args: &NetPaxosArgs, dataplane: Dataplane) -> Result<(Curves, String)> {
    let duration = Duration::from_millis(args.duration_ms);
    let points = vec![Point::default(); args.outstanding.len()];
    let mut curves = Curves {
        ours: points.clone(),
        paxos: points.clone(),
        libpaxos: points,
        ..Curves::default()
    };
    let mut place = String::new();
    for round in 1..=args.rounds {
        let note = |what: &str| {
            progress(&format!(
                "{dataplane}, round {round}/{}: {what}",
                args.rounds
            ))
        };
        note("NetPaxos");
        {
            // Stopped before another system is measured.
            let testbed = Testbed::start(dataplane)?;
            place = testbed.place();
            let cluster = testbed.cluster_of_learner()?;
            let recovered = Recovered::new(&testbed);
            for (point, outstanding) in curves.ours.iter_mut().zip(&args.outstanding) {
                let (per_s, p50_us, p99_us) = load(&cluster, *outstanding, duration)?;
                point.add(per_s, p50_us, p99_us);
            }
            curves.recovered_share.push(recovered.share(&testbed));
            note("NetPaxos, requests that leave one by one");
            for (is_together, rates) in [
                (true, &mut curves.together_per_s),
                (false, &mut curves.one_by_one_per_s),
            ] {
                let sample = load_with(&cluster, TOGETHER_OUTSTANDING, duration, is_together)?;
                rates.push(sample.0);
            }
            note("NetPaxos, copies out of order");
            let in_order = load_reordered(&cluster, (REORDERED_OUTSTANDING, duration), 0)?;
            curves.in_order_per_s.push(in_order);
            let recovered = Recovered::new(&testbed);
            let reordered =
                load_reordered(&cluster, (REORDERED_OUTSTANDING, duration), REORDERED_PPM)?;
            curves.reordered_per_s.push(reordered);
            curves
                .reordered_recovered_share
                .push(recovered.share(&testbed));
        }
        for (at, outstanding) in args.outstanding.iter().enumerate() {
            note(&format!("our Paxos, {outstanding} outstanding"));
            let (per_s, us, p99_us) = match dataplane {
                Dataplane::Udp => {
                    let sample = loopback::measure(*outstanding, VALUE_LEN_BYTES, duration)?;
                    (sample.per_s, sample.p50_us, f64::NAN)
                }
                kernel => paxos_xdp(kernel, *outstanding, duration)?,
            };
            curves.paxos[at].add(per_s, us, p99_us);
            if let (Some(peer), Dataplane::Udp) = (&args.peer, dataplane) {
                note(&format!("libpaxos, {outstanding} outstanding"));
                let seconds = duration.as_secs_f64().ceil() as usize;
                let (per_s, mean_us) =
                    peer.rate_and_mean(*outstanding, VALUE_LEN_BYTES, seconds)?;
                curves.libpaxos[at].add(per_s, mean_us, f64::NAN);
            }
        }
    }
    progress("");
    Ok((curves, place))
}

fn best(points: &[Point]) -> f64 {
    points.iter().map(Point::per_s).fold(0.0, f64::max)
}

fn show(
    args: &NetPaxosArgs,
    dataplane: Dataplane,
    (curves, place, machine): (&Curves, &str, &str),
    output: &mut Output,
) -> Result<()> {
    let conditions = format!(
        "{VALUE_LEN_BYTES} B values, a proposer on the first learner's host, submission to the first learner's answer; {WHAT}; our Paxos: \
         3 acceptors, {}, submission to delivery at the proposer's host; median of {} x {} ms; {place}; {machine}",
        if dataplane == Dataplane::Udp { "3 hosts with all roles" } else { "2 learners" },
        args.rounds,
        args.duration_ms
    );
    let backend = dataplane.to_string();
    let has_peer = curves.libpaxos.iter().all(|point| !point.per_s.is_empty());
    let mut emit =
        |metric, variant: &str, figure, beside: Option<(&str, f64)>, paper: Option<Quoted>| {
            let baseline = beside.map(|(name, value)| Baseline {
                name: name.into(),
                value,
            });
            let row = Row::new((BENCH, metric), &*backend, variant, figure, &*conditions);
            output.row(&row.beside(baseline).quoting(paper))
        };
    let ours_best = best(&curves.ours);
    for (at, outstanding) in args.outstanding.iter().enumerate() {
        let variant = format!("{outstanding} outstanding");
        let (ours, paxos) = (&curves.ours[at], &curves.paxos[at]);
        let is_best = ours.per_s() >= ours_best;
        let paper = is_best.then(|| quote(PLACE, "NetPaxos", 57_457.0));
        let beside = Some(("our Paxos", paxos.per_s()));
        emit(
            "requests_per_s",
            &variant,
            (ours.per_s(), "requests/s"),
            beside,
            paper,
        )?;
        let paper = (*outstanding == 1).then(|| quote(PLACE, "NetPaxos, lowest", 150.0));
        let beside = Some(("our Paxos", paxos.us()));
        emit("latency_p50_us", &variant, (ours.us(), "us"), beside, paper)?;
        let p99_us = median(&mut ours.p99_us.clone());
        emit("latency_p99_us", &variant, (p99_us, "us"), None, None)?;
        if has_peer {
            let theirs = &curves.libpaxos[at];
            let paper = is_best.then(|| quote(PLACE, "libpaxos", 6_369.0));
            emit(
                "libpaxos_per_s",
                &variant,
                (theirs.per_s(), "requests/s"),
                None,
                paper,
            )?;
            emit(
                "libpaxos_mean_us",
                &variant,
                (theirs.us(), "us"),
                None,
                None,
            )?;
        }
    }
    let of = |values: &[f64]| median(&mut values.to_vec());
    let recovered = (of(&curves.recovered_share), "%");
    emit("recovered_share", "", recovered, None, None)?;
    let variant =
        format!("{TOGETHER_OUTSTANDING} outstanding, those submitted together in one system call");
    let beside = Some(("each in its own", of(&curves.one_by_one_per_s)));
    let together = (of(&curves.together_per_s), "requests/s");
    emit("together_per_s", &variant, together, beside, None)?;
    let variant = format!("{REORDERED_OUTSTANDING} outstanding, 1 % of the copies late");
    let (in_order, reordered) = (of(&curves.in_order_per_s), of(&curves.reordered_per_s));
    let beside = Some(("in order, through the same serializer", in_order));
    emit(
        "reordered_per_s",
        &variant,
        (reordered, "requests/s"),
        beside,
        None,
    )?;
    let recovered = (of(&curves.reordered_recovered_share), "%");
    emit("recovered_share", &variant, recovered, None, None)?;
    let series = |name: &str, points: &[Point]| Series {
        name: name.into(),
        points: points
            .iter()
            .map(|point| [point.per_s(), point.us()])
            .collect(),
        is_quoted: false,
    };
    let mut all = vec![
        series("NetPaxos", &curves.ours),
        series("our Paxos", &curves.paxos),
    ];
    if has_peer {
        all.push(series("libpaxos (mean)", &curves.libpaxos));
    }
    output.chart(Chart::Lines {
        title: format!("{dataplane}: latency over throughput"),
        x: "requests/s".into(),
        y: "median latency, us".into(),
        series: all,
        events: Vec::new(),
    });
    let goal = |what: &str, value: f64, is_met: bool, bound: String| {
        let verdict = if is_met { "met" } else { "MISSED" };
        output.note(&format!(
            "goal {verdict}: {dataplane}: {what}: {}, {bound}",
            number(value)
        ));
    };
    if let Some(at) = args.outstanding.iter().position(|n| *n == 1) {
        let (ours, paxos) = (curves.ours[at].us(), curves.paxos[at].us());
        goal(
            "p50 in us, one outstanding",
            ours,
            ours < paxos,
            format!("below our Paxos's {}", number(paxos)),
        );
    }
    let ratio = ours_best / best(&curves.paxos);
    let bound = |least: f64| format!("at least {}", number(least));
    goal(
        "throughput beside our Paxos",
        ratio,
        ratio >= GOAL_THROUGHPUT,
        bound(GOAL_THROUGHPUT),
    );
    let ratio = reordered / in_order;
    goal(
        "throughput with 1 % out of order beside in order",
        ratio,
        ratio >= GOAL_REORDERED,
        bound(GOAL_REORDERED),
    );
    Ok(())
}
