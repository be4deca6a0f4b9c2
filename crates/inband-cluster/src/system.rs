//! The interface through which the [supervisor](crate::supervisor) runs a kind of cluster.

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

/// A kind of cluster that runs on this machine, in one directory. The supervisor locks the directory, creates the
/// network, starts the processes, restarts those that end by themselves, and answers on the control socket.
pub trait System: Sized + Send + Sync + 'static {
    /// The name in messages, such as `FLAIR`.
    const NAME: &'static str;
    /// The name on the command line: `inband up COMMAND`.
    const COMMAND: &'static str;
    /// The default directory of its clusters.
    const DEFAULT_DATA: &'static str;
    /// How long its processes may take to end after SIGTERM before they are killed. With zero they are killed at once.
    const STOP_TIMEOUT: Duration = Duration::ZERO;
    /// How long a process that `restart --rolling` ends may take to hand over what it leads, after SIGTERM. With zero it is
    /// killed at once.
    const HAND_OVER_TIMEOUT: Duration = Duration::ZERO;

    /// The user's request for a cluster.
    type Spec;
    /// A cluster's status; `inband status --json` prints it.
    type Status: Serialize + DeserializeOwned + Send + 'static;
    /// Additional requests to the supervisor's socket. [`NoRequest`] if there are none.
    type Request: Serialize + DeserializeOwned + Send + 'static;
    /// The replies to [`Self::Request`].
    type Reply: Serialize + DeserializeOwned + Send + 'static;

    /// Returns the cluster's directory. The supervisor creates it and makes the path absolute.
    fn data(spec: &mut Self::Spec) -> &mut PathBuf;

    /// Checks the request and names the hosts. No other supervisor runs in the directory.
    fn plan(spec: Self::Spec) -> Result<(Self, Plan)>;

    /// Called when the hosts have addresses: writes their configurations, and returns how to start their processes, in
    /// this order.
    fn configure(&mut self, network: &Network) -> Result<Vec<HostPlan>>;

    /// Returns whether a process that was just started is up, so that the next one can be started.
    fn is_up(&self, _host: &str) -> bool {
        true
    }

    /// Whether a host that was restarted takes part again, so that the cluster can spare another one. The error says what
    /// it lacks.
    fn takes_part(&self, _host: &str) -> Result<(), String> {
        Ok(())
    }

    /// Whether the cluster is ready for use. The error says what it lacks.
    fn ready(&self, hosts: &Hosts) -> Result<(), String>;

    /// Whether this host may be started with the whole cluster now; the others before it are up. The error says what it
    /// waits for.
    fn may_start(&self, _host: &str, _hosts: &Hosts) -> Result<(), String> {
        Ok(())
    }

    /// Called when the whole cluster is started, right before this host is.
    fn starting(&self, _host: &str) -> Result<()> {
        Ok(())
    }

    /// Returns the current status of the cluster and its hosts.
    fn status(&self, hosts: &Hosts) -> Self::Status;

    /// Returns the host that a role like `leader` means now; `None` if `role` is a host's name.
    fn host_of(&self, _role: &str, _hosts: &Hosts) -> Result<Option<String>> {
        Ok(None)
    }

    /// Returns the roles that [`Self::host_of`] knows, for an error message.
    fn roles(&self) -> &'static str {
        ""
    }

    /// Returns the names of the hosts that exist, for an error message; not those that can still be added.
    fn names(&self, hosts: &Hosts) -> Vec<String> {
        hosts.iter().map(|host| host.name().to_owned()).collect()
    }

    /// Fails if the cluster would lose data when this host's process ended now; the error says which. The user can
    /// override it. A process that does not answer may have data: it may be paused, hang or be starting.
    fn check_spare(&self, _host: &str) -> Result<()> {
        Ok(())
    }

    /// Fails if a host does not take part, so that none may be restarted in a rolling restart.
    fn all_take_part(&self, hosts: &Hosts) -> Result<(), String> {
        self.ready(hosts)
    }

    /// Answers a request of the system's own type.
    fn request(&self, request: Self::Request, hosts: &Hosts) -> Result<Self::Reply>;

    /// Returns whether a directory of a version that did not record its system holds a cluster of this one.
    fn is_in_unmarked(_data: &Path) -> bool {
        false
    }
}

/// A cluster's hosts, before they have addresses.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Names of the hosts, in the order of their addresses. Hosts without a process are for clients.
    pub hosts: Vec<String>,
    /// Where packet roles run. With anything but `udp` the hosts get network namespaces if possible.
    pub dataplane: Dataplane,
    /// TCP ports at which the cluster will listen; hosts on loopback do not get these.
    pub listener_ports: Vec<u16>,
}

/// How to start a host's process.
#[derive(Debug, Clone)]
pub struct HostPlan {
    /// One of [`Plan::hosts`].
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// It starts on request only, not with the cluster.
    pub is_on_request: bool,
    /// The cluster starts without it if its process ends.
    pub is_optional: bool,
    /// Additional arguments when the whole cluster is started, but not when this process is restarted.
    pub first_args: Vec<OsString>,
    /// Its control socket. It is removed before each start, because a stale one could be queried instead of the new
    /// one.
    pub socket: Option<PathBuf>,
    /// Sockets that the process inherits, with their names (`resp`, `metrics`).
    pub listeners: Vec<(Arc<TcpListener>, &'static str)>,
}

impl HostPlan {
    /// Creates a program without arguments.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> HostPlan {
        HostPlan {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            is_on_request: false,
            is_optional: false,
            first_args: Vec::new(),
            socket: None,
            listeners: Vec::new(),
        }
    }

    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> HostPlan {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }
}

/// For a system without requests of its own: it has no values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoRequest {}

/// Returns whether a host may be stopped: only if it answers that it has no data, or if at least `needed` other hosts
/// have the data. `answering` lists the hosts that answer, and whether they have the data; a host that does not answer
/// may have it.
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
