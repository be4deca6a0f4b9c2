//! The keys of the cluster: made at its first start, and rotated without a stop.

use std::time::Duration;

use inband_host::key_file::KeyFile;

use super::{lock, HostRuntime, Shared, SupervisorError};
use crate::host_process::Process;
use crate::paxos::cluster_dir::{ClusterDir, ClusterRecord};
use crate::paxos::control::{self, KeyStatus};

/// Timeout for a host to reload its keys.
const RELOAD_LIMIT: Duration = Duration::from_secs(10);

/// Makes the keys of a new cluster, or checks that those of an existing one are present. Returns a line that says
/// which.
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
    if !path.exists() {
        if !is_new {
            return Err(SupervisorError::KeysMissing { path });
        }
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
    /// Replaces the key on all hosts while they run: first all accept the new key, then all send with it, then all drop
    /// the old one. Each step is checked on every host before the next. Finishes an interrupted rotation first. Returns
    /// the new key's id, in words.
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

    /// Makes every host reload the key file and confirm that it uses its content. A host that is not running reads it
    /// when it starts.
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
