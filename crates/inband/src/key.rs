//! `inband key`: manages the keys that authenticate packets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use clap::{Args, Subcommand};
use inband_cluster::paxos::cluster_dir::ClusterDir;
use inband_cluster::paxos::control::{self, KeyStatus};
use inband_cluster::paxos::supervisor::remote::{self, SupervisorReply, SupervisorRequest};
use inband_cluster::paxos::ClusterStatus;
use inband_host::key_file::{ChangeError, KeyFile};
use inband_paxos::config::Config;

use crate::up::DEFAULT_DATA;
use inband_cluster::falcon::status::ClusterStatus as FalconStatus;
use inband_cluster::falcon::{self, Falcon};
use inband_cluster::flair::cluster::{Reply, Request};
use inband_cluster::flair::status::ClusterStatus as FlairStatus;
use inband_cluster::flair::Flair;
use inband_cluster::keys::{self, dropped};
use inband_cluster::{socket, supervisor};

/// Time limit for a host to answer.
const RELOAD_LIMIT: Duration = Duration::from_secs(10);
/// The commands of `inband key`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Replace the key of a running cluster of `inband up`, `inband up flair` or `inband up falcon` with a new one.
    Rotate {
        /// Directory of the cluster.
        #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR")]
        data: PathBuf,
    },
    /// List the keys and which of them are in use; never the keys themselves.
    List(ListArgs),
    /// Create a key file for a new cluster of `inband run` hosts, to be copied to all of them.
    New {
        /// The file to create.
        file: PathBuf,
    },
    /// Add a key to a file, to be accepted but not yet used for sending.
    Add {
        /// The file.
        file: PathBuf,
    },
    /// Set the key in a file that is used for sending.
    Activate {
        /// The file.
        file: PathBuf,
        /// The key's id.
        id: u16,
    },
    /// Remove all keys but the active one from a file.
    Drop {
        /// The file.
        file: PathBuf,
    },
    /// Make a running host reload its key file.
    Reload {
        /// The host's configuration.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

/// Options of `inband key list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Directory of a cluster of `inband up`, `inband up flair` or `inband up falcon`.
    #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
    /// A key file instead.
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    file: Option<PathBuf>,
}

pub fn key(command: &KeyCommand) -> Result<()> {
    match command {
        KeyCommand::Rotate { data } => rotate(data),
        KeyCommand::List(args) => list(args),
        KeyCommand::New { file } => {
            ensure!(
                !file.exists(),
                "{} exists; a cluster whose digest key is gone cannot read its values",
                file.display()
            );
            let keys = KeyFile::generate().context("taking random bytes")?;
            keys.save(file)?;
            println!(
                "{}: {}; copy it to every host, with mode 0600, and name it as cluster.key_file",
                file.display(),
                in_words(&keys)
            );
            Ok(())
        }
        KeyCommand::Add { file } => change(file, |keys| keys.add().map(drop)),
        KeyCommand::Activate { file, id } => change(file, |keys| keys.activate(*id)),
        KeyCommand::Drop { file } => change(file, |keys| {
            keys.drop_others();
            Ok(())
        }),
        KeyCommand::Reload { config } => reload(config),
    }
}

fn in_words(keys: &KeyFile) -> String {
    status_in_words(&KeyStatus {
        active: keys.active(),
        accepted: keys.keys().ids(),
    })
}

fn status_in_words(keys: &KeyStatus) -> String {
    let accepted: Vec<String> = keys.accepted.iter().map(u16::to_string).collect();
    format!(
        "sends with key {}, accepts {}",
        keys.active,
        accepted.join(", ")
    )
}

fn change(file: &Path, change: impl FnOnce(&mut KeyFile) -> Result<(), ChangeError>) -> Result<()> {
    let mut keys = KeyFile::load(file)?;
    change(&mut keys)?;
    keys.save(file)?;
    println!(
        "{}: {}; copy it to every host and run `inband key reload` there, before the next step",
        file.display(),
        in_words(&keys)
    );
    Ok(())
}

fn reload(config: &Path) -> Result<()> {
    let config = Config::load(config)?;
    let this = &config.this().name;
    match control::reload_keys(&config.host.control, RELOAD_LIMIT)? {
        Some(keys) => println!("{this}: {}", status_in_words(&keys)),
        None => bail!("{this} runs without keys; cluster.key_file takes effect at its start"),
    }
    Ok(())
}

fn rotate(data: &Path) -> Result<()> {
    let key = if supervisor::is_in::<Flair>(data) {
        let Reply::KeyRotated { id } = socket::request::<Flair>(data, Request::RotateKey)?;
        format!("key {id}")
    } else if supervisor::is_in::<Falcon>(data) {
        match socket::request::<Falcon>(data, falcon::Request::RotateKey)? {
            falcon::Reply::KeyRotated { id } => format!("key {id}"),
            other => socket::unexpected(&other)?,
        }
    } else {
        match remote::ask(data, &SupervisorRequest::RotateKey)? {
            SupervisorReply::Done { host } => host,
            other => socket::unexpected(&other)?,
        }
    };
    println!("all hosts send with {key} and accept no other");
    Ok(())
}

fn list(args: &ListArgs) -> Result<()> {
    if let Some(file) = &args.file {
        println!("{}: {}", file.display(), in_words(&KeyFile::load(file)?));
        return Ok(());
    }
    let hosts = if supervisor::is_in::<Flair>(&args.data) {
        said_by_flair(socket::status::<Flair>(&args.data)?)
    } else if supervisor::is_in::<Falcon>(&args.data) {
        said_by_falcon(socket::status::<Falcon>(&args.data)?)
    } else {
        said_by(remote::status(&args.data)?)
    };
    let mut answers = hosts.iter().filter_map(|host| host.said.as_ref());
    if answers.all(|(keys, _)| keys.is_none()) {
        bail!(
            "the cluster in {} was made without a key",
            args.data.display()
        );
    }
    let path = ClusterDir::key_file_in(&args.data);
    println!("{}: {}", path.display(), in_words(&KeyFile::load(&path)?));
    for HostKeys { name, said } in &hosts {
        let (keys, dropped) = match said {
            Some((keys, counters)) => (
                keys.as_ref().map_or("no keys".into(), status_in_words),
                dropped(counters),
            ),
            None => (
                "does not answer; it reads the file when it starts".into(),
                String::new(),
            ),
        };
        println!("  {name:<12} {keys}{dropped}");
    }
    Ok(())
}

/// A host of any kind of cluster.
struct HostKeys {
    name: String,
    /// Its keys and counters, if it answers.
    said: Option<(Option<KeyStatus>, BTreeMap<String, u64>)>,
}

fn said_by(status: ClusterStatus) -> Vec<HostKeys> {
    let hosts = status.hosts.into_iter().map(|host| HostKeys {
        name: host.name,
        said: host.status.map(|said| (said.keys, said.counters)),
    });
    hosts.collect()
}

fn said_by_flair(status: FlairStatus) -> Vec<HostKeys> {
    let hosts = status.hosts.into_iter().map(|host| HostKeys {
        name: host.name,
        said: host.status.map(|said| (said.keys, said.counters)),
    });
    hosts.collect()
}

/// Its workers have no status of their own.
fn said_by_falcon(status: FalconStatus) -> Vec<HostKeys> {
    let scheduler = HostKeys {
        name: "scheduler".into(),
        said: status.scheduler.map(|said| (said.keys, said.counters)),
    };
    vec![scheduler]
}

/// For `inband status`: the keys that hosts send with, and the counters of dropped packets.
pub fn summary(status: &ClusterStatus) -> String {
    let said = status.hosts.iter().filter_map(|host| host.status.as_ref());
    keys::summary(said.map(|s| (s.keys.as_ref(), &s.counters)))
}
