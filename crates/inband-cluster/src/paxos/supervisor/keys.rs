//! The keys of the cluster: made at its first start, and rotated without a stop.

use std::time::Duration;

use inband_host::key_file::KeyFile;

use super::{lock, HostRuntime, Shared, SupervisorError};
use crate::host_process::Process;
use crate::paxos::cluster_dir::{ClusterDir, ClusterRecord};
use crate::paxos::control::{self, KeyStatus};

/// How long a host may take to read its keys again.
const RELOAD_LIMIT: Duration = Duration::from_secs(10);

/// Make the keys of a new cluster, or see that those of an old one are there. The line says which.
pub(super) fn prepare(
    dir: &ClusterDir,
    record: &ClusterRecord,
    wanted: bool,
    is_new: bool,
) -> Result<String, SupervisorError> {
    let path = dir.key_file();
    if !record.authenticated {
        let why = if wanted {
            "this cluster was made without a key"
        } else {
            "as asked for"
        };
        return Ok(format!("packets are not authenticated: {why}"));
    }
    if !wanted {
        return Err(SupervisorError::LayoutChanged(
            "this cluster has a key, and its values cannot be read without; leave --no-key out"
                .into(),
        ));
    }
    if is_new && !path.exists() {
        let keys = KeyFile::generate().map_err(SupervisorError::file("make keys for", &path))?;
        keys.save(&path)?;
    }
    let keys = KeyFile::load(&path)?;
    Ok(format!(
        "packets are authenticated with key {}",
        keys.active()
    ))
}

impl Shared {
    /// Put a new key into the place of the old one, on all hosts, while they run: all accept it, then all
    /// send with it, then all forget the old one. Each step is checked on every host before the next.
    /// One that was broken off is finished first. Returns the new key's id, in words.
    pub(super) fn rotate_key(&self) -> Result<String, SupervisorError> {
        let _operation = lock(&self.operation);
        self.refuse_after_end()?;
        if !lock(&self.record).authenticated {
            return Err(SupervisorError::WrongState(
                "this cluster was made without a key; export the data and import them into a new one"
                    .into(),
            ));
        }
        let path = self.dir.key_file();
        let mut keys = KeyFile::load(&path)?;
        self.reload_keys(&keys)?;
        if keys.ids().len() > 1 {
            keys.drop_others();
            self.distribute(&keys)?;
        }
        let new = keys.add()?;
        self.distribute(&keys)?;
        keys.activate(new)?;
        self.distribute(&keys)?;
        keys.drop_others();
        self.distribute(&keys)?;
        Ok(format!("key {new}"))
    }

    fn distribute(&self, keys: &KeyFile) -> Result<(), SupervisorError> {
        keys.save(&self.dir.key_file())?;
        self.reload_keys(keys)
    }

    /// Have every host read the key file, and hear that it now uses what is in it. One that does not run
    /// reads it when it starts.
    fn reload_keys(&self, keys: &KeyFile) -> Result<(), SupervisorError> {
        let expected = KeyStatus {
            active: keys.active(),
            accepted: keys.keys().ids(),
        };
        let hosts = self.hosts();
        let runs = |host: &&std::sync::Arc<HostRuntime>| {
            matches!(host.process.state().0, Process::Running | Process::Paused)
        };
        for host in hosts.iter().filter(runs) {
            let name = host.name();
            let refused = |why: String| {
                SupervisorError::WrongState(format!(
                    "{name} did not take the keys: {why}; all hosts still understand each other. \
                     Kill it or wait until it answers, then run `inband key rotate` again"
                ))
            };
            match control::reload_keys(&host.socket(), RELOAD_LIMIT) {
                Ok(Some(status)) if status == expected => {}
                Ok(status) => return Err(refused(format!("it uses {status:?}"))),
                Err(error) => return Err(refused(error.to_string())),
            }
        }
        Ok(())
    }
}
