//! Three etcd nodes, and `etcd-load` (bench/etcd-load) as the load generator.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use serde::Deserialize;

use super::{KvArgs, Operation, Sample, Shape, Started};
use inband_cluster::scratch::{retry, ScratchDir, Server};
use inband_testing::port::{free_ports, loopback};

const NODES: u16 = 3;
/// etcd syncs its log; a disk would be even slower.
const MEMORY_DIR: &str = "/dev/shm";
const READY_LIMIT: Duration = Duration::from_secs(20);
/// The warm-up takes this fraction of a measurement's time.
const WARM_UP_SHARE: u64 = 4;

/// Returns the load generator, built next to this program.
fn load_program() -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("etcd-load");
    ensure!(
        path.exists(),
        "{} is missing; build it: cargo build --release -p etcd-load",
        path.display()
    );
    Ok(path)
}

/// etcd's version string. The error says what is missing.
pub fn version() -> Result<String> {
    let output = Command::new("etcd")
        .arg("--version")
        .output()
        .context("etcd cannot be run; install it: apt-get install etcd-server")?;
    load_program()?;
    ensure!(
        Path::new(MEMORY_DIR).is_dir(),
        "no tmpfs at {MEMORY_DIR} for its data"
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text
        .lines()
        .find_map(|line| line.strip_prefix("etcd Version: "));
    Ok(format!("etcd {}", number.unwrap_or("of unknown version")))
}

/// The output of etcd-load.
#[derive(Deserialize)]
struct Report {
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
}

/// A running cluster with its data in memory.
pub struct Cluster {
    load: PathBuf,
    endpoints: String,
    // Dropped in this order.
    _nodes: Vec<Server>,
    _dir: ScratchDir,
}

impl Cluster {
    pub fn start() -> Result<Cluster> {
        let dir = ScratchDir::create(Path::new(MEMORY_DIR), "etcd")?;
        let first = free_ports(2 * NODES);
        let client = |node: u16| loopback(first + node);
        let peer = |node: u16| format!("http://{}", loopback(first + NODES + node));
        let members: Vec<String> = (0..NODES)
            .map(|node| format!("node{node}={}", peer(node)))
            .collect();
        let mut nodes = Vec::new();
        for node in 0..NODES {
            let name = format!("node{node}");
            let client_url = format!("http://{}", client(node));
            let log = File::create(dir.path().join(format!("{name}.log")))?;
            let child = Command::new("etcd")
                .args(["--name", &name, "--initial-cluster", &members.join(",")])
                .args(["--listen-client-urls", &client_url])
                .args(["--advertise-client-urls", &client_url])
                .args(["--listen-peer-urls", &peer(node)])
                .args(["--initial-advertise-peer-urls", &peer(node)])
                .args(["--initial-cluster-state", "new"])
                .args(["--logger", "zap", "--log-level", "error", "--data-dir"])
                .arg(dir.path().join(&name))
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()
                .context("running etcd")?;
            nodes.push(Server::new(format!("etcd {name}"), child));
        }
        let endpoints: Vec<String> = (0..NODES).map(|node| client(node).to_string()).collect();
        let mut cluster = Cluster {
            load: load_program()?,
            endpoints: endpoints.join(","),
            _nodes: nodes,
            _dir: dir,
        };
        // Requests fail until a leader is elected.
        let ready = retry(READY_LIMIT, || {
            cluster._nodes.iter_mut().try_for_each(Server::check)?;
            cluster.run(
                Operation::Set,
                Shape {
                    connections: 1,
                    requests: 1,
                },
                64,
                1,
                0,
                1,
            )
        });
        ready.with_context(|| format!("etcd does not serve; it said: {}", cluster.said()))?;
        Ok(cluster)
    }

    /// Returns the last line of each node's log.
    fn said(&self) -> String {
        let log = |node| fs::read_to_string(self._dir.path().join(format!("node{node}.log")));
        let lines: Vec<String> = (0..NODES)
            .filter_map(|node| log(node).ok()?.lines().last().map(str::to_owned))
            .collect();
        lines.join("; ")
    }

    /// Applies a load for this long; counting begins after the warm-up.
    pub fn run(
        &self,
        operation: Operation,
        shape: Shape,
        value_len_bytes: usize,
        keys: u64,
        warm_up_ms: u64,
        duration_ms: u64,
    ) -> Result<Sample> {
        let operation = match operation {
            Operation::Set => "put",
            Operation::Get => "range",
        };
        let numbers = [
            ("--connections", shape.connections as u64),
            ("--streams", shape.requests as u64),
            ("--value-len-bytes", value_len_bytes as u64),
            ("--keys", keys),
            ("--warm-up-ms", warm_up_ms),
            ("--duration-ms", duration_ms),
        ];
        let mut command = Command::new(&self.load);
        command.args(["--endpoints", &self.endpoints, "--operation", operation]);
        for (option, number) in numbers {
            command.args([option, &number.to_string()]);
        }
        let output = command
            .stdin(Stdio::null())
            .output()
            .context("running etcd-load")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let report: Report = serde_json::from_str(text.trim())
            .with_context(|| format!("etcd-load printed {:?}", text.trim()))?;
        Ok(Sample {
            per_s: report.per_s,
            p50_us: report.p50_us,
            p99_us: report.p99_us,
            packing: None,
        })
    }
}

impl Started for Cluster {
    fn measure(&mut self, operation: Operation, shape: Shape, args: &KvArgs) -> Result<Sample> {
        let warm_up_ms = args.duration_ms / WARM_UP_SHARE;
        self.run(
            operation,
            shape,
            args.value_len_bytes,
            args.keys,
            warm_up_ms,
            args.duration_ms,
        )
    }
}
