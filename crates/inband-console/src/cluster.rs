//! Requests to a cluster's supervisor, in JSON: they are the same for every system.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use inband_cluster::link::{Change, Faults};
use inband_cluster::paxos::MemberKind;
use inband_cluster::socket::socket_in;
use inband_host::system_file;
use inband_host::{line_json, program};
use inband_kv::access::Access;
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
    /// Change the faults of the host's link.
    Link {
        host: String,
        change: Change,
    },
    /// Add a host while the cluster serves; the store's are of a kind, acceptor or replica.
    Add {
        kind: Option<MemberKind>,
    },
    /// Remove a host permanently.
    Remove {
        host: String,
    },
}

/// How an action is done.
enum How {
    /// By this request to the supervisor.
    Request(Value),
    /// By `inband member` with these arguments: it takes several requests, which differ between systems.
    Member(Vec<String>),
}

impl Action {
    fn how(&self) -> How {
        How::Request(match self {
            Action::Kill { host, force } => {
                json!({"cmd": "kill", "role": host, "force": force})
            }
            Action::Restart { host } => json!({"cmd": "restart", "role": host}),
            Action::Pause { host } => json!({"cmd": "pause", "role": host}),
            Action::Resume { host } => json!({"cmd": "resume", "role": host}),
            Action::Link { host, change } => json!({"cmd": "link", "role": host, "change": change}),
            Action::Add { kind } => {
                let kind = kind.map(|kind| kind.name().to_owned());
                return How::Member(["add".to_owned()].into_iter().chain(kind).collect());
            }
            Action::Remove { host } => return How::Member(vec!["remove".into(), host.clone()]),
        })
    }

    /// Whether it takes something away from the cluster, for the charts.
    pub fn is_fault(&self) -> bool {
        match self {
            Action::Kill { .. } | Action::Pause { .. } => true,
            Action::Link { change, .. } => change.faults != Faults::default(),
            Action::Restart { .. }
            | Action::Resume { .. }
            | Action::Add { .. }
            | Action::Remove { .. } => false,
        }
    }

    /// For the list of events: `kill node/1`.
    pub fn in_words(&self) -> String {
        match self {
            Action::Kill { host, .. } => format!("kill {host}"),
            Action::Restart { host } => format!("restart {host}"),
            Action::Pause { host } => format!("pause {host}"),
            Action::Resume { host } => format!("resume {host}"),
            Action::Link { host, change } => format!("{host}: {}", change.in_words()),
            Action::Add { kind: None } => "add a host".into(),
            Action::Add { kind: Some(kind) } => format!("add a host: {}", kind.name()),
            Action::Remove { host } => format!("remove {host}"),
        }
    }
}

/// A cluster on this machine.
#[derive(Debug)]
pub struct Cluster {
    data: PathBuf,
    socket: PathBuf,
    /// The system's name on the command line; empty for the store.
    pub system: String,
    /// What its store requires of clients.
    pub access: Access,
}

impl Cluster {
    /// Returns the cluster in a directory; an error if none runs there.
    pub fn of(data: &Path, access: Access) -> Result<Cluster> {
        let cluster = Cluster {
            data: data.into(),
            socket: socket_in(data),
            system: system_file::read(data)?.unwrap_or_default(),
            access,
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

    /// Returns what was done, or the name of the host that it was done to.
    pub fn act(&self, action: &Action) -> Result<String> {
        let done = match action.how() {
            How::Request(request) => self.ask(&request, REQUEST_TIMEOUT)?,
            How::Member(arguments) => return self.member(&arguments),
        };
        let host = done["host"].as_str();
        let host = host.context(
            "the supervisor's answer names no host; do both sides run the same version?",
        )?;
        Ok(host.to_owned())
    }

    /// Runs `inband member`. It ends when the change is done, or makes no progress.
    fn member(&self, arguments: &[String]) -> Result<String> {
        let mut command = Command::new(program::find(program::INBAND)?);
        command
            .arg("member")
            .args(arguments)
            .arg("--data")
            .arg(&self.data);
        let output = command
            .stdin(Stdio::null())
            .output()
            .context("cannot run `inband member`")?;
        let said = |text: &[u8]| String::from_utf8_lossy(text).trim().to_owned();
        if !output.status.success() {
            bail!("{}", said(&output.stderr));
        }
        Ok(said(&output.stdout))
    }
}
