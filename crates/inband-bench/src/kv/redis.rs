//! redis-benchmark, and an unreplicated Redis as a baseline.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};

use super::{KvArgs, Operation, Sample, Shape, Started};
use inband_cluster::client::Client;
use inband_cluster::scratch::{retry, ScratchDir, Server};
use inband_testing::port::{free_ports, loopback};

/// Fraction of a measurement's time for finding out how many requests to send: redis-benchmark takes a number of
/// requests, not a duration.
const CALIBRATION_SHARE: u32 = 8;
const CALIBRATION_REQUESTS_PER_OUTSTANDING: usize = 100;
const READY_LIMIT: Duration = Duration::from_secs(10);

/// Returns the version of a Redis program. The error says how to install it.
pub fn version(program: &str) -> Result<String> {
    let package = if program == "redis-server" {
        "redis-server"
    } else {
        "redis-tools"
    };
    let output = Command::new(program)
        .arg("--version")
        .output()
        .with_context(|| {
            format!("{program} cannot be run; install it: apt-get install {package}")
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    // "redis-benchmark 7.0.15" or "Redis server v=7.0.15 sha=..."
    let number = text.split_whitespace().find_map(|word| {
        let word = word.strip_prefix("v=").unwrap_or(word);
        word.starts_with(|c: char| c.is_ascii_digit())
            .then_some(word)
    });
    Ok(format!("Redis {}", number.unwrap_or("of unknown version")))
}

/// redis-benchmark against one address.
pub struct RedisBenchmark {
    address: SocketAddr,
}

impl RedisBenchmark {
    pub fn new(address: SocketAddr) -> RedisBenchmark {
        RedisBenchmark { address }
    }

    /// Runs for approximately the requested time.
    pub fn measure(&self, operation: Operation, shape: Shape, args: &KvArgs) -> Result<Sample> {
        let calibration_ms = args.duration_ms / u64::from(CALIBRATION_SHARE);
        let mut requests =
            shape.connections * shape.requests * CALIBRATION_REQUESTS_PER_OUTSTANDING;
        let warm_up = self.run(operation, shape, args, requests)?;
        // It also serves as the warm-up. If it was very short, repeat it.
        if requests as f64 / warm_up.per_s < calibration_ms as f64 / 1000.0 {
            requests = (warm_up.per_s * calibration_ms as f64 / 1000.0) as usize + 1;
        }
        let warm_up = self.run(operation, shape, args, requests)?;
        let requests = (warm_up.per_s * args.duration_ms as f64 / 1000.0) as usize;
        self.run(
            operation,
            shape,
            args,
            requests.max(shape.connections * shape.requests),
        )
    }

    fn run(
        &self,
        operation: Operation,
        shape: Shape,
        args: &KvArgs,
        requests: usize,
    ) -> Result<Sample> {
        let test = match operation {
            Operation::Set => "set",
            Operation::Get => "get",
        };
        let numbers = [
            ("-p", u64::from(self.address.port())),
            ("-c", shape.connections as u64),
            ("-P", shape.requests as u64),
            ("-d", args.value_len_bytes as u64),
            ("-r", args.keys),
            ("-n", requests as u64),
        ];
        let mut command = Command::new("redis-benchmark");
        command.args(["-h", &self.address.ip().to_string(), "-t", test, "--csv"]);
        for (option, number) in numbers {
            command.args([option, &number.to_string()]);
        }
        // Otherwise its latencies get coarser from 128 us on.
        command.args(["--precision", "3"]);
        let output = command
            .stdin(Stdio::null())
            .output()
            .context("running redis-benchmark")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        // It succeeds even if the server answered with errors, and prints these.
        ensure!(
            output.status.success() && !errors.contains("Error") && !text.contains("Error"),
            "redis-benchmark: {} {} {}",
            output.status,
            text.trim(),
            errors.trim()
        );
        parse_csv(&text)
    }
}

fn parse_csv(text: &str) -> Result<Sample> {
    let cells = |line: &str| -> Vec<String> {
        line.split(',')
            .map(|cell| cell.trim().trim_matches('"').to_owned())
            .collect()
    };
    let mut lines = text
        .lines()
        .skip_while(|line| !line.starts_with("\"test\""));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        bail!("redis-benchmark printed no figures: {:?}", text.trim());
    };
    let (names, values) = (cells(names), cells(values));
    let of = |name: &str| -> Result<f64> {
        let at = names.iter().position(|n| n == name);
        let value = at.and_then(|at| values.get(at)?.parse().ok());
        value.with_context(|| format!("redis-benchmark printed no {name}: {:?}", text.trim()))
    };
    Ok(Sample {
        per_s: of("rps")?,
        p50_us: of("p50_latency_ms")? * 1000.0,
        p99_us: of("p99_latency_ms")? * 1000.0,
        packing: None,
    })
}

/// A Redis without replication or persistence.
pub struct Alone {
    load: RedisBenchmark,
    // Dropped in this order.
    _server: Server,
    _dir: ScratchDir,
}

impl Alone {
    pub fn start() -> Result<Alone> {
        let dir = ScratchDir::create(&std::env::temp_dir(), "redis")?;
        let address = loopback(free_ports(1));
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
            .args([
                "--save",
                "",
                "--appendonly",
                "no",
                "--daemonize",
                "no",
                "--dir",
            ])
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("running redis-server")?;
        let mut server = Server::new("redis-server", child);
        retry(READY_LIMIT, || {
            server.check()?;
            let reply = Client::connect(address, READY_LIMIT)?.call(&["PING"])?;
            ensure!(reply == "+PONG", "PING answered {reply:?}");
            Ok(())
        })
        .context("redis-server does not serve")?;
        Ok(Alone {
            load: RedisBenchmark::new(address),
            _server: server,
            _dir: dir,
        })
    }
}

impl Started for Alone {
    fn measure(&mut self, operation: Operation, shape: Shape, args: &KvArgs) -> Result<Sample> {
        self.load.measure(operation, shape, args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_redis_benchmark_are_parsed() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
                    \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"SET\",\"61234.50\",\"0.5\",\"0.1\",\"0.119\",\"0.9\",\"1.207\",\"3.0\"\n";
        let sample = parse_csv(text).expect("good figures");
        assert_eq!(
            (sample.per_s, sample.p50_us, sample.p99_us),
            (61_234.5, 119.0, 1207.0)
        );
        let error = parse_csv("Could not connect")
            .expect_err("no figures")
            .to_string();
        assert!(error.contains("Could not connect"), "{error}");
    }
}
