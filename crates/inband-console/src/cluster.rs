//! The supervisor of a cluster, asked in JSON: its requests are the same for every system.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use inband_cluster::socket::socket_in;
use inband_cluster::system_file;
use inband_host::line_json;
use serde::Deserialize;
use serde_json::{json, Value};

/// Time limit for a status; a host that hangs delays it.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for anything else, such as a restart.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// What the page may ask of the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub enum Action {
    /// End the host's process at once. `force`: even if the cluster loses its data.
    Kill {
        host: String,
        #[serde(default)]
        force: bool,
    },
    Restart {
        host: String,
    },
    /// Hold the host's packets.
    Pause {
        host: String,
    },
    Resume {
        host: String,
    },
}

impl Action {
    fn request(&self) -> Value {
        match self {
            Action::Kill { host, force: false } => json!({"cmd": "kill", "role": host}),
            Action::Kill { host, force: true } => {
                json!({"cmd": "kill", "role": host, "force": true})
            }
            Action::Restart { host } => json!({"cmd": "restart", "role": host}),
            Action::Pause { host } => json!({"cmd": "pause", "role": host}),
            Action::Resume { host } => json!({"cmd": "resume", "role": host}),
        }
    }

    /// For the list of events: `kill node/1`.
    pub fn in_words(&self) -> String {
        match self {
            Action::Kill { host, .. } => format!("kill {host}"),
            Action::Restart { host } => format!("restart {host}"),
            Action::Pause { host } => format!("pause {host}"),
            Action::Resume { host } => format!("resume {host}"),
        }
    }
}

/// A cluster on this machine.
#[derive(Debug)]
pub struct Cluster {
    socket: PathBuf,
    /// The system's name on the command line; empty for the store.
    pub system: String,
}

impl Cluster {
    /// Returns the cluster in a directory; an error if none runs there.
    pub fn of(data: &Path) -> Result<Cluster> {
        let cluster = Cluster {
            socket: socket_in(data),
            system: system_file::read(data)?.unwrap_or_default(),
        };
        if !cluster.socket.exists() {
            bail!(
                "no cluster runs in {}; start one with `inband up`, or name its directory with --data",
                data.display()
            );
        }
        Ok(cluster)
    }

    fn ask(&self, request: &Value, limit: Duration) -> Result<Value> {
        let mut answer: Value = line_json::call(&self.socket, request, limit)?;
        let mut body = answer["body"].take();
        if answer["reply"] == "error" {
            let message = body["message"].take();
            bail!("{}", message.as_str().unwrap_or("the request failed"));
        }
        Ok(body)
    }

    /// Returns the system's own status.
    pub fn status(&self) -> Result<Value> {
        self.ask(&json!({"cmd": "status"}), STATUS_TIMEOUT)
    }

    /// Returns the name of the host that it was done to.
    pub fn act(&self, action: &Action) -> Result<String> {
        let done = self.ask(&action.request(), REQUEST_TIMEOUT)?;
        let host = done["host"].as_str();
        Ok(host
            .context("the supervisor's answer names no host; do both sides run the same version?")?
            .to_owned())
    }
}
