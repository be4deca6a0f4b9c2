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
use inband_netpaxos::status::{log_at, socket_of};
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
                Outcome::Delivered(instance) => {
                    println!("{instance} {}", escaped(value.as_bytes()));
                }
                Outcome::Unknown => {
                    unknown += 1;
                    println!("unknown {}", escaped(value.as_bytes()));
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

/// Returns a value as one line: what is not printable text is escaped as in Rust, `\\n`, `\\u{1b}` or `\\xff`.
fn escaped(value: &[u8]) -> String {
    let mut line = String::new();
    for part in value.utf8_chunks() {
        for c in part.valid().chars() {
            match c.is_control() || c == '\\' {
                true => line.extend(c.escape_debug()),
                false => line.push(c),
            }
        }
        line.extend(part.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    line
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
    /// Directory of the learner, if `inband up` did not start it
    #[arg(long, value_name = "DIR", conflicts_with_all = ["learner", "data"])]
    learner_data: Option<PathBuf>,
    /// Keep following the log until Ctrl-C
    #[arg(long)]
    follow: bool,
    /// Directory of the cluster
    #[arg(long, default_value = DATA, value_name = "DIR")]
    data: PathBuf,
}

impl DeliverArgs {
    /// Returns the control socket of the learner.
    fn socket(&self) -> Result<PathBuf> {
        if let Some(dir) = &self.learner_data {
            return Ok(socket_of(dir));
        }
        let cluster = Cluster::load(&self.data)?;
        ensure!(
            !cluster.sockets.is_empty(),
            "--data {}: this cluster was not started by `inband up`; give the learner's directory on this machine with --learner-data",
            self.data.display()
        );
        let name = format!("learner/{}", self.learner);
        let socket = cluster.sockets.get(&name).cloned();
        socket.with_context(|| {
            format!(
                "--learner {}: the cluster has {}",
                self.learner,
                cluster.learners.len()
            )
        })
    }

    pub fn run(&self) -> Result<()> {
        let socket = self.socket()?;
        let mut from = self.from;
        loop {
            let (log, next) = log_at(&socket, from)?;
            for (instance, value) in &log {
                println!("{instance} {}", escaped(value));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_one_line_of_text() {
        for (value, line) in [
            (&b"plain text"[..], "plain text"),
            ("\u{fc}ber".as_bytes(), "\u{fc}ber"),
            (b"two\nlines\t\x1b[2J", r"two\nlines\t\u{1b}[2J"),
            (b"back\\slash", r"back\\slash"),
            (b"\xffend", r"\xffend"),
        ] {
            assert_eq!(escaped(value), line);
        }
    }
}
