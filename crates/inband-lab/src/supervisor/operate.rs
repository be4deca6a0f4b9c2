//! Kill, restart, roll, pause and resume the host of a role.

use std::thread;
use std::time::{Duration, Instant};

use inband_paxos::config::{Dataplane, Role};
use nix::sys::signal::Signal;

use super::{lock, ProcessState, Shared, SupervisorError};
use crate::control::{instances, log_label, log_name, HostStatus};

/// Not the name of a host but of whoever leads; of log K with `:K` behind it.
const LEADER: &str = "leader";
/// How long a leader is looked for: a host that has just taken over shows it a little later.
const LEADER_LIMIT: Duration = Duration::from_secs(2);
const LEADER_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time between two looks at a host that is to be back.
const BACK_POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Shared {
    /// The log whose leader a role means, if it means a leader and not a host.
    fn led_log(&self, role: &str) -> Option<usize> {
        let logs = self.logs();
        match role.strip_prefix(LEADER)? {
            "" => Some(0),
            label => (0..logs).find(|&log| label.strip_prefix(':') == Some(&log_label(log, logs))),
        }
    }

    /// The host that a role names for kill and pause.
    pub(super) fn resolve(&self, role: &str) -> Result<usize, SupervisorError> {
        let Some(log) = self.led_log(role) else {
            return self.named(role);
        };
        let deadline = Instant::now() + LEADER_LIMIT;
        loop {
            if let Some(leader) = Self::leader_among(&self.host_statuses(), log) {
                return Ok(leader);
            }
            if Instant::now() >= deadline {
                return Err(SupervisorError::NoLeader);
            }
            thread::sleep(LEADER_POLL_INTERVAL);
        }
    }

    /// The host that a role names for restart and resume: a leader is the one that was killed or
    /// paused under this name, not the one that has taken over since.
    fn resolve_past(&self, role: &str) -> Result<usize, SupervisorError> {
        let log = self.led_log(role);
        match log.and_then(|log| lock(&self.last_leaders).get(&log).copied()) {
            Some(index) => Ok(index),
            None => self.named(role),
        }
    }

    fn named(&self, role: &str) -> Result<usize, SupervisorError> {
        let hosts = || self.hosts.iter().map(|h| h.plan.name.as_str());
        hosts()
            .position(|name| name == role)
            .ok_or_else(|| SupervisorError::UnknownRole {
                name: role.to_owned(),
                leaders: match self.logs() {
                    1 => "leader (whoever leads now)".to_owned(),
                    logs => format!(
                        "leader:0 to leader:{} and leader:M (whoever leads that log now)",
                        logs - 2
                    ),
                },
                known: hosts()
                    .filter(|&name| name != LEADER)
                    .collect::<Vec<_>>()
                    .join(", "),
            })
    }

    fn remember(&self, role: &str, index: usize) {
        if let Some(log) = self.led_log(role) {
            lock(&self.last_leaders).insert(log, index);
        }
    }

    pub(super) fn kill(&self, role: &str) -> Result<String, SupervisorError> {
        let _operation = lock(&self.operation);
        let index = self.resolve(role)?;
        self.kill_process(index)?;
        self.remember(role, index);
        Ok(self.hosts[index].plan.name.clone())
    }

    fn kill_process(&self, index: usize) -> Result<(), SupervisorError> {
        let name = &self.hosts[index].plan.name;
        let mut slots = lock(&self.slots);
        slots[index].refresh();
        let was_paused = slots[index].state == ProcessState::Paused;
        let Some(mut child) = slots[index].child.take() else {
            return Err(SupervisorError::WrongState(format!(
                "{name} is not running; start it with `inband restart {name}`"
            )));
        };
        child.kill();
        slots[index].state = ProcessState::Killed;
        drop(slots);
        match &self.lab {
            // What was on the wire arrives, if late; the host is dead, not its link.
            Some(lab) if was_paused => Ok(lab.release(name)?),
            _ => Ok(()),
        }
    }

    pub(super) fn restart(&self, role: &str) -> Result<String, SupervisorError> {
        let _operation = lock(&self.operation);
        self.refuse_after_end()?;
        let index = self.resolve_past(role)?;
        // Not running is what one expects before a restart.
        match self.kill_process(index) {
            Ok(()) | Err(SupervisorError::WrongState(_)) => {}
            Err(error) => return Err(error),
        }
        self.spawn(index)?;
        self.wait_until_answering(index)?;
        Ok(self.hosts[index].plan.name.clone())
    }

    /// Stop a host that the others can spare, start it again, and wait until it plays its part.
    pub(super) fn roll(&self, name: &str, limit: Duration) -> Result<String, SupervisorError> {
        let _operation = lock(&self.operation);
        self.refuse_after_end()?;
        let index = self.named(name)?;
        let statuses = self.host_statuses();
        self.check_spare(index, &statuses)?;
        let applied = most_applied(&statuses);
        self.stop_hosts(&[index]);
        self.spawn(index)?;
        self.wait_until_answering(index)?;
        let deadline = Instant::now() + limit;
        while let Err(missing) = self.plays_its_part(index, &applied) {
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

    /// Whether the cluster goes on without this host.
    fn check_spare(
        &self,
        index: usize,
        statuses: &[Option<HostStatus>],
    ) -> Result<(), SupervisorError> {
        let host = &self.hosts[index].plan;
        let others = || {
            let others = statuses.iter().enumerate().filter(|(i, _)| *i != index);
            others.filter_map(|(_, status)| status.as_ref())
        };
        let refuse = |why: String| {
            let name = &host.name;
            Err(SupervisorError::WrongState(format!(
                "{name} cannot be spared: {why}"
            )))
        };
        if host.has(Role::Acceptor) {
            let acceptors = self.hosts.iter().filter(|h| h.plan.has(Role::Acceptor));
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
        if host.has(Role::Replica) && !others().any(|s| s.replica.is_some()) {
            return refuse("no other replica answers; start one with `inband restart`".into());
        }
        Ok(())
    }

    /// What a restarted host still lacks.
    fn plays_its_part(&self, index: usize, applied: &[u64]) -> Result<(), String> {
        let statuses = self.host_statuses();
        let Some(said) = &statuses[index] else {
            return Err("it does not answer".into());
        };
        if said.acceptors.iter().any(|a| !a.voting) {
            return Err("it does not vote".into());
        }
        if let Some(replica) = &said.replica {
            let is_behind = |(log, goal): (usize, &u64)| replica.applied.get(log) < Some(goal);
            if applied.iter().enumerate().any(is_behind) {
                return Err(format!(
                    "its store is at {}, behind {}",
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
        let index = self.resolve(role)?;
        let host = &self.hosts[index];
        let mut slots = lock(&self.slots);
        slots[index].refresh();
        if slots[index].state != ProcessState::Running {
            return Err(SupervisorError::WrongState(format!(
                "{} is not running, so it cannot be paused",
                host.plan.name
            )));
        }
        if let Some(lab) = &self.lab {
            lab.hold(&host.plan.name)?;
        }
        // Roles in the kernel run on whatever happens to their loader; the link is their pause.
        if let (Dataplane::Udp, Some(child)) = (host.dataplane, &mut slots[index].child) {
            child.signal(Signal::SIGSTOP);
        }
        slots[index].state = ProcessState::Paused;
        drop(slots);
        self.remember(role, index);
        Ok(host.plan.name.clone())
    }

    pub(super) fn resume(&self, role: &str) -> Result<String, SupervisorError> {
        let _operation = lock(&self.operation);
        let index = self.resolve_past(role)?;
        self.resume_host(index)?;
        Ok(self.hosts[index].plan.name.clone())
    }

    pub(super) fn resume_host(&self, index: usize) -> Result<(), SupervisorError> {
        let host = &self.hosts[index];
        let mut slots = lock(&self.slots);
        slots[index].refresh();
        if slots[index].state != ProcessState::Paused {
            return Err(SupervisorError::WrongState(format!(
                "{} is not paused",
                host.plan.name
            )));
        }
        if let (Dataplane::Udp, Some(child)) = (host.dataplane, &mut slots[index].child) {
            child.signal(Signal::SIGCONT);
        }
        if let Some(lab) = &self.lab {
            lab.release(&host.plan.name)?;
        }
        slots[index].state = ProcessState::Running;
        Ok(())
    }

    fn refuse_after_end(&self) -> Result<(), SupervisorError> {
        if lock(&self.ended).is_some() {
            return Err(SupervisorError::WrongState(
                "the cluster has been stopped".into(),
            ));
        }
        Ok(())
    }
}

/// The most that any replica has applied, of every log.
fn most_applied(statuses: &[Option<HostStatus>]) -> Vec<u64> {
    let replicas = statuses.iter().flatten().filter_map(|s| s.replica.as_ref());
    replicas.fold(Vec::new(), |mut most, replica| {
        most.resize(most.len().max(replica.applied.len()), 0);
        let pairs = most.iter_mut().zip(&replica.applied);
        pairs.for_each(|(most, &applied)| *most = applied.max(*most));
        most
    })
}
