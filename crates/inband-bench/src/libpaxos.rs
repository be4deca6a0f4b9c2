//! libpaxos 3, which is not in any registry: three replicas of its sample with votes in memory, and its sample client.
//! Measured only if its build directory is given.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use super::cpu::CpuClock;
use super::loopback;
use super::row::{median, progress, Baseline, Output, Row};
use inband_cluster::scratch::{ScratchDir, Server};
use inband_testing::port::free_ports;

const REPLICAS: u16 = 3;
const VALUE_LEN_BYTES: usize = 64;
/// The sample client's header in front of the bytes that `-v` asks for; it is part of the value.
const CLIENT_HEADER_LEN_BYTES: usize = 32;
/// Time limit until the replicas are connected and the client's first values are decided.
const READY_LIMIT: Duration = Duration::from_secs(15);
/// Output lines, one per second, to ignore at the start.
const WARM_UP_LINES: usize = 1;

/// The argument of `--peer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    dir: PathBuf,
}

impl std::str::FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Peer, String> {
        match text.split_once('=') {
            Some(("libpaxos", dir)) if !dir.is_empty() => Ok(Peer { dir: dir.into() }),
            _ => Err(format!(
                "{text:?} is not a peer; write libpaxos=DIR, DIR being where libpaxos 3 was built"
            )),
        }
    }
}

/// Values in flight, for libpaxos and for ours.
const OUTSTANDING: [usize; 2] = [1, 64];
/// The note if it is not measured.
const NOT_GIVEN: &str = "libpaxos: no registry has it; build libpaxos 3 and give its build \
                             directory: --peer libpaxos=DIR";

/// One second of the sample client.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Second {
    /// Values delivered per second.
    per_s: f64,
    /// Mean latency.
    mean_us: f64,
}

/// The results of a measurement.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// The median second.
    second: Second,
    /// CPU time of all processes per value.
    cpu_us_per_value: f64,
}

impl Peer {
    /// Returns the path of a program of the sample. The error names the paths tried.
    fn program(&self, name: &str) -> Result<PathBuf> {
        let places = [
            self.dir.join("sample").join(name),
            self.dir.join("build/sample").join(name),
            self.dir.join(name),
        ];
        let found = places.iter().find(|path| path.is_file());
        found.cloned().with_context(|| {
            format!(
                "--peer libpaxos={}: there is no program {name}; looked at {}; build it: cmake -S \
                 SOURCE -B DIR && cmake --build DIR",
                self.dir.display(),
                places.map(|path| path.display().to_string()).join(", ")
            )
        })
    }

    /// Fails if a program is missing.
    pub fn check(&self) -> Result<()> {
        self.program("replica")?;
        self.program("client").map(drop)
    }

    /// Values per second and their mean latency in microseconds, with this many values in flight.
    pub fn rate_and_mean(
        &self,
        outstanding: usize,
        value_len_bytes: usize,
        seconds: usize,
    ) -> Result<(f64, f64)> {
        let second = self.measure(outstanding, value_len_bytes, seconds)?.second;
        Ok((second.per_s, second.mean_us))
    }

    /// Starts it afresh, loads it with this many values in flight, and returns the median second.
    fn measure(
        &self,
        outstanding: usize,
        value_len_bytes: usize,
        seconds: usize,
    ) -> Result<Sample> {
        let filling_len_bytes = value_len_bytes
            .checked_sub(CLIENT_HEADER_LEN_BYTES)
            .with_context(|| {
                format!(
                    "libpaxos's client puts {CLIENT_HEADER_LEN_BYTES} bytes in front of each value: \
                     values of {value_len_bytes} bytes are too short"
                )
            })?;
        let dir = ScratchDir::create(&std::env::temp_dir(), "libpaxos")?;
        let config = dir.path().join("paxos.conf");
        let first_port = free_ports(REPLICAS);
        fs::write(&config, configuration(first_port))?;
        let replica = self.program("replica")?;
        let mut replicas = (0..REPLICAS)
            .map(|id| {
                let log = dir.path().join(format!("replica{id}.log"));
                start(&replica, &[&id.to_string(), path_text(&config)?], &log)
            })
            .collect::<Result<Vec<_>>>()?;
        // The client tries to connect only once, and prints zeros if it cannot.
        for port in first_port..first_port + REPLICAS {
            wait_until_listening(port, &mut replicas)?;
        }
        let client = self.program("client")?;
        // With a pipe its C library would buffer 4 KiB of output, which takes minutes.
        let terminal = nix::pty::openpty(None, None).context("opening a pseudo-terminal")?;
        let child = Command::new(&client)
            .arg(&config)
            .args(["-o", &outstanding.to_string()])
            .args(["-v", &filling_len_bytes.to_string()])
            .args(["-p", "0"])
            .stdin(Stdio::null())
            .stdout(terminal.slave)
            .stderr(Stdio::null())
            .spawn();
        let child = child.with_context(|| format!("running {}", client.display()))?;
        let client = Server::new("libpaxos client", child);
        let processes = replicas.iter().chain([&client]);
        let pids: Vec<(String, u32)> = processes.map(Server::named_pid).collect();
        let (lines, taken) = mpsc::channel();
        thread::spawn(move || {
            let output = BufReader::new(File::from(terminal.master));
            let lines_of_client = output.lines().map_while(Result::ok);
            // Exits when the receiver is dropped, or with the client.
            lines_of_client
                .take_while(|l| lines.send(l.clone()).is_ok())
                .count()
        });
        let deadline = Instant::now() + READY_LIMIT + Duration::from_secs(seconds as u64);
        let mut samples: Vec<Second> = Vec::new();
        let mut clock = None;
        while samples.len() < WARM_UP_LINES + seconds.max(1) {
            if samples.len() >= WARM_UP_LINES {
                clock.get_or_insert_with(|| CpuClock::start(&pids));
            }
            replicas.iter_mut().try_for_each(Server::check)?;
            let left = deadline.saturating_duration_since(Instant::now());
            match taken.recv_timeout(left.min(Duration::from_secs(1))) {
                Ok(line) => samples.extend(figures(&line).filter(|s| s.per_s > 0.0)),
                Err(mpsc::RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(_) => bail!(
                    "libpaxos gave {} seconds of figures, {seconds} were to come",
                    samples.len()
                ),
            }
        }
        let used = clock.context("libpaxos gave no figures")?.stop();
        let cores_busy: f64 = used.iter().map(|(_, used)| used.process).sum();
        samples.drain(..WARM_UP_LINES);
        let mean_per_s = samples.iter().map(|s| s.per_s).sum::<f64>() / samples.len() as f64;
        samples.sort_by(|a, b| a.per_s.total_cmp(&b.per_s));
        Ok(Sample {
            second: samples[(samples.len() - 1) / 2],
            cpu_us_per_value: cores_busy * 1e6 / mean_per_s,
        })
    }
}

/// Notes that it was not measured.
pub fn left_out(output: &mut Output) {
    output.skipped(NOT_GIVEN);
}

/// Measures ours on loopback, and libpaxos if given, in alternating rounds, and prints their rows.
pub fn rows(
    bench: &'static str,
    peer: Option<&Peer>,
    (rounds, duration): (usize, Duration),
    machine: &str,
    output: &mut Output,
) -> Result<()> {
    if peer.is_none() {
        left_out(output);
    }
    let seconds = duration.as_secs_f64().ceil() as usize;
    let conditions = format!(
        "{VALUE_LEN_BYTES} B values, memory storage, {} hosts with all roles and one that proposes, on \
         loopback, median of {rounds} x {seconds} s; {machine}",
        loopback::REPLICAS
    );
    for outstanding in OUTSTANDING {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            progress(&format!(
                "round {round}/{rounds}: loopback, {outstanding} outstanding"
            ));
            let seconds = Duration::from_secs(seconds as u64);
            ours.push(loopback::measure(outstanding, VALUE_LEN_BYTES, seconds)?);
            if let Some(peer) = peer {
                progress(&format!(
                    "round {round}/{rounds}: libpaxos, {outstanding} outstanding"
                ));
                let seconds = seconds.as_secs() as usize;
                theirs.push(peer.measure(outstanding, VALUE_LEN_BYTES, seconds)?);
            }
        }
        progress("");
        let median_of = |pick: fn(&Sample) -> f64| {
            let mut values: Vec<f64> = theirs.iter().map(pick).collect();
            (!values.is_empty()).then(|| median(&mut values))
        };
        let their_per_s = median_of(|s| s.second.per_s);
        let their_mean_us = median_of(|s| s.second.mean_us);
        let their_cpu_us = median_of(|s| s.cpu_us_per_value);
        let variant = format!("{outstanding} outstanding");
        let ours_of = |pick: fn(&loopback::Sample) -> f64| {
            median(&mut ours.iter().map(pick).collect::<Vec<f64>>())
        };
        let (per_s, p50_us) = (ours_of(|s| s.per_s), ours_of(|s| s.p50_us));
        let (mean_us, cpu_us) = (ours_of(|s| s.mean_us), ours_of(|s| s.cpu_us_per_value));
        for (metric, value, unit, name, theirs) in [
            ("loopback_per_s", per_s, "values/s", "libpaxos", their_per_s),
            (
                "loopback_p50_us",
                p50_us,
                "us",
                "libpaxos' mean",
                their_mean_us,
            ),
            ("loopback_mean_us", mean_us, "us", "libpaxos", their_mean_us),
            (
                "loopback_cpu_us_per_value",
                cpu_us,
                "us",
                "libpaxos",
                their_cpu_us,
            ),
        ] {
            let baseline = theirs.map(|value| Baseline {
                name: format!("{name} in the same run"),
                value,
            });
            let row = Row::new(
                (bench, metric),
                "udp",
                &*variant,
                (value, unit),
                &*conditions,
            );
            output.row(&row.beside(baseline))?;
        }
        for (metric, unit, value) in [
            ("libpaxos_per_s", "values/s", their_per_s),
            ("libpaxos_mean_us", "us", their_mean_us),
        ] {
            if let Some(value) = value {
                let metric = (bench, metric);
                let row = Row::new(metric, "libpaxos", &*variant, (value, unit), &*conditions);
                output.row(&row)?;
            }
        }
    }
    Ok(())
}

fn start(program: &Path, args: &[&str], log: &Path) -> Result<Server> {
    let log = File::create(log)?;
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("running {}", program.display()))?;
    Ok(Server::new(
        format!("libpaxos {}", program.display()),
        child,
    ))
}

fn wait_until_listening(port: u16, replicas: &mut [Server]) -> Result<()> {
    let deadline = Instant::now() + READY_LIMIT;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        replicas.iter_mut().try_for_each(Server::check)?;
        ensure!(
            Instant::now() < deadline,
            "no replica of libpaxos listens on port {port} after {READY_LIMIT:?}"
        );
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn path_text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not text")
}

fn configuration(first_port: u16) -> String {
    let replicas: String = (0..REPLICAS)
        .map(|id| format!("replica {id} 127.0.0.1 {}\n", first_port + id))
        .collect();
    replicas + "verbosity error\ntcp-nodelay yes\nstorage-backend memory\n"
}

/// Parses a line such as `20123 value/sec, 12.34 Mbps, latency min 61 us max 812 us avg 150 us`.
fn figures(line: &str) -> Option<Second> {
    let number_before = |unit: &str| {
        let (before, _) = line.split_once(unit)?;
        before.split_whitespace().last()?.parse::<f64>().ok()
    };
    let (_, mean) = line.split_once("avg ")?;
    Some(Second {
        per_s: number_before(" value/sec")?,
        mean_us: mean.split_whitespace().next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn lines_of_the_sample_client_are_read() {
        let line = "20123 value/sec, 12.34 Mbps, latency min 61 us max 812 us avg 150 us";
        let expected = Second {
            per_s: 20123.0,
            mean_us: 150.0,
        };
        assert_eq!(figures(line), Some(expected));
        assert_eq!(figures("Connected to proposer"), None);
    }

    #[test]
    fn a_peer_that_is_not_given_is_left_out_aloud() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut output = Output::new(true, dir.path().into());
        left_out(&mut output);
        assert!(output
            .notes()
            .iter()
            .any(|n| n.starts_with("SKIPPED libpaxos")));
    }

    #[test]
    fn a_peer_is_named_with_its_directory() {
        assert!("libpaxos=/opt/libpaxos".parse::<Peer>().is_ok());
        for wrong in ["libpaxos", "libpaxos=", "zookeeper=/opt"] {
            let error = wrong.parse::<Peer>().expect_err("no peer");
            assert!(error.contains("libpaxos=DIR"), "{error}");
        }
    }

    #[test]
    fn what_is_not_built_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let peer = Peer {
            dir: dir.path().into(),
        };
        let error = peer.check().expect_err("nothing there").to_string();
        assert!(
            error.contains("no program replica") && error.contains("cmake"),
            "{error}"
        );
    }

    #[test]
    fn replicas_and_client_are_run_with_a_configuration() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, script: &str| {
            let path = dir.path().join(name);
            fs::write(&path, script).expect("a script");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        };
        // It takes a while to listen on the configured port.
        write(
            "replica",
            "#!/bin/sh\nport=$(sed -n \"s/^replica $1 127.0.0.1 //p\" \"$2\")\nsleep 0.3\nexec python3 -m \
             http.server --bind 127.0.0.1 \"$port\"\n",
        );
        // Its figures are the number of replicas in the configuration, multiplied by the values in flight, and the
        // length that it is to fill. Like the real client, it flushes each line only on a terminal, and prints nothing if
        // it cannot connect.
        write(
            "client",
            "#!/bin/sh\n[ -t 1 ] || exec sleep 60\nport=$(sed -n 's/^replica 0 127.0.0.1 //p' \"$1\")\npython3 \
             -c \"import socket; socket.create_connection(('127.0.0.1', $port))\" || exec sleep 60\nn=$(grep -c ^replica \"$1\")\nwhile true; do echo \
             \"$((n * $3)) value/sec, 1.00 Mbps, latency min 1 us max 2 us avg $5 us\"; sleep 0.01; \
             done\n",
        );
        let peer = Peer {
            dir: dir.path().into(),
        };
        peer.check().expect("everything there");
        let second = peer.measure(5, 96, 2).expect("figures").second;
        assert_eq!((second.per_s, second.mean_us), (15.0, 64.0));
        let error = peer.measure(5, 31, 1).expect_err("no room for the header");
        assert!(error.to_string().contains("31 bytes"), "{error}");
    }
}
