//! `inband bench agreement`: submit to deliver over real packets, in a lab of network namespaces: a leader, three
//! acceptors, three learners, and one proposer on the first learner's host.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{ensure, Result};
use clap::Args;
use inband_paxos::config::{Dataplane, DEFAULT_RING_SLOTS};

use super::libpaxos;
use super::node::Load;
use super::row::{machine, median, progress, Baseline, Output, Row};
use super::testbed::{Job, Testbed, TestbedSpec};

/// Options of `inband bench agreement`.
#[derive(Debug, Args)]
pub struct AgreementArgs {
    /// Rounds of each measurement; the median is reported.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Instead: measure the cost of a whole instance in the kernel with live frames, compared with roles without a
    /// protocol and with plain forwarding on the same links. Only --rounds applies.
    #[arg(long)]
    pub capacity: bool,
    /// Instead: run the hosts as processes on loopback, with the `udp` backend, compared with libpaxos if --peer is
    /// given. Only --rounds, --duration-ms and --peer apply.
    #[arg(long, conflicts_with = "capacity")]
    loopback: bool,
    /// Time counted in each round.
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
    /// Undecided values in flight at saturation.
    #[arg(long, default_value_t = 64)]
    window: usize,
    /// Learners' hosts that also propose at saturation, each with its own window.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=3))]
    proposers: u8,
    /// Slots of the acceptors' rings.
    #[arg(long, default_value_t = DEFAULT_RING_SLOTS)]
    ring_slots: u32,
    /// Backends to measure.
    #[arg(long, value_delimiter = ',', default_values_t = [Dataplane::Xdp, Dataplane::Udp])]
    backends: Vec<Dataplane>,
    /// Another system to measure in the same run: libpaxos=DIR, where DIR is its build directory.
    #[arg(long, value_name = "NAME=DIR")]
    peer: Option<libpaxos::Peer>,
    /// Keep the hosts' logs in this directory.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

#[derive(Default)]
struct Figures {
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    delivered_per_s: Vec<f64>,
    commands_per_s: Vec<f64>,
    duplicates: u64,
}

/// Runs the benchmark and prints its rows.
pub fn run(args: &AgreementArgs, output: &mut Output) -> Result<()> {
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    if let Some(peer) = &args.peer {
        peer.check()?;
    }
    let machine = machine();
    let duration = Duration::from_millis(args.duration_ms);
    let beside_peer = |output: &mut Output| {
        let rounds = (args.rounds, duration);
        libpaxos::rows("agreement", args.peer.as_ref(), rounds, &machine, output)
    };
    if args.loopback {
        return beside_peer(output);
    }
    let mut testbed = Testbed::create(TestbedSpec {
        keep: args.keep.clone(),
        ..TestbedSpec::default()
    })?;
    let mut figures: Vec<Figures> = args.backends.iter().map(|_| Figures::default()).collect();
    for round in 1..=args.rounds {
        for (at, backend) in args.backends.iter().enumerate() {
            for (load, command_len_bytes) in [
                (Load::Latency, 64),
                (Load::Saturate, 64),
                (Load::Batched, 16),
            ] {
                progress(&format!(
                    "round {round}/{}: {backend}, {load:?}",
                    args.rounds
                ));
                let proposers = match load {
                    Load::Latency => 1,
                    _ => usize::from(args.proposers),
                };
                let outcome = testbed.run(&Job {
                    command_len_bytes,
                    proposers,
                    window: args.window,
                    ring_slots: args.ring_slots,
                    ..Job::new(*backend, load, duration)
                })?;
                if outcome.failed() > 0 {
                    output.note(&format!(
                        "round {round}, {backend}, {load:?}: left out: {} submissions failed, for the \
                         cluster did not keep up",
                        outcome.failed()
                    ));
                    continue;
                }
                let (figures, proposer) = (&mut figures[at], &outcome.reports[0]);
                match load {
                    Load::Latency => {
                        figures.p50_us.push(proposer.latency.p50_us);
                        figures.p99_us.push(proposer.latency.p99_us);
                    }
                    Load::Batched => figures.commands_per_s.push(outcome.commands_per_s()),
                    _ => {
                        figures.delivered_per_s.push(outcome.delivered_per_s());
                        figures.duplicates += proposer.duplicates;
                    }
                }
            }
        }
    }
    progress("");
    print_rows(args, &machine, &mut figures, output)?;
    beside_peer(output)
}

fn print_rows(
    args: &AgreementArgs,
    machine: &str,
    figures: &mut [Figures],
    output: &mut Output,
) -> Result<()> {
    let machine = format!(
        "{machine}, veth namespaces on one machine, 3 acceptors, 3 learners, saturated by {} proposers with {} values outstanding each, ring {} slots, durability memory, median of {} x {} ms",
        args.proposers,
        args.window,
        args.ring_slots,
        args.rounds,
        args.duration_ms
    );
    type Pick = fn(&mut Figures) -> &mut Vec<f64>;
    let metrics: [(&'static str, &'static str, Pick, &str); 4] = [
        (
            "latency_p50_us",
            "us",
            |f| &mut f.p50_us,
            "64 B, one outstanding, submit to deliver",
        ),
        (
            "latency_p99_us",
            "us",
            |f| &mut f.p99_us,
            "64 B, one outstanding, submit to deliver",
        ),
        (
            "delivered_per_s",
            "values/s",
            |f| &mut f.delivered_per_s,
            "64 B unbatched, saturated, every value in order at all learners, counted at the slowest",
        ),
        (
            "batched_commands_per_s",
            "commands/s",
            |f| &mut f.commands_per_s,
            "16 B commands packed into values, counted at the slowest of the learners",
        ),
    ];
    for (metric, unit, pick, what) in metrics {
        let mut median_of = |at: usize| {
            let values = pick(&mut figures[at]);
            (!values.is_empty()).then(|| median(values))
        };
        let values: Vec<Option<f64>> = (0..args.backends.len()).map(&mut median_of).collect();
        let udp = args.backends.iter().position(|b| *b == Dataplane::Udp);
        for (at, backend) in args.backends.iter().enumerate() {
            let Some(value) = values[at] else {
                output.skipped(&format!("{metric}, {backend}: every round was left out"));
                continue;
            };
            let udp = udp.filter(|udp| *udp != at).and_then(|udp| values[udp]);
            let baseline = udp.map(|value| Baseline {
                name: "the udp backend in the same run".into(),
                value,
            });
            let row = Row {
                bench: "agreement",
                metric,
                backend: backend.to_string(),
                variant: String::new(),
                value,
                unit,
                ratio: None,
                paper: None,
                baseline: None,
                conditions: format!("{what}; {machine}"),
            };
            output.row(&row.beside(baseline))?;
        }
    }
    let duplicates: u64 = figures.iter().map(|f| f.duplicates).sum();
    if duplicates > 0 {
        output.note(&format!(
            "{duplicates} values were decided twice and delivered once"
        ));
    }
    Ok(())
}
