//! `inband key`: the keys that packets are authenticated with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use clap::{Args, Subcommand};
use inband_host::key_file::{ChangeError, KeyFile};
use inband_lab::cluster_dir::ClusterDir;
use inband_lab::control::{self, KeyStatus};
use inband_lab::supervisor::remote::{self, SupervisorReply, SupervisorRequest};
use inband_lab::ClusterStatus;
use inband_paxos::config::Config;

use crate::up::DEFAULT_DATA;
use inband_cluster::flair;

/// How long a host may take to answer.
const RELOAD_LIMIT: Duration = Duration::from_secs(10);
/// Counters of packets that were dropped for want of a right tag.
const DROPPED: [&str; 2] = ["bad_key", "bad_tag"];

/// The commands of `inband key`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// In a cluster of `inband up`: put a new key into the place of the old one, while it serves.
    Rotate {
        /// Directory of the cluster.
        #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR")]
        data: PathBuf,
    },
    /// Which keys there are, and which are used; never the keys themselves.
    List(ListArgs),
    /// Make a key file for a new cluster of `inband run` hosts. It is to be copied to all of them.
    New {
        /// The file to make.
        file: PathBuf,
    },
    /// Put one key more into a file, to be accepted but not yet sent with.
    Add {
        /// The file.
        file: PathBuf,
    },
    /// Say in a file which of its keys to send with.
    Activate {
        /// The file.
        file: PathBuf,
        /// The key's id.
        id: u16,
    },
    /// Take all keys but the active one out of a file.
    Drop {
        /// The file.
        file: PathBuf,
    },
    /// Have a host that runs read its key file again.
    Reload {
        /// The host's configuration.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

/// Options of `inband key list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Directory of a cluster of `inband up` or `inband up flair`.
    #[arg(long, default_value = DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
    /// A key file instead.
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    file: Option<PathBuf>,
}

/// Do it.
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
    match remote::ask(data, &SupervisorRequest::RotateKey)? {
        SupervisorReply::Done { host } => {
            println!("all hosts send with {host} and accept no other")
        }
        other => bail!("an unexpected answer ({other:?}); do both sides run the same version?"),
    }
    Ok(())
}

fn list(args: &ListArgs) -> Result<()> {
    if let Some(file) = &args.file {
        println!("{}: {}", file.display(), in_words(&KeyFile::load(file)?));
        return Ok(());
    }
    let hosts = match flair::status_in(&args.data) {
        Some(status) => said_by_flair(status?),
        None => said_by(remote::status(&args.data)?),
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

/// A host of either kind of cluster.
struct HostKeys {
    name: String,
    /// Its keys and its counters, if it answers.
    said: Option<(Option<KeyStatus>, BTreeMap<String, u64>)>,
}

fn said_by(status: ClusterStatus) -> Vec<HostKeys> {
    let hosts = status.hosts.into_iter().map(|host| HostKeys {
        name: host.name,
        said: host.status.map(|said| (said.keys, said.counters)),
    });
    hosts.collect()
}

fn said_by_flair(status: flair::status::ClusterStatus) -> Vec<HostKeys> {
    let hosts = status.hosts.into_iter().map(|host| HostKeys {
        name: host.name,
        said: host.status.map(|said| (said.keys, said.counters)),
    });
    hosts.collect()
}

/// Packets that a host has dropped for want of a right tag; nothing if there are none.
fn dropped(counters: &BTreeMap<String, u64>) -> String {
    let counts = DROPPED
        .iter()
        .filter_map(|name| Some((name, counters.get(*name)?)));
    counts
        .map(|(name, count)| format!("  {name} {count}"))
        .collect()
}

/// For `inband status`: the keys that the hosts send with, and what was dropped.
pub fn summary(status: &ClusterStatus) -> String {
    let said = status.hosts.iter().filter_map(|host| host.status.as_ref());
    summary_of(said.map(|s| (s.keys.as_ref(), &s.counters)))
}

/// The same, of what each host says.
pub fn summary_of<'a>(
    said: impl Iterator<Item = (Option<&'a KeyStatus>, &'a BTreeMap<String, u64>)> + Clone,
) -> String {
    let mut active: Vec<u16> = said
        .clone()
        .filter_map(|(keys, _)| Some(keys?.active))
        .collect();
    active.sort_unstable();
    active.dedup();
    if active.is_empty() {
        return "not authenticated".into();
    }
    let mut sum: BTreeMap<String, u64> = BTreeMap::new();
    for (_, counters) in said {
        for name in DROPPED {
            if let Some(count) = counters.get(name) {
                *sum.entry(name.into()).or_default() += count;
            }
        }
    }
    let active: Vec<String> = active.iter().map(u16::to_string).collect();
    format!("key {}{}", active.join(" and "), dropped(&sum))
}
