//! What a cluster of NetPaxos is started with, and what its directory says about that.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_host::config::{Dataplane, Durability};
use inband_host::state_dir;
use inband_netpaxos::cluster::{
    Cluster, FILE, JOURNAL, LEARNERS_MAX, LOG_ID, NEW, SERIALIZERS_MAX,
};
use inband_netpaxos::quorum::Sizes;
use serde::{Deserialize, Serialize};

use super::KINDS;
use crate::command::parse_options;
use crate::listeners;
use crate::supervisor::host_dir;

/// What the cluster was started with, in its directory.
pub(super) const OPTIONS: &str = "options.json";
/// The default of `--metrics-port`.
const METRICS_PORT: u16 = 9464;

#[derive(Debug, Clone, Args, Serialize, Deserialize)]
// A field that the file does not have, because an earlier version wrote it, has its default.
#[serde(default)]
pub struct Options {
    /// Number of minions, each with a storage server: 4, of which one may fail, or 7, of which two may fail
    #[arg(long, default_value_t = 4, value_parser = minions)]
    pub minions: u8,
    /// Number of learners; writes go on while a majority of them runs
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=i64::from(LEARNERS_MAX)))]
    pub learners: u8,
    /// Number of serializers; proposers use one, and another if it does not answer
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=i64::from(SERIALIZERS_MAX)))]
    pub serializers: u8,
    /// Where serializers and minions run: udp (in processes, on loopback), or in the kernel, with every process in its
    /// own network namespace: xdp, xdp-generic, or auto, which falls back to udp
    #[arg(long, default_value_t = Dataplane::Udp)]
    pub dataplane: Dataplane,
    /// memory: the log survives the tolerated failures, but not a stop of the cluster; sync: requests are on disk
    /// before they are confirmed
    #[arg(long, default_value_t = Durability::Memory)]
    pub durability: Durability,
    /// Address for Redis clients of the first learner; the other learners use the ports that follow
    #[arg(long, value_name = "ADDR:PORT", value_parser = listeners::parse_address::<6379>, default_value = "127.0.0.1:6379")]
    pub resp: SocketAddr,
    /// First port of /metrics for Prometheus, on loopback: one per process, and any free port where one is in use; 0: any
    /// free ports
    #[arg(long, default_value_t = METRICS_PORT, value_name = "PORT")]
    pub metrics_port: u16,
    /// Start a log without a store, for `inband netpaxos submit` and `deliver`
    #[arg(long)]
    pub log_only: bool,
    /// UNSAFE, for measurements: learners decide by the order of arrival alone, as in the paper, without votes of the
    /// storage servers; they may disagree. Only with --log-only, unless --unsafe-ordering is given
    #[arg(long)]
    pub faithful: bool,
    /// Permit --faithful for a store, which can then lose acknowledged writes and differ between learners
    #[arg(long, requires = "faithful")]
    pub unsafe_ordering: bool,
    /// Use no key: anyone who can send packets to the cluster can write to the log
    #[arg(long)]
    pub no_key: bool,
    /// Start with an empty log although this directory had one that was lost when its processes stopped
    #[arg(long)]
    pub accept_loss: bool,
}

/// As `inband up netpaxos` without options has it.
impl Default for Options {
    fn default() -> Options {
        parse_options(&[])
    }
}

/// Parses a number of minions.
pub fn minions(text: &str) -> Result<u8, String> {
    match text {
        "4" => Ok(4),
        "7" => Ok(7),
        _ => Err(format!("{text} minions; give 4 or 7")),
    }
}

impl Options {
    /// Returns a Redis listener for each learner; none for a log without a store.
    pub(super) fn listen(&self) -> Result<Vec<Arc<TcpListener>>> {
        let first = self.resp;
        ensure!(
            first.ip().is_loopback(),
            "--resp {first} is beyond loopback, where anyone could read and write; give 127.0.0.1:PORT"
        );
        let learners = if self.log_only { 0 } else { self.learners };
        let listener = |offset: u8| -> Result<Arc<TcpListener>> {
            let port = match first.port() {
                0 => Some(0),
                port => port.checked_add(offset.into()),
            };
            let port = port.with_context(|| {
                format!("--resp {first}: {learners} learners need as many ports; give a lower one")
            })?;
            let address = SocketAddr::new(first.ip(), port);
            Ok(Arc::new(listeners::bind(address, "--resp")?))
        };
        (0..learners).map(listener).collect()
    }

    /// Returns a listener for Prometheus for each process, by name.
    pub(super) fn listen_for_metrics(&self) -> Result<BTreeMap<String, Arc<TcpListener>>> {
        let names = KINDS.iter().flat_map(|kind| self.names(kind));
        let listener = |(offset, name): (u16, String)| {
            let port = listeners::metrics_port(self.metrics_port, offset);
            let listener = listeners::bind_or_any(port, "--metrics-port")?;
            Ok((name, Arc::new(listener)))
        };
        (0..).zip(names).map(listener).collect()
    }

    /// Checks that the log in this directory can be continued, or may be lost.
    pub(super) fn check_former(&self, former: &Options, data: &Path) -> Result<()> {
        let (data, dir) = (data.display(), data);
        match (former.durability, self.durability) {
            (Durability::Memory, _) => ensure!(
                self.accept_loss || self.has_not_begun(dir),
                "--data: the log in {data} was lost when its processes stopped (it is kept in their memory alone); give --accept-loss to begin with an empty one"
            ),
            (Durability::Sync, Durability::Memory) => ensure!(
                self.accept_loss,
                "--durability memory: the log in {data} is on disk; give --durability sync to go on with it, or --accept-loss to begin with an empty one"
            ),
            (Durability::Sync, Durability::Sync) => {
                let journals = self.storage_dirs(dir).filter(|dir| dir.join(JOURNAL).exists());
                if self.accept_loss && journals.count() < self.sizes().quorum() {
                    return Ok(());
                }
                ensure!(
                    !self.accept_loss,
                    "--accept-loss: the log in {data} is on disk and not lost; another --data begins an empty one"
                );
                ensure!(
                    former.minions == self.minions,
                    "--minions {}: the log in {data} has {}, and quorums of both sizes need not have one in common",
                    self.minions,
                    former.minions
                );
                ensure!(
                    former.learners <= self.learners,
                    "--learners {}: the log in {data} has {}, and those left out may be the only ones that have all of it",
                    self.learners,
                    former.learners
                );
            }
        }
        Ok(())
    }

    /// Checks that a quorum of the storage servers has directories: one without is not new, but has lost its votes.
    pub(super) fn check_storages(&self, data: &Path) -> Result<()> {
        let storages = self.storage_dirs(data);
        let there = storages.filter(|dir| dir.join(LOG_ID).exists()).count();
        let quorum = self.sizes().quorum();
        ensure!(
            there >= quorum,
            "--data {}: there is no {FILE}, and only {there} of {} storage servers have their directories, where {quorum} are needed; restore the \
             others, choose another --data, or give --accept-loss to begin with an empty log",
            data.display(),
            self.minions
        );
        Ok(())
    }

    /// Returns whether no storage server of this cluster has ever run.
    fn has_not_begun(&self, data: &Path) -> bool {
        self.storage_dirs(data).all(|dir| dir.join(NEW).exists())
    }

    fn storage_dirs<'a>(&self, data: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
        let names = self.names("storage").into_iter();
        names.map(|name| host_dir(data, &name))
    }

    pub(super) fn sizes(&self) -> Sizes {
        Sizes {
            failures: (self.minions - 1) / 3,
        }
    }

    pub(super) fn names(&self, kind: &str) -> Vec<String> {
        let count = match kind {
            "serializer" => self.serializers,
            "learner" => self.learners,
            _ => self.minions,
        };
        (1..=count).map(|n| format!("{kind}/{n}")).collect()
    }
}

/// Returns the options with which the cluster in this directory was started last.
pub(super) fn former(data: &Path) -> Result<Options> {
    let path = data.join(OPTIONS);
    let text = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return inferred(data),
        other => other.with_context(|| format!("cannot read {}", path.display()))?,
    };
    serde_json::from_slice(&text).with_context(|| {
        format!(
            "{} is damaged: delete it to use {FILE}, or give --accept-loss to begin with an empty log",
            path.display()
        )
    })
}

/// Returns the log that the directories of storage servers and learners belong to, if any does: for a directory whose
/// cluster's file was lost.
pub(super) fn log_of_dirs(data: &Path, options: &Options) -> Result<Option<u64>> {
    let mut logs: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for name in ["storage", "learner"]
        .iter()
        .flat_map(|kind| options.names(kind))
    {
        let path = host_dir(data, &name).join(LOG_ID);
        if path.exists() {
            logs.entry(state_dir::read_number(&path)?)
                .or_default()
                .push(name);
        }
    }
    let in_words = |(log, names): (&u64, &Vec<String>)| format!("{log} ({})", names.join(", "));
    ensure!(
        logs.len() <= 1,
        "--data {}: there is no {FILE}, and the directories belong to different logs: {}; put the {FILE} of the right log there, or remove the directories of the others",
        data.display(),
        logs.iter().map(in_words).collect::<Vec<_>>().join(", ")
    );
    Ok(logs.into_keys().next())
}

/// As far as the other files tell: earlier versions did not record the options.
fn inferred(data: &Path) -> Result<Options> {
    let cluster = Cluster::load(data)?;
    let mut storages = (1..=cluster.storages.len()).map(|n| format!("storage/{n}"));
    let has_journal = storages.any(|name| host_dir(data, &name).join(JOURNAL).exists());
    Ok(Options {
        minions: cluster.minions.len() as u8,
        learners: cluster.learners.len() as u8,
        serializers: cluster.serializers.len() as u8,
        log_only: cluster.resp.is_empty(),
        no_key: cluster.key_file.is_none(),
        durability: match has_journal {
            true => Durability::Sync,
            false => Durability::Memory,
        },
        ..Options::default()
    })
}

/// Returns whether the cluster in this directory has not begun: no storage server of it has.
pub(super) fn is_new(data: &Path, options: &Options) -> bool {
    let mut dirs = options.storage_dirs(data);
    !data.join(FILE).exists() && dirs.all(|dir| !dir.exists() || dir.join(NEW).exists())
}

/// Makes the directories of new storage servers, and says in them that they are new.
pub(super) fn mark_new(data: &Path, options: &Options) -> Result<()> {
    for dir in options.storage_dirs(data) {
        state_dir::create(&dir)?;
        let path = dir.join(NEW);
        inband_storage::replace(&path, b"", inband_storage::FILE_MODE)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_port_metrics_get_any_free_ones() {
        let options = Options {
            metrics_port: 0,
            ..Options::default()
        };
        let all = options.listen_for_metrics().unwrap();
        assert!(all.len() > 10);
        for (name, listener) in all {
            let port = listener.local_addr().unwrap().port();
            assert!(port >= 1024, "{name}: {port}");
        }
    }
}
