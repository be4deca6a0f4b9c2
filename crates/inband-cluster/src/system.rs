//! What a kind of cluster must say of itself so that the [supervisor](crate::supervisor) can run it.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use inband_host::config::Dataplane;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::network::Network;
use crate::supervisor::Hosts;

/// A kind of cluster that runs on this machine, in one directory. The supervisor takes the directory, makes the network,
/// starts the processes, starts those again that end by themselves, and answers on the control socket.
pub trait System: Sized + Send + Sync + 'static {
    /// For people: `FLAIR`.
    const NAME: &'static str;
    /// On the command line: `inband up COMMAND`.
    const COMMAND: &'static str;
    /// The directory of its clusters unless the user names another.
    const DEFAULT_DATA: &'static str;
    /// How long its processes may take to end on SIGTERM; then they are killed. With zero they are killed at once.
    const STOP_TIMEOUT: Duration = Duration::ZERO;

    /// What the user has asked for.
    type Spec;
    /// What a cluster says of itself; `inband status --json` prints it.
    type Status: Serialize + DeserializeOwned + Send + 'static;
    /// Its own requests to the supervisor's socket. [`NoRequest`] if it has none.
    type Request: Serialize + DeserializeOwned + Send + 'static;
    /// The answers to these.
    type Reply: Serialize + DeserializeOwned + Send + 'static;

    /// The cluster's directory. The supervisor creates it and makes the path absolute.
    fn data(spec: &mut Self::Spec) -> &mut PathBuf;

    /// Check the request and name the hosts. No other supervisor runs in the directory.
    fn plan(spec: Self::Spec) -> Result<(Self, Plan)>;

    /// The hosts have addresses: write their configurations, and say how their processes are started, in this order.
    fn configure(&mut self, network: &Network) -> Result<Vec<HostPlan>>;

    /// Whether a process that was just started is there, so that the next one can be started.
    fn is_up(&self, _host: &str) -> bool {
        true
    }

    /// Whether the cluster does its work. An error says what it lacks.
    fn ready(&self, hosts: &Hosts) -> Result<(), String>;

    /// What the cluster and its hosts say of themselves now.
    fn status(&self, hosts: &Hosts) -> Self::Status;

    /// The host that a role like `leader` means now; `None`: `role` is not a role but a host's name.
    fn host_of(&self, _role: &str, _hosts: &Hosts) -> Result<Option<String>> {
        Ok(None)
    }

    /// Roles that [`Self::host_of`] knows, for an error message.
    fn roles(&self) -> &'static str {
        ""
    }

    /// An error says which data the cluster loses if this host's process ends now. The user must then insist. A process
    /// that does not answer may have data: it is paused, hangs or begins.
    fn check_spare(&self, _host: &str) -> Result<()> {
        Ok(())
    }

    /// Answer a request of the system's own.
    fn request(&self, request: Self::Request, hosts: &Hosts) -> Result<Self::Reply>;

    /// Whether a directory of a version that did not record its system holds a cluster of this one.
    fn is_in_unmarked(_data: &Path) -> bool {
        false
    }
}

/// A cluster's hosts, before they have addresses.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Names of the hosts, in the order of their addresses. Some may have no process: clients use them.
    pub hosts: Vec<String>,
    /// Where packet roles run. With anything but `udp` the hosts get network namespaces, if that is possible.
    pub dataplane: Dataplane,
    /// TCP ports at which the cluster will listen; hosts on loopback are kept off these.
    pub listener_ports: Vec<u16>,
}

/// How a host's process is started.
#[derive(Debug, Clone)]
pub struct HostPlan {
    /// One of [`Plan::hosts`].
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// More arguments when the whole cluster is started, but not when this process is started again.
    pub first_args: Vec<OsString>,
    /// Its control socket. It is removed before each start: a stale one would be asked instead of the new one.
    pub socket: Option<PathBuf>,
    /// Sockets that it inherits, and what for (`resp`, `metrics`).
    pub listeners: Vec<(Arc<TcpListener>, &'static str)>,
}

impl HostPlan {
    /// A program without arguments.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> HostPlan {
        HostPlan {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            first_args: Vec::new(),
            socket: None,
            listeners: Vec::new(),
        }
    }

    /// With arguments.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> HostPlan {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }
}

/// For a system without requests of its own: there is none to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoRequest {}

/// May a host end? Only if it answers that it has nothing, or if as many others as needed have the data. `answering` are the
/// hosts that answer, and whether they have the data; a host that does not answer may have it.
pub(crate) fn is_spare<'a>(
    answering: impl IntoIterator<Item = (&'a str, bool)>,
    host: &str,
    needed: usize,
) -> bool {
    let mut others = 0;
    for (name, has_data) in answering {
        match (name == host, has_data) {
            (true, false) => return true,
            (false, true) => others += 1,
            _ => {}
        }
    }
    others >= needed
}
