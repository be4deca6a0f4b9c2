//! `inband gate`: runs a gate between two segments, or shows what one has passed.

// Its `println!` and the like tolerate a reader that has gone.
#[macro_use]
extern crate inband_host;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, Parser};
use inband_ground::xdp::gate::{attach, check, mtu_differs, Port, Side};
use inband_ground::xdp::XdpError;
use inband_host::line_json::{call, Server, STATUS_TIMEOUT};
use inband_host::live_keys::LiveKeys;
use inband_host::notify::Notifier;
use inband_host::program;
use inband_host::signals::StopSignals;
use inband_host::state_dir::StateLock;
use inband_host::system_file;
use serde::{Deserialize, Serialize};

/// How often the process looks for signals, new keys, and the watchdog.
const TURN: Duration = Duration::from_millis(50);
/// Interval between checks that its interfaces still exist, and that nothing else forwards between them.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
const NAME: &str = "gate";

/// Connect a segment whose packets have tags of a key with one whose packets have none, such as that of a P4 switch
/// (docs/gate.md).
#[derive(Debug, Parser)]
#[command(name = "inband gate", version)]
enum Command {
    /// Pass frames between two interfaces, and check and replace tags, until Ctrl-C
    Up(Up),
    /// Show what the gate on this machine has passed and dropped
    Status(Data),
}

#[derive(Debug, Args)]
struct Data {
    /// Directory of its control socket
    #[arg(long, default_value = ".inband-gate", value_name = "DIR")]
    data: PathBuf,
}

impl Data {
    fn control_socket(&self) -> PathBuf {
        self.data.join("control.sock")
    }
}

#[derive(Debug, Args)]
struct Up {
    /// The interface to the hosts with the key
    #[arg(long, value_name = "NAME")]
    keyed: String,
    /// The interface to the segment without keys, to which only trusted devices may have access
    #[arg(long, value_name = "NAME")]
    keyless: String,
    /// Do not check the checksums of packets from the keyless segment: its switch changes packets and cannot make their
    /// checksum again (a Tofino)
    #[arg(long)]
    skip_keyless_checksum: bool,
    /// The cluster's packet keys (`inband key new` creates a file); read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    #[command(flatten)]
    data: Data,
}

/// What `status` reports of one side.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SideStatus {
    interface: String,
    counters: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Status {
    keyed: SideStatus,
    keyless: SideStatus,
    /// Ids of the accepted keys, and of the one that signs.
    keys: Vec<u16>,
    active_key: u16,
    /// Whether checksums of packets from the keyless segment are checked.
    checks_keyless: bool,
    /// What keeps frames from passing, if the gate goes on nevertheless.
    warning: Option<String>,
}

impl Up {
    fn keyless_side(&self) -> Side {
        match self.skip_keyless_checksum {
            true => Side::Unchecked,
            false => Side::Keyless,
        }
    }

    fn run(&self) -> Result<()> {
        let live = LiveKeys::load(Some(&self.key_file)).context("--key-file")?;
        let keys = live.keys().expect("a key file has keys");
        let signals = StopSignals::take()?.reloading(live.reading());
        let data = &self.data.data;
        let _lock = StateLock::take(data).context("--data")?;
        system_file::claim(data, NAME)?;
        let ports = Arc::new(attach(
            &self.keyed,
            &self.keyless,
            self.keyless_side(),
            &keys,
        )?);
        let _control = {
            let (ports, live) = (Arc::clone(&ports), live.clone());
            let side = self.keyless_side();
            let status = move |()| status(&ports, side, &live).map_err(|error| error.to_string());
            Server::start(&self.data.control_socket(), status, Err)?
        };
        println!(
            "gate between {} (with keys) and {} (without)",
            self.keyed, self.keyless
        );
        let mut notifier = Notifier::from_environment();
        notifier.ready("passes packets");
        let mut looked_at = Instant::now();
        let mut warned = None;
        while !signals.end(&mut notifier) {
            if let Some(keys) = live.take() {
                for port in ports.iter() {
                    port.set_keys(&keys)?;
                }
            }
            if looked_at.elapsed() >= LOOK_INTERVAL {
                looked_at = Instant::now();
                check(&ports)?;
                let warning = mtu_differs(&ports).map(|error| error.to_string());
                if let Some(warning) = warning.as_ref().filter(|_| warning != warned) {
                    eprintln!("inband gate: warning: {warning}");
                }
                warned = warning;
            }
            std::thread::sleep(TURN);
        }
        // The kernel must not go on with what the gate has dropped.
        Ok(check(&ports)?)
    }
}

fn status(ports: &[Port; 2], keyless_side: Side, live: &LiveKeys) -> Result<Status, XdpError> {
    let keys = live.keys().expect("a key file has keys");
    let [keyed, keyless] = ports.each_ref().map(|port| {
        let counters = port.counters()?.into_iter();
        Ok::<_, XdpError>(SideStatus {
            interface: port.interface().to_owned(),
            counters: counters.map(|(name, n)| (name.to_owned(), n)).collect(),
        })
    });
    Ok(Status {
        keyed: keyed?,
        keyless: keyless?,
        keys: keys.ids(),
        active_key: keys.active(),
        checks_keyless: keyless_side == Side::Keyless,
        warning: mtu_differs(ports).map(|error| error.to_string()),
    })
}

impl Data {
    fn print_status(&self) -> Result<()> {
        let answer: Result<Status, String> = call(&self.control_socket(), &(), STATUS_TIMEOUT)
            .context("does `inband gate up` run in this directory?")?;
        let status = answer.map_err(anyhow::Error::msg)?;
        println!("keys {:?}, signs with {}", status.keys, status.active_key);
        if let Some(warning) = status.warning {
            println!("warning: {warning}");
        }
        let of_keyless = match status.checks_keyless {
            true => "",
            false => ", checksums not checked",
        };
        for (label, side, note) in [
            ("keyed", status.keyed, ""),
            ("keyless", status.keyless, of_keyless),
        ] {
            println!("{label} side: {}{note}", side.interface);
            for (name, count) in side.counters {
                println!("  {name} {count}");
            }
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    program::main("inband gate", || match program::parse() {
        Command::Up(up) => up.run(),
        Command::Status(data) => data.print_status(),
    })
}
