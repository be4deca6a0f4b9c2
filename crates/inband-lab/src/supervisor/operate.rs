//! Kill, restart, pause and resume the host of a role.

use std::thread;
use std::time::{Duration, Instant};

use inband_paxos::config::Dataplane;
use nix::sys::signal::Signal;

use super::{lock, ProcessState, Shared, SupervisorError};
use crate::control::log_label;

/// Not the name of a host but of whoever leads; of log K with `:K` behind it.
const LEADER: &str = "leader";
/// How long a leader is looked for: a host that has just taken over shows it a little later.
const LEADER_LIMIT: Duration = Duration::from_secs(2);
const LEADER_POLL_INTERVAL: Duration = Duration::from_millis(10);

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
