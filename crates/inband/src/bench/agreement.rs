//! `inband bench agreement`: submit to deliver over real packets, in a lab of namespaces: a leader,
//! three acceptors, three learners, one proposer on the host of the first learner.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use inband_lab::process::ProcessSpec;
use inband_lab::{Lab, LabSpec};
use inband_paxos::config::{
    ClusterConfig, Config, Dataplane, Durability, HostConfig, Limits, NodeConfig, Role, Timing,
    DEFAULT_PORT, DEFAULT_RING_SLOTS,
};

use super::node::{Load, Report};
use super::row::{machine, median, progress, Baseline, Output, Row};

/// Options of `inband bench agreement`.
#[derive(Debug, Args)]
pub struct AgreementArgs {
    /// Rounds of each measurement; the median is reported.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Instead: what a whole instance costs in the kernel, fed by live frames, beside roles without a
    /// protocol and plain forwarding on the same links. Only --rounds applies.
    #[arg(long)]
    pub capacity: bool,
    /// Time counted in each round.
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
    /// Values undecided at once when saturated.
    #[arg(long, default_value_t = 64)]
    window: usize,
    /// Learners' hosts that also propose when saturated, each with a window of its own.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=3))]
    proposers: u8,
    /// Slots of the acceptors' rings.
    #[arg(long, default_value_t = DEFAULT_RING_SLOTS)]
    ring_slots: u32,
    /// Backends to measure.
    #[arg(long, value_delimiter = ',', default_values_t = [Dataplane::Xdp, Dataplane::Udp])]
    backends: Vec<Dataplane>,
    /// Keep the hosts' logs in this directory.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

const ACCEPTORS: usize = 3;
const LEARNERS: usize = 3;

/// Host names in the order of their addresses.
fn hosts() -> Vec<(String, Role)> {
    let mut hosts = vec![("leader".to_owned(), Role::Leader)];
    hosts.extend((0..ACCEPTORS).map(|i| (format!("acceptor/{i}"), Role::Acceptor)));
    hosts.extend((0..LEARNERS).map(|i| (format!("replica/{i}"), Role::Replica)));
    hosts
}

struct Bed<'a> {
    lab: &'a Lab,
    dir: &'a Path,
    ring_slots: u32,
    program: PathBuf,
}

impl Bed<'_> {
    fn write_config(&self, run: &Path, at: usize, dataplane: Dataplane) -> Result<PathBuf> {
        let names = hosts();
        let nodes: Vec<NodeConfig> = names
            .iter()
            .zip(self.lab.hosts())
            .enumerate()
            .map(|(i, ((name, role), host))| NodeConfig {
                id: i as u8 + 1,
                name: name.clone(),
                address: std::net::SocketAddrV4::new(host.address(), DEFAULT_PORT),
                roles: vec![*role],
            })
            .collect();
        let state_dir = run.join(names[at].0.replace('/', "-"));
        fs::create_dir_all(&state_dir)?;
        let config = Config {
            cluster: ClusterConfig {
                name: "bench".into(),
                epoch: 1,
                first_instances: vec![1],
                partitions: 1,
                leader_balance: true,
                ring_slots: self.ring_slots,
                port: DEFAULT_PORT,
                durability: Durability::Memory,
            },
            host: HostConfig {
                node: at as u8 + 1,
                data_dirs: vec![state_dir.join("data")],
                control: state_dir.join("control.sock"),
                state_dir: state_dir.clone(),
                dataplane,
                interface: Some(inband_lab::lab::HOST_INTERFACE.into()),
                metrics: None,
                resp: Vec::new(),
                limits: Limits::default(),
                timing: Timing::default(),
            },
            nodes,
        };
        let path = state_dir.join("config.toml");
        fs::write(&path, config.to_toml())?;
        Ok(path)
    }

    /// One round: fresh roles, fresh state, one report a learner.
    fn round(
        &self,
        number: usize,
        dataplane: Dataplane,
        load: Load,
        command_len_bytes: usize,
        args: &AgreementArgs,
    ) -> Result<Vec<Report>> {
        let run = self.dir.join(format!("{number}"));
        let mut running = Vec::new();
        let mut learners = Vec::new();
        for (i, ((name, role), host)) in hosts().iter().zip(self.lab.hosts()).enumerate() {
            let config = self.write_config(&run, i, dataplane)?;
            let log = fs::File::create(config.with_file_name("log"))?;
            let spec = ProcessSpec::new(&self.program);
            if *role == Role::Replica {
                let proposers = if load == Load::Latency {
                    1
                } else {
                    usize::from(args.proposers)
                };
                let load = if learners.len() < proposers {
                    load
                } else {
                    Load::Learn
                };
                let load = serde_json::to_string(&load)?;
                let mut spec = spec.args([
                    "bench-node".into(),
                    "--config".into(),
                    config.clone().into_os_string(),
                    "--dataplane".into(),
                    dataplane.to_string().into(),
                    "--load".into(),
                    load.trim_matches('"').into(),
                    "--command-len-bytes".into(),
                    command_len_bytes.to_string().into(),
                    "--window".into(),
                    args.window.to_string().into(),
                    "--duration-ms".into(),
                    args.duration_ms.to_string().into(),
                ]);
                spec.log = Some(log);
                learners.push((name.clone(), config, host.spawn(&spec)?));
            } else {
                let mut spec =
                    spec.args(["run".into(), "--config".into(), config.into_os_string()]);
                spec.log = Some(log);
                running.push(host.spawn(&spec)?);
            }
        }
        let limit = Duration::from_millis(args.duration_ms) + Duration::from_secs(20);
        let mut reports = Vec::new();
        for (name, config, mut child) in learners {
            ensure!(
                child.wait_for_exit(limit),
                "{name} did not finish within {limit:?}"
            );
            let text = fs::read_to_string(config.with_file_name("log"))?;
            let Some(line) = text.lines().find(|l| l.starts_with('{')) else {
                bail!("{name} reported nothing; it said: {}", text.trim());
            };
            reports.push(serde_json::from_str(line).with_context(|| format!("{name}: {line}"))?);
        }
        check_agreement(&reports)?;
        Ok(reports)
    }
}

/// All learners delivered the same values in the same order, each once.
fn check_agreement(reports: &[Report]) -> Result<()> {
    let first = reports.first().context("no learners")?;
    for report in reports {
        ensure!(report.delivered > 0, "a learner delivered nothing");
        ensure!(
            (report.checksum, report.last_instance) == (first.checksum, first.last_instance),
            "learners disagree: instance {} checksum {:x}, and instance {} checksum {:x}",
            first.last_instance,
            first.checksum,
            report.last_instance,
            report.checksum
        );
    }
    Ok(())
}

#[derive(Default)]
struct Figures {
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    delivered_per_s: Vec<f64>,
    commands_per_s: Vec<f64>,
    duplicates: u64,
}

/// Run the benchmark and print its rows.
pub fn run(args: &AgreementArgs, output: &mut Output) -> Result<()> {
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    inband_lab::preflight::check_lab().context("this benchmark needs a lab of namespaces")?;
    let dir = match &args.keep {
        Some(dir) => dir.clone(),
        None => std::env::temp_dir().join(format!("inband-bench-{}", std::process::id())),
    };
    let result = measure(args, &dir, output);
    if args.keep.is_none() {
        let _ = fs::remove_dir_all(&dir);
    }
    result
}

fn measure(args: &AgreementArgs, dir: &Path, output: &mut Output) -> Result<()> {
    let machine = machine();
    let lab = Lab::create(&LabSpec {
        name: format!("bench{}", std::process::id()),
        hosts: hosts().into_iter().map(|h| h.0).collect(),
        seed: 1,
    })?;
    let program = std::env::current_exe()?;
    let bed = Bed {
        lab: &lab,
        dir,
        ring_slots: args.ring_slots,
        program,
    };
    let mut figures: Vec<Figures> = args.backends.iter().map(|_| Figures::default()).collect();
    let mut number = 0;
    for round in 0..args.rounds {
        for (at, backend) in args.backends.iter().enumerate() {
            for (load, command_len_bytes) in [
                (Load::Latency, 64),
                (Load::Saturate, 64),
                (Load::Batched, 16),
            ] {
                number += 1;
                progress(&format!(
                    "round {}/{}: {backend}, {load:?}",
                    round + 1,
                    args.rounds
                ));
                let reports = bed.round(number, *backend, load, command_len_bytes, args)?;
                let figures = &mut figures[at];
                let per_s = |count: u64| count as f64 * 1e6 / reports[0].duration_us as f64;
                let slowest = |of: fn(&Report) -> u64| reports.iter().map(of).min().unwrap_or(0);
                match load {
                    Load::Latency => {
                        figures.p50_us.push(reports[0].p50_ns as f64 / 1000.0);
                        figures.p99_us.push(reports[0].p99_ns as f64 / 1000.0);
                    }
                    Load::Saturate => {
                        figures
                            .delivered_per_s
                            .push(per_s(slowest(|r| r.delivered)));
                        figures.duplicates += reports[0].duplicates;
                    }
                    Load::Batched => figures.commands_per_s.push(per_s(slowest(|r| r.commands))),
                    Load::Learn => {}
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
    }
    progress("");
    print_rows(args, &machine, &mut figures, output)
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
        let values: Vec<f64> = figures.iter_mut().map(|f| median(pick(f))).collect();
        let udp = args.backends.iter().position(|b| *b == Dataplane::Udp);
        for (at, backend) in args.backends.iter().enumerate() {
            let baseline = udp.filter(|udp| *udp != at).map(|udp| Baseline {
                name: "the udp backend in the same run".into(),
                value: values[udp],
            });
            let row = Row {
                bench: "agreement",
                metric,
                backend: backend.to_string(),
                value: values[at],
                unit,
                ratio: None,
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
