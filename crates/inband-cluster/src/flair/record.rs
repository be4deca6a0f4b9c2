//! What a cluster had when it was last started, and whether it has data: `flair.json` in its directory.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use inband_flair::replica_node::LOG_DIR;
use inband_paxos::config::Durability;
use serde::{Deserialize, Serialize};

use super::cluster::FlairSpec;
use super::hosts::logs_of_sets;

const FILE: &str = "flair.json";
/// What a cluster that begins with an empty store must not find.
pub const FILES: [&str; 1] = [FILE];
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
    /// Its gateway was started once, so clients may have written.
    #[serde(default = "unknown")]
    founded: bool,
}

/// Clusters of versions without replica sets have one set.
fn one() -> usize {
    1
}

/// Clusters of versions that did not record it may have data.
fn unknown() -> bool {
    true
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

    /// Returns whether the cluster begins with an empty store. Fails if it would lose data that way, or if what is on
    /// disk may lack acknowledged writes, unless that was accepted.
    pub fn begins(was: Option<&Record>, spec: &FlairSpec) -> Result<bool> {
        let Some(was) = was else {
            return Ok(true);
        };
        was.begins_again(spec, &logs_of_sets(&spec.data, was.sets, was.replicas))
    }

    /// `logs`: how many replicas of each set have a log.
    fn begins_again(&self, spec: &FlairSpec, logs: &[usize]) -> Result<bool> {
        if !self.founded {
            return Ok(true);
        }
        let data = spec.data.display();
        if self.durability == Durability::Memory {
            ensure!(
                spec.accept_loss,
                "--data: the store in {data} was lost when its replicas stopped (it is kept in their memory alone); give \
                 --accept-loss to begin with an empty one"
            );
            return Ok(true);
        }
        let majority = self.replicas / 2 + 1;
        let lost = logs.iter().position(|logs| *logs < majority);
        if spec.accept_loss {
            ensure!(
                lost.is_some(),
                "--accept-loss: the store in {data} is on disk and not lost; another --data begins an empty one. If the logs \
                 are damaged or empty, remove them ({LOG_DIR} in the replicas' directories) first"
            );
            return Ok(true);
        }
        let same = Record::of(spec).founded();
        ensure!(
            *self == same,
            "the cluster in {} has --durability {} --replicas {} --switches {} --sets {}, and its data; start it with these, or \
             another one with another --data",
            data,
            self.durability,
            self.replicas,
            self.switches,
            self.sets
        );
        if let Some(set) = lost {
            bail!(
                "only {} of {} replicas{} have their log in {data}, so acknowledged writes may be lost: restore the logs \
                 ({LOG_DIR} in the replicas' directories), or give --accept-loss to begin with an empty store",
                logs[set],
                self.replicas,
                if self.sets > 1 { format!(" of set {set}") } else { String::new() },
            );
        }
        Ok(false)
    }

    /// Returns the record of this cluster once clients can write.
    pub fn founded(self) -> Record {
        Record {
            founded: true,
            ..self
        }
    }

    /// Returns the record of a new cluster.
    pub fn of(spec: &FlairSpec) -> Record {
        Record {
            durability: spec.durability,
            replicas: spec.replicas,
            switches: spec.switches,
            sets: spec.sets,
            founded: false,
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
            accept_loss: false,
            dataplane: Dataplane::Udp,
            resp: ([127, 0, 0, 1], 0).into(),
            security: Security::default(),
        }
    }

    #[test]
    fn a_record_without_sets_is_of_one() {
        let old = r#"{ "durability": "sync", "replicas": 3, "switches": 2 }"#;
        let old: Record = serde_json::from_str(old).expect("it is understood");
        assert_eq!(old, Record::of(&spec(Durability::Sync, 3, 1)).founded());
    }

    #[test]
    fn data_on_disk_are_not_begun_anew_by_mistake() {
        type Asked = (Durability, usize, usize);
        let spec = |(durability, replicas, sets): Asked| spec(durability, replicas, sets);
        let begins = |was: Option<Asked>, now: Asked| {
            let begins = match was {
                None => Record::begins(None, &spec(now)),
                Some(was) => {
                    let record = Record::of(&spec(was)).founded();
                    record.begins_again(&spec(now), &vec![3; was.2])
                }
            };
            begins.map_err(|error| error.to_string())
        };
        let (memory, sync) = (Durability::Memory, Durability::Sync);
        assert_eq!(begins(None, (sync, 3, 1)), Ok(true));
        assert_eq!(begins(Some((sync, 3, 2)), (sync, 3, 2)), Ok(false));
        for other in [(memory, 3, 2), (sync, 5, 2), (sync, 3, 1)] {
            let said = begins(Some((sync, 3, 2)), other).expect_err("it would lose the data");
            assert!(
                said.contains("--durability sync --replicas 3 --switches 2 --sets 2"),
                "{said}"
            );
        }
    }

    #[test]
    fn an_empty_store_takes_the_place_of_a_lost_one_only_when_told() {
        let begins = |durability, founded, logs: [usize; 2], accept_loss| {
            let spec = FlairSpec {
                accept_loss,
                ..spec(durability, 3, 2)
            };
            let was = Record {
                founded,
                ..Record::of(&spec)
            };
            let begins = was.begins_again(&spec, &logs);
            begins.map_err(|error| error.to_string())
        };
        let (memory, sync) = (Durability::Memory, Durability::Sync);
        // A first start that was interrupted has nothing to lose.
        assert_eq!(begins(memory, false, [0, 0], false), Ok(true));
        assert_eq!(begins(sync, false, [1, 0], false), Ok(true));
        let said = begins(memory, true, [0, 0], false).expect_err("it would be empty");
        assert!(said.contains("in their memory alone"), "{said}");
        assert_eq!(begins(memory, true, [0, 0], true), Ok(true));

        assert_eq!(begins(sync, true, [3, 2], false), Ok(false));
        let said = begins(sync, true, [3, 2], true).expect_err("nothing is lost");
        assert!(said.contains("not lost"), "{said}");
        for (logs, shown) in [
            ([1, 3], "only 1 of 3 replicas of set 0"),
            ([2, 0], "only 0 of 3 replicas of set 1"),
        ] {
            let said = begins(sync, true, logs, false).expect_err("it would lack writes");
            assert!(
                said.contains(shown) && said.contains("--accept-loss"),
                "{said}"
            );
            assert_eq!(begins(sync, true, logs, true), Ok(true));
        }
    }
}
