//! The options that a cluster with a log on disk must be restarted with: `flair.json` in its directory.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use inband_paxos::config::Durability;
use serde::{Deserialize, Serialize};

use super::cluster::FlairSpec;

const FILE: &str = "flair.json";
/// Not a secret.
const MODE: u32 = 0o644;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    durability: Durability,
    replicas: usize,
    switches: usize,
    #[serde(default = "one")]
    sets: usize,
}

/// Clusters of versions without replica sets have one set.
fn one() -> usize {
    1
}

/// Returns the path of the record of the cluster in this directory.
pub fn path(data: &Path) -> PathBuf {
    data.join(FILE)
}

/// Returns whether this directory holds a cluster of FLAIR, running or not.
pub fn is_in(data: &Path) -> bool {
    path(data).exists()
}

impl Record {
    /// Reads the record of an existing cluster.
    pub fn read(data: &Path) -> Result<Option<Record>> {
        let path = path(data);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let record = serde_json::from_str(&text);
        Ok(Some(record.with_context(|| {
            format!("{} is damaged", path.display())
        })?))
    }

    /// Returns what survives when all hosts stop.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Checks that the cluster may be started with this specification. Returns true if it starts over, without losing
    /// anything.
    pub fn check(was: Option<Record>, spec: &FlairSpec) -> Result<bool> {
        let Some(was) = was.filter(|was| was.durability == Durability::Sync) else {
            return Ok(true);
        };
        let wanted = Record::of(spec);
        ensure!(
            was == wanted,
            "the cluster in {} has --durability {} --replicas {} --switches {} --sets {}, and its data; start it with these, or \
             another one with another --data",
            spec.data.display(),
            was.durability,
            was.replicas,
            was.switches,
            was.sets
        );
        Ok(false)
    }

    /// Returns the record of a new cluster.
    pub fn of(spec: &FlairSpec) -> Record {
        Record {
            durability: spec.durability,
            replicas: spec.replicas,
            switches: spec.switches,
            sets: spec.sets,
        }
    }

    /// Writes the record; it is durable on return.
    pub fn write(&self, data: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).context("writing a record")?;
        let path = path(data);
        inband_storage::replace(&path, &text, MODE)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flair::cluster::Security;
    use inband_flair::config::Balance;
    use inband_flair::reads::Reads;
    use inband_paxos::config::Dataplane;

    fn spec(durability: Durability, replicas: usize, sets: usize) -> FlairSpec {
        FlairSpec {
            program: "inband".into(),
            data: "/tmp/flair".into(),
            replicas,
            switches: 2,
            sets,
            groups: 4096,
            reads: Reads::Flair,
            balance: Balance::Random,
            heartbeat_ms: 10,
            step_down_ms: 50,
            durability,
            dataplane: Dataplane::Udp,
            resp: ([127, 0, 0, 1], 0).into(),
            security: Security::default(),
        }
    }

    #[test]
    fn a_record_without_sets_is_of_one() {
        let old = r#"{ "durability": "sync", "replicas": 3, "switches": 2 }"#;
        let old: Record = serde_json::from_str(old).expect("it is understood");
        assert_eq!(old, Record::of(&spec(Durability::Sync, 3, 1)));
    }

    #[test]
    fn data_on_disk_are_not_begun_anew_by_mistake() {
        type Asked = (Durability, usize, usize);
        let spec = |(durability, replicas, sets): Asked| spec(durability, replicas, sets);
        let begins = |was: Option<Asked>, now: Asked| {
            let was = was.map(|was| Record::of(&spec(was)));
            Record::check(was, &spec(now)).map_err(|error| error.to_string())
        };
        let (memory, sync) = (Durability::Memory, Durability::Sync);
        assert_eq!(begins(None, (sync, 3, 1)), Ok(true));
        assert_eq!(begins(Some((memory, 3, 1)), (memory, 5, 2)), Ok(true));
        assert_eq!(begins(Some((memory, 3, 1)), (sync, 3, 1)), Ok(true));
        assert_eq!(begins(Some((sync, 3, 2)), (sync, 3, 2)), Ok(false));
        for other in [(memory, 3, 2), (sync, 5, 2), (sync, 3, 1)] {
            let said = begins(Some((sync, 3, 2)), other).expect_err("it would lose the data");
            assert!(
                said.contains("--durability sync --replicas 3 --switches 2 --sets 2"),
                "{said}"
            );
        }
    }
}
