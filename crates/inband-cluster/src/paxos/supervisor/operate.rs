//! Kill, restart, roll, pause and resume the host of a role.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use inband_paxos::config::{Dataplane, Role};

use super::{lock, HostRuntime, Shared, SupervisorError};
use crate::host_process::Process;
use crate::link::Change;
use crate::paxos::control::{instances, log_label, log_name, HostStatus};

/// Means the host that leads now; followed by `:K`, that of log K. No host has this name.
const LEADER: &str = "leader";
/// Timeout for finding a leader: a host that has just taken over shows it slightly later.
const LEADER_LIMIT: Duration = Duration::from_secs(2);
const LEADER_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Timeout for a host that the cluster cannot yet do without.
const SPARE_LIMIT: Duration = Duration::from_secs(15);
/// Interval at which a restarted host is polled.
const BACK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The key of a log's leader in [`Meant`](crate::meant::Meant).
fn leader_of(log: usize) -> String {
    format!("{LEADER}:{log}")
}

impl Shared {
    /// Returns the log whose leader a role names; `None` if it names a host.
    fn led_log(&self, role: &str) -> Option<usize> {
        let logs = self.logs();
        match role.strip_prefix(LEADER)? {
            "" => Some(0),
            label => (0..logs).find(|&log| label.strip_prefix(':') == Some(&log_label(log, logs))),
        }
    }

    /// Returns the host that a role names for kill and pause.
    pub(super) fn resolve(&self, role: &str) -> Result<Arc<HostRuntime>, SupervisorError> {
        let Some(log) = self.led_log(role) else {
            return self.named_or_role(role);
        };
        let deadline = Instant::now() + LEADER_LIMIT;
        loop {
            let hosts = self.hosts();
            if let Some(leader) = Self::leader_among(&self.host_statuses(&hosts), log) {
                return Ok(Arc::clone(&hosts[leader]));
            }
            if Instant::now() >= deadline {
                return Err(SupervisorError::NoLeader);
            }
            thread::sleep(LEADER_POLL_INTERVAL);
        }
    }

    /// Returns the host that a role means for restart and resume: a leader is the one that was killed or paused under
    /// this name, not the one that has taken over since. `is_it`: whether the operation is for such a host.
    fn resolve_past(
        &self,
        role: &str,
        is_it: impl Fn(Process) -> bool,
    ) -> Result<Arc<HostRuntime>, SupervisorError> {
        let Some(log) = self.led_log(role) else {
            return self.named_or_role(role);
        };
        let hosts = self.hosts();
        let found = |name: &str| hosts.iter().find(|host| host.name() == name);
        let is_meant = |name: &str| found(name).is_some_and(|host| is_it(host.process.state().0));
        let past = lock(&self.meant).host(&leader_of(log), is_meant);
        match past.and_then(|name| found(&name)) {
            Some(host) => Ok(Arc::clone(host)),
            None => self.resolve(role),
        }
    }

    pub(super) fn named(&self, name: &str) -> Result<Arc<HostRuntime>, SupervisorError> {
        let hosts = self.hosts();
        let found = hosts.iter().find(|host| host.name() == name);
        found.cloned().ok_or_else(|| {
            let known: Vec<&str> = hosts.iter().map(|host| host.name()).collect();
            SupervisorError::UnknownHost {
                name: name.to_owned(),
                known: known.join(", "),
            }
        })
    }

    /// Like [`named`](Self::named), where a role could have been given as well.
    fn named_or_role(&self, role: &str) -> Result<Arc<HostRuntime>, SupervisorError> {
        self.named(role).map_err(|error| match error {
            SupervisorError::UnknownHost { name, known } => SupervisorError::UnknownRole {
                name,
                leaders: match self.logs() {
                    1 => "leader (the host that leads now)".to_owned(),
                    logs => format!(
                        "leader:0 to leader:{} and leader:M (the host that leads that log now)",
                        logs - 2
                    ),
                },
                known,
            },
            other => other,
        })
    }

    fn remember(&self, role: &str, host: &HostRuntime) {
        let role = self.led_log(role).map(leader_of);
        lock(&self.meant).note(role.as_deref(), host.name());
    }

    pub(super) fn kill(&self, role: &str) -> Result<String, SupervisorError> {
        let _operation = lock(&self.operation);
        let host = self.resolve(role)?;
        self.kill_process(&host)?;
        self.remember(role, &host);
        Ok(host.plan.name.clone())
    }

    fn kill_process(&self, host: &HostRuntime) -> Result<(), SupervisorError> {
        let name = host.name();
        let was_held = host.process.is_held();
        let ran = host.process.kill();
        if was_held {
            // Packets that were held still arrive, late: the host has failed, not its link.
            self.release(host)?;
        }
        if !ran {
            return Err(SupervisorError::WrongState(format!(
                "{name} is not running; start it with `inband restart {name}`"
            )));
        }
        Ok(())
    }

    /// Ends a pause of its link.
    fn release(&self, host: &HostRuntime) -> Result<(), SupervisorError> {
        match &self.lab {
            Some(lab) => Ok(lab.release(host.name())?),
            None => Ok(()),
        }
    }

    /// Restarts processes that have ended by themselves, unless another operation is running.
    pub(super) fn restart_ended(&self) {
        let Ok(_operation) = self.operation.try_lock() else {
            return;
        };
        if self.stopping.load(Ordering::Acquire) || lock(&self.ended).is_some() {
            return;
        }
        for host in self.hosts() {
            host.process
                .restart_if_due(host.name(), &host.log(), || self.spawn(&host));
        }
    }

    pub(super) fn restart(&self, role: &str) -> Result<String, SupervisorError> {
        let _operation = lock(&self.operation);
        self.refuse_after_end()?;
        let host = self.resolve_past(role, |_| true)?;
        // The process may already have ended before a restart.
        match self.kill_process(&host) {
            Ok(()) | Err(SupervisorError::WrongState(_)) => {}
            Err(error) => return Err(error),
        }
        self.spawn(&host)?;
        self.wait_until_answering(&host)?;
        lock(&self.meant).forget(host.name());
        Ok(host.plan.name.clone())
    }

    /// Stops a host that the others can do without, starts it again, and waits until it is back in service.
    pub(super) fn roll(&self, name: &str, limit: Duration) -> Result<String, SupervisorError> {
        let _operation = lock(&self.operation);
        self.refuse_after_end()?;
        let host = self.named(name)?;
        // Fails for a host that is not paused.
        let _ = self.resume_host(&host);
        let applied = most_applied(&self.wait_until_spared(&host, limit.min(SPARE_LIMIT))?);
        self.stop_hosts(std::slice::from_ref(&host));
        self.spawn(&host)?;
        self.wait_until_answering(&host)?;
        lock(&self.meant).forget(name);
        let deadline = Instant::now() + limit;
        while let Err(missing) = self.plays_its_part(&host, &applied) {
            if Instant::now() >= deadline {
                return Err(SupervisorError::WrongState(format!(
                    "{name} was restarted, but after {} s {missing}; no further host was touched",
                    limit.as_secs()
                )));
            }
            thread::sleep(BACK_POLL_INTERVAL);
        }
        Ok(name.to_owned())
    }

    /// Waits until the cluster can do without this host, because the control plane may be repairing it. Returns the
    /// statuses of all hosts.
    fn wait_until_spared(
        &self,
        host: &HostRuntime,
        limit: Duration,
    ) -> Result<Vec<Option<HostStatus>>, SupervisorError> {
        let deadline = Instant::now() + limit;
        loop {
            let hosts = self.hosts();
            let statuses = self.host_statuses(&hosts);
            match self.check_spare(host, &hosts, &statuses) {
                Ok(()) => return Ok(statuses),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => thread::sleep(BACK_POLL_INTERVAL),
            }
        }
    }

    /// Checks that the cluster can do without this host.
    fn check_spare(
        &self,
        host: &HostRuntime,
        hosts: &[Arc<HostRuntime>],
        statuses: &[Option<HostStatus>],
    ) -> Result<(), SupervisorError> {
        let others = || {
            let others = hosts.iter().zip(statuses).filter(|(h, _)| h.id != host.id);
            others.filter_map(|(_, status)| status.as_ref())
        };
        let refuse = |why: String| {
            let name = host.name();
            Err(SupervisorError::WrongState(format!(
                "{name} cannot be spared: {why}"
            )))
        };
        if host.plan.has(Role::Acceptor) {
            let acceptors = hosts.iter().filter(|h| h.plan.has(Role::Acceptor));
            let majority = acceptors.count() / 2 + 1;
            for log in 0..self.logs() {
                let voting = others().filter_map(|s| s.acceptors.get(log));
                let voting = voting.filter(|a| a.voting).count();
                if voting < majority {
                    let log = log_name(log, self.logs());
                    return refuse(format!(
                        "only {voting} other acceptors vote in {log}, and {majority} decide; wait \
                         until all vote, see `inband status`"
                    ));
                }
            }
        }
        if host.plan.has(Role::Replica) && !others().any(|s| s.replica.is_some()) {
            return refuse("no other replica answers; start one with `inband restart`".into());
        }
        Ok(())
    }

    /// Checks that a host that has just started is back in service. The error says what it lacks.
    pub(super) fn plays_its_part(&self, host: &HostRuntime, applied: &[u64]) -> Result<(), String> {
        let hosts = self.hosts();
        let statuses = self.host_statuses(&hosts);
        let index = hosts.iter().position(|h| h.id == host.id);
        let Some(said) = index.and_then(|i| statuses[i].as_ref()) else {
            return Err("it does not answer".into());
        };
        if said.acceptors.iter().any(|a| !a.voting) {
            return Err("it does not vote".into());
        }
        if let Some(replica) = &said.replica {
            let is_behind = |(log, goal): (usize, &u64)| replica.applied.get(log) < Some(goal);
            if replica.catching_up || applied.iter().enumerate().any(is_behind) {
                return Err(format!(
                    "its store is at {}, and catches up with {}",
                    instances(&replica.applied),
                    instances(applied)
                ));
            }
        }
        let logs = self.logs();
        match (0..logs).find(|&log| Self::leader_among(&statuses, log).is_none()) {
            Some(log) => Err(format!("{} has no leader", log_name(log, logs))),
            None => Ok(()),
        }
    }

    pub(super) fn pause(&self, role: &str) -> Result<String, SupervisorError> {
        let _operation = lock(&self.operation);
        let host = self.resolve(role)?;
        if !host.is_running() {
            return Err(SupervisorError::WrongState(format!(
                "{} is not running, so it cannot be paused",
                host.name()
            )));
        }
        if let Some(lab) = &self.lab {
            lab.hold(host.name())?;
        }
        // Roles in the kernel keep running whatever happens to their loader; they are paused through the link.
        host.process
            .pause(self.lab.is_some(), host.dataplane == Dataplane::Udp);
        self.remember(role, &host);
        Ok(host.plan.name.clone())
    }

    pub(super) fn link(&self, role: &str, change: &Change) -> Result<String, SupervisorError> {
        let _operation = lock(&self.operation);
        let host = self.resolve(role)?;
        change.apply(self.lab.as_ref(), host.name())?;
        Ok(host.plan.name.clone())
    }

    pub(super) fn resume(&self, role: &str) -> Result<String, SupervisorError> {
        let _operation = lock(&self.operation);
        let host = self.resolve_past(role, |process| process == Process::Paused)?;
        self.resume_host(&host)?;
        Ok(host.plan.name.clone())
    }

    pub(super) fn resume_host(&self, host: &HostRuntime) -> Result<(), SupervisorError> {
        if host.process.state().0 != Process::Paused {
            return Err(SupervisorError::WrongState(format!(
                "{} is not paused",
                host.name()
            )));
        }
        host.process.resume();
        lock(&self.meant).forget(host.name());
        self.release(host)
    }

    pub(super) fn refuse_after_end(&self) -> Result<(), SupervisorError> {
        if lock(&self.ended).is_some() {
            return Err(SupervisorError::WrongState(
                "the cluster has been stopped".into(),
            ));
        }
        Ok(())
    }
}

/// By log: the last instance that any replica has applied.
pub(super) fn most_applied(statuses: &[Option<HostStatus>]) -> Vec<u64> {
    let replicas = statuses.iter().flatten().filter_map(|s| s.replica.as_ref());
    replicas.fold(Vec::new(), |mut most, replica| {
        most.resize(most.len().max(replica.applied.len()), 0);
        let pairs = most.iter_mut().zip(&replica.applied);
        pairs.for_each(|(most, &applied)| *most = applied.max(*most));
        most
    })
}
