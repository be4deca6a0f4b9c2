//! `inband netpaxos submit` and `deliver`.

use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_netpaxos::client::Client;
use inband_netpaxos::cluster::{Cluster, DATA};
use inband_netpaxos::proposer::Outcome;
use inband_netpaxos::status::log_at;
use inband_netpaxos::VALUE_LEN_MAX_BYTES;

/// How often a followed log is polled.
const FOLLOW_EVERY: Duration = Duration::from_millis(50);

/// Options of `submit`.
#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// Values to append, each in a request of its own
    #[arg(required = true, value_name = "VALUE")]
    values: Vec<String>,
    /// Directory of the cluster
    #[arg(long, default_value = DATA, value_name = "DIR")]
    data: PathBuf,
    /// How long to wait for all answers
    #[arg(long, default_value_t = 5_000, value_name = "MS")]
    timeout_ms: u64,
}

impl SubmitArgs {
    pub fn run(&self) -> Result<()> {
        for value in &self.values {
            ensure!(
                value.len() <= VALUE_LEN_MAX_BYTES,
                "a value of {} bytes: the limit is {VALUE_LEN_MAX_BYTES}",
                value.len()
            );
        }
        let timeout = Duration::from_millis(self.timeout_ms);
        let mut client = Client::connect(&Cluster::load(&self.data)?, timeout)?;
        let values = self.values.iter().map(String::as_bytes);
        let mut unknown = 0;
        for (value, outcome) in self.values.iter().zip(client.submit_all(values, timeout)?) {
            match outcome {
                Outcome::Delivered(instance) => println!("{instance} {value}"),
                Outcome::Unknown => {
                    unknown += 1;
                    println!("unknown {value}");
                }
            }
        }
        ensure!(
            unknown == 0,
            "{unknown} requests were not answered within {} ms: they may be in the log, now or later; see `inband status`",
            self.timeout_ms
        );
        Ok(())
    }
}

/// Options of `deliver`.
#[derive(Debug, Args)]
pub struct DeliverArgs {
    /// The first instance to print
    #[arg(long, default_value_t = 1, value_name = "INSTANCE")]
    from: u64,
    /// The learner whose log to print
    #[arg(long, default_value_t = 1, value_name = "N")]
    learner: u8,
    /// Keep following the log until Ctrl-C
    #[arg(long)]
    follow: bool,
    /// Directory of the cluster
    #[arg(long, default_value = DATA, value_name = "DIR")]
    data: PathBuf,
}

impl DeliverArgs {
    pub fn run(&self) -> Result<()> {
        let cluster = Cluster::load(&self.data)?;
        let name = format!("learner/{}", self.learner);
        let socket = cluster.sockets.get(&name);
        let socket = socket.with_context(|| {
            format!(
                "--learner {}: the cluster has {}",
                self.learner,
                cluster.learners.len()
            )
        })?;
        let mut from = self.from;
        loop {
            let (log, next) = log_at(socket, from)?;
            for (instance, value) in &log {
                println!("{instance} {}", String::from_utf8_lossy(value));
            }
            let is_all = next == from || log.is_empty();
            from = next;
            if is_all && !self.follow {
                return Ok(());
            }
            if is_all {
                std::io::stdout().flush()?;
                thread::sleep(FOLLOW_EVERY);
            }
        }
    }
}
