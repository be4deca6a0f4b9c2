//! Runs a cluster of any [`System`]: the directory and its lock, the network, the processes and their restarts, and the
//! control socket.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use crate::restart::Watcher;
use anyhow::{bail, ensure, Context, Result};
use inband_host::line_json::{self, Server};
use inband_host::state_dir::StateLock;
use serde::Serialize;

use crate::host_process::{HostProcess, Process};
use crate::link;
use crate::meant::Meant;
use crate::network::{self, Network};
use crate::socket::{self, Reply, Request, SupervisorStatus};
use crate::system::System;
use crate::wait_notice::WaitNotice;
use inband_host::system_file;

const INTERRUPTED: &str = "interrupted; what was started has been stopped";
/// Timeout for a cluster to become ready.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait until all hosts take part before one is restarted: longer than an election.
const SPARE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request waits for others. With what it then does, it is answered within [`socket::CALL_TIMEOUT`].
const BEGIN_TIMEOUT: Duration = Duration::from_secs(30);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(5);
const _: () = assert!(
    BEGIN_TIMEOUT.as_secs() + SPARE_TIMEOUT.as_secs() + READY_TIMEOUT.as_secs()
        < socket::CALL_TIMEOUT.as_secs()
);
const HOSTS_DIR: &str = "hosts";
/// Where the hosts' directories are while they are being removed.
const REMOVED_DIR: &str = "hosts.removed";

/// Returns the directory of a host's files, within the cluster's directory.
pub fn host_dir(data: &Path, name: &str) -> PathBuf {
    data.join(HOSTS_DIR).join(name.replace('/', "-"))
}

/// Removes the directories of all hosts, also of those that a former cluster had in addition, and these files of the
/// cluster's directory. All of that is gone at once: if this is interrupted, [`finish_removal`] does the rest.
pub(crate) fn remove_hosts(data: &Path, files: &[&str]) -> Result<()> {
    finish_removal(data, files)?;
    let removed = data.join(REMOVED_DIR);
    let begin = || match fs::rename(data.join(HOSTS_DIR), &removed) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir(&removed),
        done => done,
    };
    begin()
        .with_context(|| format!("cannot remove the hosts' directories in {}", data.display()))?;
    sync(data)?;
    finish_removal(data, files)
}

/// Goes on with [`remove_hosts`] if it was interrupted.
pub(crate) fn finish_removal(data: &Path, files: &[&str]) -> Result<()> {
    let removed = data.join(REMOVED_DIR);
    if !removed.exists() {
        return Ok(());
    }
    let paths = files.iter().map(|name| data.join(name));
    for path in paths.filter(|path| path.exists()) {
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    // What is left says that these files are gone.
    sync(data)?;
    fs::remove_dir_all(&removed).with_context(|| format!("cannot remove {}", removed.display()))?;
    sync(data)
}

/// Writes a file of the cluster's directory as a whole, durably.
pub(crate) fn store(data: &Path, name: &str, value: &impl Serialize) -> Result<()> {
    let path = data.join(name);
    let store = || -> Result<()> {
        let text = serde_json::to_vec_pretty(value)?;
        Ok(inband_storage::replace(
            &path,
            &text,
            inband_storage::FILE_MODE,
        )?)
    };
    store().with_context(|| format!("cannot write {}", path.display()))
}

fn sync(dir: &Path) -> Result<()> {
    inband_storage::sync_dir(dir).with_context(|| format!("cannot sync {}", dir.display()))
}

/// Returns whether a directory holds a cluster of this system, running or not.
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
    /// Held for one kill, restart, ... at a time.
    operation: Mutex<()>,
}

impl Hosts {
    /// Returns the cluster's directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Returns all processes, in the order in which they are started.
    pub fn iter(&self) -> impl Iterator<Item = &HostProcess> + Clone {
        self.processes.iter()
    }

    pub fn get(&self, name: &str) -> Option<&HostProcess> {
        self.iter().find(|host| host.name() == name)
    }

    /// Returns whether a host's process runs and is not paused.
    pub fn is_running(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|host| host.state().0 == Process::Running)
    }

    /// No process is started or killed on request while this is held.
    pub fn exclusive(&self) -> MutexGuard<'_, ()> {
        lock(&self.operation)
    }

    /// As [`Hosts::exclusive`], for a request whose caller waits for a limited time: what it asked for must not happen after
    /// it has been told that there was no answer.
    fn begin(&self) -> Result<MutexGuard<'_, ()>> {
        lock_within(&self.operation, BEGIN_TIMEOUT).with_context(|| {
            let waited_s = BEGIN_TIMEOUT.as_secs();
            format!(
                "hosts have been started or stopped for {waited_s} s; nothing was done, try again"
            )
        })
    }

    /// Fails if a process has ended that is not optional, with the end of its log, or if all have.
    fn check_alive(&self) -> Result<()> {
        let has_ended = |host: &&HostProcess| host.state().0 == Process::Ended;
        let mut started = self.iter().filter(|host| !host.is_on_request());
        let have_all_ended = started.all(|host| has_ended(&host));
        let mut ended = self.iter().filter(has_ended);
        match ended.find(|host| have_all_ended || !host.is_optional()) {
            Some(host) => bail!("{} ended: {}", host.name(), host.log_tail()),
            None => Ok(()),
        }
    }
}

/// A running cluster. Dropping it ends its processes and removes its network.
pub struct Supervisor<S: System> {
    // Dropped first, so that no request reaches a cluster that is being taken apart, and none of it is restarted.
    watcher: Option<Watcher>,
    server: Option<Server>,
    shared: Arc<Shared<S>>,
}

struct Shared<S: System> {
    system: S,
    hosts: Hosts,
    meant: Mutex<Meant>,
    end: End,
    // Last: once it is free the next `up` can begin.
    _lock: StateLock,
}

impl<S: System> Supervisor<S> {
    /// Starts all hosts and waits until the cluster is ready.
    pub fn start(spec: S::Spec) -> Result<Supervisor<S>> {
        Self::start_unless(spec, &|| false)
    }

    /// As [`Supervisor::start`]; while it waits, it asks often whether to give up, and then ends what it has started.
    pub fn start_unless(mut spec: S::Spec, gives_up: &dyn Fn() -> bool) -> Result<Supervisor<S>> {
        let data = S::data(&mut spec);
        // Before the directory becomes a cluster's.
        line_json::check_path(&socket::socket_in(data))?;
        let lock = take_directory::<S>(data)?;
        let data = data.clone();
        let (mut system, plan) = S::plan(spec)?;
        let network = Network::create(&network::name_for(S::COMMAND, &data), plan)?;
        let mut processes = Vec::new();
        for plan in system.configure(&network)? {
            if let Some(socket) = &plan.socket {
                line_json::check_path(socket)?;
            }
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
            meant: Mutex::default(),
            end: End::default(),
            _lock: lock,
        });
        if let Err(error) = shared.start_all(gives_up) {
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

    /// Returns the status of the cluster and its hosts.
    pub fn status(&self) -> S::Status {
        self.shared.status()
    }

    /// Kills the process of a role or host, even if the cluster loses its data. Returns the host's name.
    pub fn kill(&self, role: &str) -> Result<String> {
        self.shared.kill(role, true)
    }

    /// Restarts the process of a role or host, even if the cluster loses its data, and does not wait until it takes part; a
    /// role means the host that was killed or paused under this name, if there is one. Returns the host's name.
    pub fn restart(&self, role: &str) -> Result<String> {
        self.shared.restart(role, true)
    }

    /// Holds the packets of a role or host; without namespaces, stops its process. Returns the host's name.
    pub fn pause(&self, role: &str) -> Result<String> {
        self.shared.pause(role)
    }

    /// Undoes a pause. Returns the host's name.
    pub fn resume(&self, role: &str) -> Result<String> {
        self.shared.resume(role)
    }

    /// Waits for `inband down`. Returns false after the timeout.
    pub fn wait_for_end(&self, timeout: Duration) -> bool {
        self.shared.end.wait(timeout)
    }
}

impl<S: System> Drop for Supervisor<S> {
    fn drop(&mut self) {
        self.watcher = None;
        // The server waits for its answers, which may wait for a host.
        self.shared.end.come();
        self.server = None;
        let _operation = self.shared.hosts.exclusive();
        self.shared.end_processes();
    }
}

/// Creates a cluster's directory if there is none, locks it, and records which system it belongs to. The path becomes
/// absolute.
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
    fn start_all(&self, gives_up: &dyn Fn() -> bool) -> Result<()> {
        for host in self.hosts.iter().filter(|host| !host.is_on_request()) {
            match self.start(host, true, gives_up) {
                Err(error) if host.is_optional() && host.state().0 == Process::Ended => {
                    eprintln!("the cluster starts without {}: {error:#}", host.name());
                }
                started => started?,
            }
        }
        self.wait(
            READY_TIMEOUT,
            || self.system.ready(&self.hosts),
            || {
                ensure!(!gives_up(), INTERRUPTED);
                self.hosts.check_alive()
            },
        )
    }

    /// Starts a process and waits until it is up. `is_first`: the whole cluster is being started.
    fn start(&self, host: &HostProcess, is_first: bool, gives_up: &dyn Fn() -> bool) -> Result<()> {
        if is_first {
            self.wait(
                READY_TIMEOUT,
                || self.system.may_start(host.name(), &self.hosts),
                || {
                    ensure!(!gives_up(), INTERRUPTED);
                    self.hosts.check_alive()
                },
            )?;
            self.system.starting(host.name())?;
        }
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
        self.wait(READY_TIMEOUT, is_up, || match host.state().0 {
            Process::Ended => bail!("{name} ended: {}", host.log_tail()),
            _ if gives_up() => bail!(INTERRUPTED),
            _ => Ok(()),
        })
    }

    /// Waits until a condition holds, as long as `check` succeeds.
    fn wait(
        &self,
        timeout: Duration,
        is_so: impl Fn() -> Result<(), String>,
        check: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let mut notice = WaitNotice::new();
        while let Err(lack) = is_so() {
            check()?;
            notice.waits_for(timeout, || lack.clone());
            ensure!(
                Instant::now() < deadline,
                "{lack} after {} s; logs are in {}",
                timeout.as_secs(),
                self.hosts.data.join(HOSTS_DIR).display()
            );
            thread::sleep(READY_POLL_INTERVAL);
        }
        Ok(())
    }

    fn status(&self) -> S::Status {
        self.system.status(&self.hosts)
    }

    /// Returns the host that a role means now.
    fn resolve(&self, role: &str) -> Result<&HostProcess> {
        let host = self.system.host_of(role, &self.hosts)?;
        self.named(host.as_deref().unwrap_or(role))
    }

    /// Returns the host that a role meant when it was killed or paused. `is_it`: whether the operation is for such a host.
    fn resolve_past(&self, role: &str, is_it: impl Fn(Process) -> bool) -> Result<&HostProcess> {
        let is_meant = |name: &str| {
            self.hosts
                .get(name)
                .is_some_and(|host| is_it(host.state().0))
        };
        let past = lock(&self.meant).host(role, is_meant);
        match past {
            Some(name) => self.named(&name),
            None => self.resolve(role),
        }
    }

    fn note(&self, role: &str, name: &str) {
        lock(&self.meant).note((role != name).then_some(role), name);
    }

    fn named(&self, name: &str) -> Result<&HostProcess> {
        self.hosts.get(name).with_context(|| {
            let roles = Some(self.system.roles()).filter(|roles| !roles.is_empty());
            let roles = roles.map(str::to_owned).into_iter();
            let known: Vec<String> = roles.chain(self.system.names(&self.hosts)).collect();
            format!("no host is {name:?}; there are {}", known.join(", "))
        })
    }

    /// Refuses what loses data, unless forced. Call it under the lock of the operation that it is for: with two kills at
    /// once, each would count on the host that the other one kills.
    fn check_spare(&self, host: &HostProcess, force: bool) -> Result<()> {
        // A paused process still has its memory.
        let has_data = matches!(host.state().0, Process::Running | Process::Paused);
        if force || !has_data {
            return Ok(());
        }
        self.system
            .check_spare(host.name())
            .with_context(|| format!("{} cannot be spared", host.name()))
    }

    fn kill(&self, role: &str, force: bool) -> Result<String> {
        let _operation = self.hosts.begin()?;
        let host = self.resolve(role)?;
        self.check_spare(host, force)?;
        let name = host.name();
        let was_held = host.is_held();
        let ran = host.kill();
        if let (true, Some(lab)) = (was_held, self.hosts.network.lab()) {
            // The host has failed, not its link.
            lab.release(name)?;
        }
        ensure!(ran, "{name} does not run; start it: inband restart {name}");
        self.note(role, name);
        Ok(name.to_owned())
    }

    /// Restarts a host and waits until it takes part; not if forced, because then the cluster may have lost its data.
    fn restart(&self, role: &str, force: bool) -> Result<String> {
        let operation = self.hosts.begin()?;
        let began = Instant::now();
        let host = self.resolve_past(role, |_| true)?;
        self.check_spare(host, force)?;
        self.start(host, false, &|| false)?;
        lock(&self.meant).forget(host.name());
        // What it waits for may be up to the user, such as the end of another host's pause.
        drop(operation);
        if !force {
            let left = READY_TIMEOUT.saturating_sub(began.elapsed());
            self.wait_for_part(host, left)?;
        }
        Ok(host.name().to_owned())
    }

    /// Waits until a host that was restarted takes part.
    fn wait_for_part(&self, host: &HostProcess, limit: Duration) -> Result<()> {
        let name = host.name();
        let takes_part = || self.system.takes_part(name);
        let runs = || match host.state().0 {
            _ if self.end.wait(Duration::ZERO) => bail!("the cluster is being stopped"),
            Process::Running => Ok(()),
            Process::Ended => bail!("it ended: {}", host.log_tail()),
            Process::Paused | Process::Killed => bail!("it was stopped meanwhile"),
        };
        self.wait(limit, takes_part, runs)
            .with_context(|| format!("{name} was restarted, but does not take part"))
    }

    /// Restarts a host once all take part.
    fn roll(&self, name: &str) -> Result<String> {
        let _operation = self.hosts.begin()?;
        let host = self.named(name)?;
        let take_part = || self.system.all_take_part(&self.hosts);
        self.wait(SPARE_TIMEOUT, take_part, || Ok(()))
            .with_context(|| format!("{name} cannot be spared"))?;
        self.check_spare(host, false)?;
        if !S::HAND_OVER_TIMEOUT.is_zero() {
            host.tell_to_end();
            host.wait_for_end(S::HAND_OVER_TIMEOUT);
        }
        self.start(host, false, &|| false)?;
        lock(&self.meant).forget(name);
        Ok(name.to_owned())
    }

    fn pause(&self, role: &str) -> Result<String> {
        let _operation = self.hosts.begin()?;
        let host = self.resolve(role)?;
        let name = host.name();
        ensure!(
            host.state().0 == Process::Running,
            "{name} does not run, so it cannot be paused"
        );
        // A role in the kernel keeps running whatever happens to the process, so its link is held.
        if let Some(lab) = self.hosts.network.lab() {
            lab.hold(name)?;
        }
        host.pause();
        self.note(role, name);
        Ok(name.to_owned())
    }

    fn resume(&self, role: &str) -> Result<String> {
        let _operation = self.hosts.begin()?;
        let host = self.resolve_past(role, |process| process == Process::Paused)?;
        let name = host.name();
        ensure!(host.state().0 == Process::Paused, "{name} is not paused");
        host.resume();
        if let Some(lab) = self.hosts.network.lab() {
            lab.release(name)?;
        }
        lock(&self.meant).forget(name);
        Ok(name.to_owned())
    }

    fn link(&self, role: &str, change: &link::Change) -> Result<String> {
        let _operation = self.hosts.begin()?;
        let host = self.resolve(role)?;
        change.apply(self.hosts.network.lab(), host.name())?;
        Ok(host.name().to_owned())
    }

    /// Restarts processes that have ended by themselves, unless a host is being killed or started.
    fn restart_ended(&self) {
        for host in self.hosts.iter() {
            // For one host at a time: users wait meanwhile.
            let Ok(_operation) = self.hosts.operation.try_lock() else {
                return;
            };
            host.restart_if_due(|| self.start(host, false, &|| false));
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
            Request::Kill { role, force } => self.kill(&role, force)?,
            Request::Restart { role, force } => self.restart(&role, force)?,
            Request::Roll { host } => self.roll(&host)?,
            Request::TakePart => {
                let take_part = self.system.all_take_part(&self.hosts);
                take_part.map_err(anyhow::Error::msg)?;
                "all".into()
            }
            Request::Pause { role } => self.pause(&role)?,
            Request::Resume { role } => self.resume(&role)?,
            Request::Link { role, change } => self.link(&role, &change)?,
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

/// Signals that `down` was requested.
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

    /// Returns false after the timeout.
    fn wait(&self, timeout: Duration) -> bool {
        let has_come = lock(&self.has_come);
        let waited = self.comes.wait_timeout_while(has_come, timeout, |c| !*c);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Locks a mutex, unless others hold it for this long.
fn lock_within<T>(mutex: &Mutex<T>, limit: Duration) -> Option<MutexGuard<'_, T>> {
    let deadline = Instant::now() + limit;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return None,
            Err(TryLockError::WouldBlock) => thread::sleep(READY_POLL_INTERVAL),
        }
    }
}

/// Locks a mutex even if its last holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_waits_too_long_does_nothing() {
        let mutex = Mutex::new(());
        let limit = Duration::from_millis(50);
        let held = mutex.lock();
        assert!(lock_within(&mutex, limit).is_none());
        drop(held);
        assert!(lock_within(&mutex, limit).is_some());
    }
}
