//! Runs a cluster of any [`System`]: the directory and its lock, the network, the processes and their restarts, and the
//! control socket.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::restart::Watcher;
use anyhow::{bail, ensure, Context, Result};
use inband_host::line_json::Server;
use inband_host::state_dir::StateLock;

use crate::host_process::{HostProcess, Process};
use crate::network::{self, Network};
use crate::socket::{self, Reply, Request, SupervisorStatus};
use crate::system::System;
use crate::system_file;

/// How long the hosts of a cluster may take until it does its work.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Where a host of the cluster in a directory keeps its files.
pub fn host_dir(data: &Path, name: &str) -> PathBuf {
    data.join("hosts").join(name.replace('/', "-"))
}

/// Whether a directory holds a cluster of this system, running or not.
pub fn is_in<S: System>(data: &Path) -> bool {
    match system_file::read(data) {
        Ok(Some(system)) => system == S::COMMAND,
        _ => S::is_in_unmarked(data),
    }
}

/// A cluster's processes, its directory and its network.
pub struct Hosts {
    data: PathBuf,
    // Dropped before the network.
    processes: Vec<HostProcess>,
    network: Network,
    /// One kill, restart, ... at a time.
    operation: Mutex<()>,
}

impl Hosts {
    /// The cluster's directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    /// All, in the order in which they are started.
    pub fn iter(&self) -> impl Iterator<Item = &HostProcess> + Clone {
        self.processes.iter()
    }

    /// The process of a host.
    pub fn get(&self, name: &str) -> Option<&HostProcess> {
        self.iter().find(|host| host.name() == name)
    }

    /// Whether a host's process runs, and not paused.
    pub fn is_running(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|host| host.state().0 == Process::Running)
    }

    /// No process is started or killed on request while this is held.
    pub fn exclusive(&self) -> MutexGuard<'_, ()> {
        lock(&self.operation)
    }

    /// What a started process says when it has ended instead of doing its work.
    fn check_alive(&self) -> Result<()> {
        let ended = self.iter().find(|host| host.state().0 == Process::Ended);
        match ended {
            Some(host) => bail!("{} ended: {}", host.name(), host.log_tail()),
            None => Ok(()),
        }
    }
}

/// A running cluster. Its processes end and its network is removed when it is dropped.
pub struct Supervisor<S: System> {
    // Dropped first: no request meets a cluster that is being taken apart, and nothing of it is started again.
    watcher: Option<Watcher>,
    server: Option<Server>,
    shared: Arc<Shared<S>>,
}

struct Shared<S: System> {
    system: S,
    hosts: Hosts,
    /// Which host a role meant when it was killed or paused.
    last: Mutex<BTreeMap<String, String>>,
    end: End,
    // Last: with it the next `up` can begin.
    _lock: StateLock,
}

impl<S: System> Supervisor<S> {
    /// Start all hosts, and wait until the cluster does its work.
    pub fn start(mut spec: S::Spec) -> Result<Supervisor<S>> {
        let data = S::data(&mut spec);
        let lock = take_directory::<S>(data)?;
        let data = data.clone();
        let (mut system, plan) = S::plan(spec)?;
        let network = Network::create(&network::name_for(S::COMMAND, &data), plan)?;
        let mut processes = Vec::new();
        for plan in system.configure(&network)? {
            let dir = host_dir(&data, &plan.name);
            fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
            let namespace = network.namespace(&plan.name)?;
            processes.push(HostProcess::new(plan, &dir, namespace));
        }
        let shared = Arc::new(Shared {
            system,
            hosts: Hosts {
                data,
                processes,
                network,
                operation: Mutex::default(),
            },
            last: Mutex::default(),
            end: End::default(),
            _lock: lock,
        });
        if let Err(error) = shared.start_all() {
            shared.end_processes();
            return Err(error);
        }
        let server = serve(&shared)?;
        let watched = Arc::clone(&shared);
        let watcher = Watcher::start(move || watched.restart_ended())?;
        Ok(Supervisor {
            watcher: Some(watcher),
            server: Some(server),
            shared,
        })
    }

    pub fn system(&self) -> &S {
        &self.shared.system
    }

    pub fn hosts(&self) -> &Hosts {
        &self.shared.hosts
    }

    /// What the cluster and its hosts say of themselves.
    pub fn status(&self) -> S::Status {
        self.shared.status()
    }

    /// Kill the process of a role or host. Returns the host's name.
    pub fn kill(&self, role: &str) -> Result<String> {
        self.shared.kill(role)
    }

    /// Start the process of a role or host again; a role means the host that was killed or paused under this name.
    /// Returns the host's name.
    pub fn restart(&self, role: &str) -> Result<String> {
        self.shared.restart(role)
    }

    /// Hold the packets of a role or host; without namespaces, stop its process. Returns the host's name.
    pub fn pause(&self, role: &str) -> Result<String> {
        self.shared.pause(role)
    }

    /// Undo a pause. Returns the host's name.
    pub fn resume(&self, role: &str) -> Result<String> {
        self.shared.resume(role)
    }

    /// Wait so long for `inband down`. Has it come?
    pub fn wait_for_end(&self, timeout: Duration) -> bool {
        self.shared.end.wait(timeout)
    }
}

impl<S: System> Drop for Supervisor<S> {
    fn drop(&mut self) {
        self.watcher = None;
        self.server = None;
        let _operation = self.shared.hosts.exclusive();
        self.shared.end_processes();
    }
}

/// Make a cluster's directory, unless there is one, keep other supervisors out, and record which system it is of. The
/// path becomes absolute.
fn take_directory<S: System>(data: &mut PathBuf) -> Result<StateLock> {
    let shown = data.display();
    fs::create_dir_all(&*data).with_context(|| format!("--data: cannot create {shown}"))?;
    *data = fs::canonicalize(&*data)?;
    let lock = StateLock::take(data)
        .with_context(|| format!("does another `inband up` run in {}?", data.display()))?;
    system_file::claim(data, S::COMMAND)?;
    Ok(lock)
}

impl<S: System> Shared<S> {
    fn start_all(&self) -> Result<()> {
        for host in self.hosts.iter() {
            self.start(host, true)?;
        }
        self.wait(
            || self.system.ready(&self.hosts),
            || self.hosts.check_alive(),
        )
    }

    /// Start a process, and wait until it is there. `is_first`: the whole cluster is being started.
    fn start(&self, host: &HostProcess, is_first: bool) -> Result<()> {
        let was_held = host.is_held();
        host.start(is_first)?;
        if let (true, Some(lab)) = (was_held, self.hosts.network.lab()) {
            lab.release(host.name())?;
        }
        let name = host.name();
        let is_up = || match self.system.is_up(name) {
            true => Ok(()),
            false => Err(format!("{name} does not answer")),
        };
        self.wait(is_up, || match host.state().0 {
            Process::Ended => bail!("{name} ended: {}", host.log_tail()),
            _ => Ok(()),
        })
    }

    /// Wait until something is so, as long as `check` succeeds.
    fn wait(
        &self,
        is_so: impl Fn() -> Result<(), String>,
        check: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        while let Err(lack) = is_so() {
            check()?;
            ensure!(
                Instant::now() < deadline,
                "{lack} after {} s; logs are in {}",
                READY_TIMEOUT.as_secs(),
                self.hosts.data.join("hosts").display()
            );
            thread::sleep(READY_POLL_INTERVAL);
        }
        Ok(())
    }

    fn status(&self) -> S::Status {
        self.system.status(&self.hosts)
    }

    /// The host that a role means now.
    fn resolve(&self, role: &str) -> Result<&HostProcess> {
        let host = self.system.host_of(role, &self.hosts)?;
        self.named(host.as_deref().unwrap_or(role))
    }

    /// The host that a role meant when it was killed or paused.
    fn resolve_last(&self, role: &str) -> Result<&HostProcess> {
        let last = lock(&self.last).get(role).cloned();
        match last {
            Some(name) => self.named(&name),
            None => self.resolve(role),
        }
    }

    fn named(&self, name: &str) -> Result<&HostProcess> {
        self.hosts.get(name).with_context(|| {
            let roles = Some(self.system.roles()).filter(|roles| !roles.is_empty());
            let names = self.hosts.iter().map(HostProcess::name);
            let known: Vec<&str> = roles.into_iter().chain(names).collect();
            format!("no host is {name:?}; there are {}", known.join(", "))
        })
    }

    /// Refuse what loses data, unless the user insists.
    fn check_spare(&self, host: &HostProcess, force: bool) -> Result<()> {
        // A paused process has its memory.
        let has_data = matches!(host.state().0, Process::Running | Process::Paused);
        if force || !has_data {
            return Ok(());
        }
        self.system
            .check_spare(host.name())
            .with_context(|| format!("{} cannot be spared", host.name()))
    }

    fn kill(&self, role: &str) -> Result<String> {
        let _operation = self.hosts.exclusive();
        let host = self.resolve(role)?;
        let name = host.name();
        let was_held = host.is_held();
        ensure!(
            host.kill(),
            "{name} does not run; start it: inband restart {name}"
        );
        if let (true, Some(lab)) = (was_held, self.hosts.network.lab()) {
            // The host is dead, not its link.
            lab.release(name)?;
        }
        lock(&self.last).insert(role.to_owned(), name.to_owned());
        Ok(name.to_owned())
    }

    fn restart(&self, role: &str) -> Result<String> {
        let _operation = self.hosts.exclusive();
        let host = self.resolve_last(role)?;
        self.start(host, false)?;
        lock(&self.last).remove(role);
        Ok(host.name().to_owned())
    }

    fn pause(&self, role: &str) -> Result<String> {
        let _operation = self.hosts.exclusive();
        let host = self.resolve(role)?;
        let name = host.name();
        ensure!(
            host.state().0 == Process::Running,
            "{name} does not run, so it cannot be paused"
        );
        // A role in the kernel runs on, whatever happens to the process; its link is held.
        if let Some(lab) = self.hosts.network.lab() {
            lab.hold(name)?;
        }
        host.pause();
        lock(&self.last).insert(role.to_owned(), name.to_owned());
        Ok(name.to_owned())
    }

    fn resume(&self, role: &str) -> Result<String> {
        let _operation = self.hosts.exclusive();
        let host = self.resolve_last(role)?;
        let name = host.name();
        ensure!(host.state().0 == Process::Paused, "{name} is not paused");
        host.resume();
        if let Some(lab) = self.hosts.network.lab() {
            lab.release(name)?;
        }
        lock(&self.last).remove(role);
        Ok(name.to_owned())
    }

    /// Start again what has ended by itself. Not while somebody kills or starts a host.
    fn restart_ended(&self) {
        let Ok(_operation) = self.hosts.operation.try_lock() else {
            return;
        };
        for host in self.hosts.iter() {
            host.restart_if_due(|| self.start(host, false));
        }
    }

    fn end_processes(&self) {
        if S::STOP_TIMEOUT.is_zero() {
            for host in self.hosts.iter() {
                host.kill();
            }
            return;
        }
        self.hosts.iter().for_each(HostProcess::tell_to_end);
        let deadline = Instant::now() + S::STOP_TIMEOUT;
        for host in self.hosts.iter() {
            host.wait_for_end(deadline.saturating_duration_since(Instant::now()));
        }
    }

    fn answer(&self, request: Request<S::Request>) -> Result<Reply<S::Status, S::Reply>> {
        let host = match request {
            Request::Status => return Ok(Reply::Status(Box::new(self.status()))),
            Request::Supervisor => {
                return Ok(Reply::Supervisor(SupervisorStatus {
                    pid: std::process::id(),
                    system: S::COMMAND.to_owned(),
                }))
            }
            Request::System { request } => {
                return Ok(Reply::System(self.system.request(request, &self.hosts)?));
            }
            Request::Kill { role, force } => {
                self.check_spare(self.resolve(&role)?, force)?;
                self.kill(&role)?
            }
            Request::Restart { role, force } => {
                self.check_spare(self.resolve_last(&role)?, force)?;
                self.restart(&role)?
            }
            Request::Pause { role } => self.pause(&role)?,
            Request::Resume { role } => self.resume(&role)?,
            Request::Down => {
                self.end.come();
                "all".into()
            }
        };
        Ok(Reply::Done { host })
    }
}

fn serve<S: System>(shared: &Arc<Shared<S>>) -> Result<Server> {
    let path = socket::socket_in(shared.hosts.data());
    let shared = Arc::clone(shared);
    let refuse = |message| Reply::Error { message };
    let handle = move |request| {
        let answered = shared.answer(request);
        answered.unwrap_or_else(|error| refuse(format!("{error:#}")))
    };
    Server::start(&path, handle, refuse)
        .with_context(|| format!("cannot listen at {}", path.display()))
}

/// The end that `down` brings.
#[derive(Debug, Default)]
struct End {
    has_come: Mutex<bool>,
    comes: Condvar,
}

impl End {
    fn come(&self) {
        *lock(&self.has_come) = true;
        self.comes.notify_all();
    }

    /// Wait so long for it. Has it come?
    fn wait(&self, timeout: Duration) -> bool {
        let has_come = lock(&self.has_come);
        let waited = self.comes.wait_timeout_while(has_come, timeout, |c| !*c);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// A lock whose holder may have panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
