//! What a cluster's processes and clients must know to reach it, as a file.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use inband_ground::auth::Gate;
use inband_host::key_file::KeyFile;
use serde::{Deserialize, Serialize};

use crate::quorum::{Sizes, FAILURES};
use crate::wire::node;
use crate::{c, NetPaxos, LOGS};

/// The cluster's file in the directory of `inband up netpaxos`.
pub const FILE: &str = "cluster.json";
/// The default directory of `inband up netpaxos`.
pub const DATA: &str = ".inband-netpaxos";

/// A file in the directory of each process, with its name.
pub const OWNER: &str = "process";
/// A file in the directory of each storage server and learner, with the id of its log.
pub const LOG_ID: &str = "log-id";
/// The directory of a process's journal, in its own.
pub const JOURNAL: &str = "journal";
/// A file in a storage server's directory: its log is new, so it votes at once. `inband up` puts it there when it makes the
/// directories of a new cluster, before anything starts: a directory that was lost has none. The server removes it.
pub const NEW: &str = "new";

/// The network namespace of the calling thread.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";
/// The interfaces there: two lines of titles, then a line each that begins with the name.
const OWN_INTERFACES: &str = "/proc/thread-self/net/dev";
/// The interfaces of a lab's host, and those that the kernel may add to every namespace.
const LAB_INTERFACES: [&str; 11] = [
    "lo", "eth0", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0",
    "ip6gre0",
];
/// Where network namespaces have names.
const NAMESPACES: &str = "/run/netns";

/// Maximum number of learners.
pub const LEARNERS_MAX: u8 = c::IB_NETPAXOS_LEARNERS_MAX as u8;
/// Maximum number of serializers.
pub const SERIALIZERS_MAX: u8 = 8;

/// A cluster, as its file describes it. The first of each kind has number 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Where clients send requests.
    pub serializers: Vec<SocketAddrV4>,
    /// Where serializers send requests.
    pub minions: Vec<SocketAddrV4>,
    /// One storage server per minion.
    pub storages: Vec<SocketAddrV4>,
    /// The learners, which deliver the log.
    pub learners: Vec<SocketAddrV4>,
    /// Identifies the log; another number for each log that begins on the same addresses. Packets of another log are
    /// dropped.
    #[serde(default)]
    pub log_id: u64,
    /// The file with the cluster's key.
    pub key_file: Option<PathBuf>,
    /// The address of clients, and the network namespace that has it, if the cluster has its own network.
    pub client: Option<(Ipv4Addr, PathBuf)>,
    /// Addresses for Redis clients of each learner; empty for a log without a store.
    #[serde(default)]
    pub resp: Vec<SocketAddr>,
    /// The processes' control sockets, by process name; only in the file of `inband up`.
    #[serde(default)]
    pub sockets: BTreeMap<String, PathBuf>,
}

/// Returns whether two namespaces belong to hosts of one lab, by their names: `ib-LAB.HOST`.
fn is_same_lab(one: &str, other: &str) -> bool {
    let lab_of = |name: &str| {
        let (lab, _) = name.split_once('.')?;
        lab.starts_with("ib-").then(|| lab.to_owned())
    };
    lab_of(one).is_some() && lab_of(one) == lab_of(other)
}

/// Returns whether the calling thread's namespace has the interfaces of a lab's host and no others. That of the lab has
/// its peer in another namespace, as only virtual ones have.
fn has_only_lab_interfaces() -> Result<bool> {
    let text = std::fs::read_to_string(OWN_INTERFACES)
        .with_context(|| format!("cannot read {OWN_INTERFACES}"))?;
    let names = text.lines().skip(2).filter_map(|line| line.split_once(':'));
    let names: Vec<&str> = names.map(|(name, _)| name.trim()).collect();
    Ok(names.iter().all(|name| LAB_INTERFACES.contains(name)))
}

impl Cluster {
    /// Reads the cluster's file from a directory.
    pub fn load(dir: &Path) -> Result<Cluster> {
        let path = dir.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
                "there is no {}: start a cluster with `inband up netpaxos`, or name the directory that has one",
                path.display()
            ),
            other => other.with_context(|| format!("{}", path.display()))?,
        };
        let cluster: Cluster = serde_json::from_str(&text).with_context(|| {
            format!(
                "{} does not describe a cluster (docs/netpaxos.md)",
                path.display()
            )
        })?;
        cluster.sizes()?;
        for (what, count, max) in [
            ("serializers", cluster.serializers.len(), SERIALIZERS_MAX),
            ("learners", cluster.learners.len(), LEARNERS_MAX),
        ] {
            ensure!(
                (1..=usize::from(max)).contains(&count),
                "{}: {count} {what}, 1 to {max} are possible",
                path.display()
            );
        }
        let addresses = [
            &cluster.serializers,
            &cluster.minions,
            &cluster.storages,
            &cluster.learners,
        ];
        let mut seen = BTreeSet::new();
        if let Some(twice) = addresses.into_iter().flatten().find(|a| !seen.insert(**a)) {
            bail!(
                "{}: {twice} is the address of two processes; give each its own",
                path.display()
            );
        }
        ensure!(
            cluster.resp.is_empty() || cluster.resp.len() == cluster.learners.len(),
            "{}: {} addresses for Redis clients; one per learner is needed",
            path.display(),
            cluster.resp.len()
        );
        Ok(cluster)
    }

    /// Writes the cluster's file to a directory.
    pub fn store(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let text = serde_json::to_vec_pretty(self)?;
        let replaced = inband_storage::replace(&path, &text, inband_storage::FILE_MODE);
        replaced.with_context(|| format!("{}", path.display()))
    }

    /// Returns whether the cluster has its own network on this machine, and the calling thread runs in a namespace of that
    /// network: then other machines do not reach its addresses. The file alone proves nothing, as it may have been
    /// copied, and neither does a name: the namespace may have been given an interface of the machine.
    pub fn is_isolated(&self) -> Result<bool> {
        let Some((_, namespace)) = &self.client else {
            return Ok(false);
        };
        if !namespace.exists() {
            return Ok(false);
        }
        let identity = |path: &Path| std::fs::metadata(path).map(|of| (of.dev(), of.ino()));
        let own = identity(Path::new(OWN_NAMESPACE))
            .with_context(|| format!("cannot read {OWN_NAMESPACE}"))?;
        let all = std::fs::read_dir(NAMESPACES);
        let all = all.into_iter().flatten().flatten();
        let mut names = all
            .filter(|entry| identity(&entry.path()).is_ok_and(|other| other == own))
            .map(|entry| entry.file_name().to_string_lossy().into_owned());
        let client = namespace.file_name().unwrap_or_default().to_string_lossy();
        let is_of_lab = names.any(|name| is_same_lab(&name, &client));
        Ok(is_of_lab && has_only_lab_interfaces()?)
    }

    /// Returns the sizes, which follow from the number of minions.
    pub fn sizes(&self) -> Result<Sizes> {
        let minions = self.minions.len();
        let mut sizes = FAILURES.map(|failures| Sizes { failures });
        let sizes = sizes.find(|sizes| usize::from(sizes.minions()) == minions);
        let sizes = sizes.with_context(|| format!("{minions} minions; 4 or 7 are possible"))?;
        ensure!(
            self.storages.len() == minions,
            "{} storage servers; one per minion is needed",
            self.storages.len()
        );
        Ok(sizes)
    }

    /// Returns the gate that packets must pass.
    pub fn gate(&self) -> Result<Gate> {
        let file = self.key_file.as_deref().map(KeyFile::load).transpose()?;
        Ok(Gate::of::<NetPaxos>(file.map(|file| file.keys()), LOGS))
    }

    /// Returns the address of a storage server or a learner by its node id.
    pub fn address_of(&self, id: u8) -> Option<SocketAddrV4> {
        let storage = node::as_storage(id, self.storages.len() as u8);
        let learner = node::as_learner(id, self.learners.len() as u8);
        storage
            .map(|n| self.storages[usize::from(n) - 1])
            .or_else(|| learner.map(|n| self.learners[usize::from(n) - 1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first sample of the document is a cluster's file.
    fn sample() -> &'static str {
        let text = include_str!("../../../docs/netpaxos.md");
        let sample = text.split("```json\n").nth(1).expect("a sample");
        sample.split("```").next().expect("its end")
    }

    #[test]
    fn the_document_s_file_describes_a_cluster() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join(FILE), sample()).expect("written");
        let cluster = Cluster::load(dir.path()).expect("it can be used");
        assert!(cluster.resp.is_empty());
        assert!(cluster.key_file.is_some());
    }

    #[test]
    fn a_file_with_an_unknown_name_or_an_address_of_two_processes_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let of = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut file: serde_json::Value = serde_json::from_str(sample()).expect("JSON");
            change(&mut file);
            std::fs::write(dir.path().join(FILE), file.to_string()).expect("written");
            let refused = Cluster::load(dir.path()).expect_err("it is refused");
            format!("{refused:#}")
        };
        let unknown = of(&|file| file["keyfile"] = "keys.toml".into());
        assert!(unknown.contains("unknown field `keyfile`"), "{unknown}");
        let twice = of(&|file| file["learners"][0] = file["storages"][1].clone());
        assert!(twice.contains("of two processes"), "{twice}");
        let twice = of(&|file| file["minions"][0] = file["minions"][1].clone());
        assert!(twice.contains("of two processes"), "{twice}");
    }

    #[test]
    fn a_namespace_belongs_to_the_lab_that_its_name_says() {
        let client = "ib-np-1.client";
        assert!(is_same_lab("ib-np-1.storage-2", client));
        for other in [
            "ib-np-2.storage-2",
            "office",
            "office.storage-2",
            "",
            "ib-np-1",
        ] {
            assert!(!is_same_lab(other, client), "{other}");
        }
        assert!(!is_same_lab("office.storage", "office.client"));
    }
}
