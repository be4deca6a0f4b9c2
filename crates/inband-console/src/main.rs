//! `inband console`: a page that shows a cluster of `inband up`, and does what its command line does (docs/console.md).
//!
//! * [`cluster`] asks the supervisor, in JSON, so that it works for every system;
//! * [`topology`] reads what all systems' statuses have in common;
//! * [`watch`] compares one status with the next, and notes what changed;
//! * [`load`] generates reads and writes, and measures them;
//! * [`feed`] sends all of that to the pages that are open;
//! * [`server`] is the HTTP server.

// Its `println!` and the like do not panic when the reader has closed the pipe.
#[macro_use]
extern crate inband_host;

mod cluster;
mod feed;
mod keys;
mod load;
mod server;
mod topology;
mod watch;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Parser;
use inband_host::program;
use inband_host::signals::{StopSignals, SUPERVISED_ENV};
use inband_kv::access::Access;
use inband_resp::password::Password;

use cluster::Cluster;
use feed::Feed;
use load::Load;

/// How often Ctrl-C is looked for.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Show a cluster of `inband up` in a browser, generate load, and inject faults.
#[derive(Debug, Parser)]
#[command(name = "inband console", version)]
struct Cli {
    /// Directory of the cluster.
    #[arg(long, default_value = ".inband", value_name = "DIR")]
    data: PathBuf,
    /// Where the page is served; an address of loopback. Port 0: any free port.
    #[arg(long, default_value = "127.0.0.1:8390", value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// The password that the store requires, as for `inband up`.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// The authority of a store that requires TLS (DIR/authority/ca.pem).
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

impl Cli {
    fn access(&self) -> Result<Access> {
        let password = self.password_file.as_deref().map(Password::read);
        Ok(Access {
            password: password.transpose().context("--password-file")?,
            ca: self.tls_ca.clone(),
        })
    }
}

fn main() -> ExitCode {
    program::main("inband console", || run(&program::parse::<Cli>()))
}

fn run(cli: &Cli) -> Result<()> {
    ensure!(
        cli.listen.ip().is_loopback(),
        "--listen {}: the page kills hosts and reads keys, so it is served on loopback only; from another machine, use \
         ssh -L {}:127.0.0.1:{} HOST",
        cli.listen,
        cli.listen.port(),
        cli.listen.port()
    );
    let is_supervised = std::env::var_os(SUPERVISED_ENV).is_some();
    let signals = StopSignals::take_supervised()?;
    let cluster = Arc::new(Cluster::of(&cli.data, cli.access()?)?);
    let listener = TcpListener::bind(cli.listen).with_context(|| {
        format!(
            "cannot listen at {}; choose another with --listen",
            cli.listen
        )
    })?;
    let address = listener.local_addr()?;
    let feed = Arc::new(Feed::default());
    let load = Arc::new(Load::new(Arc::clone(&cluster), Arc::clone(&feed)));
    let watched = (Arc::clone(&cluster), Arc::clone(&feed));
    thread::Builder::new()
        .name("watch".into())
        .spawn(move || watch::watch(&watched.0, &watched.1))?;
    let token = server::new_token();
    server::serve(listener, &token, cluster, feed, load)?;
    println!(
        "console of {}: http://{address}/#{token}",
        cli.data.display()
    );
    if !is_supervised {
        println!("Ctrl-C stops it; the cluster goes on.");
    }
    while !signals.wait(SIGNAL_POLL_INTERVAL) {}
    Ok(())
}
