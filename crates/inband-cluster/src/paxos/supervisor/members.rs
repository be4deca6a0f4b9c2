//! Adding and removing hosts while the cluster serves.
//!
//! The control plane decides who is a member. The cluster's record is written before a request, with the host marked as
//! changing. If the supervisor dies half-way, the next start runs that host too, asks how the change ended, and keeps
//! or drops the host.

use std::fs;
use std::net::SocketAddrV4;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use inband_control::coordinator::Waiting;
use inband_control::service::{Request, Response};
use inband_control::state::Refusal;
use inband_paxos::config::{bounds, Role};
use serde::{Deserialize, Serialize};

use super::operate::most_applied;
use super::start::{acceptors_not_voting, first_listeners, lab_address, own_listener, resolve};
use super::{lock, HostRuntime, Shared, SupervisorError};
use crate::host_process::ProcessSlot;
use crate::listeners::bind;
use crate::loopback_ports::free_loopback_ports;
use crate::paxos::change::{
    self, member_of, ChangeError, Failure, Goal, Plane, PlaneError, Watch, ACCEPT_LIMIT,
    STALL_LIMIT,
};
use crate::paxos::cluster_dir::HostRecord;
use crate::paxos::control::log_name;
use crate::paxos::layout::{kind_of, HostPlan};
use crate::paxos::memory::{self, MemoryNeed};

/// Timeout for a moved leader.
const LEADER_LIMIT: Duration = Duration::from_secs(15);
/// Interval at which the request is repeated.
const LEADER_AGAIN: Duration = Duration::from_secs(1);
/// Timeout for the controllers to remove one of them.
const VOTERS_LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(30);
/// With fewer controllers than this, a new acceptor becomes one as well, as at the first start. Often another acceptor
/// is removed next, and with it a controller.
const CONTROLLERS_WANTED: usize = 5;

/// The kind of a new host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberKind {
    Acceptor,
    /// It holds the store, and may lead.
    Replica,
}

impl MemberKind {
    /// Returns its name, which is also the first part of a new host's name.
    pub fn name(self) -> &'static str {
        match self {
            MemberKind::Acceptor => "acceptor",
            MemberKind::Replica => "replica",
        }
    }
}

impl FromStr for MemberKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "acceptor" => Ok(Self::Acceptor),
            "replica" => Ok(Self::Replica),
            other => Err(format!(
                "{other:?} is nothing to add; choose acceptor or replica"
            )),
        }
    }
}

impl Shared {
    pub(super) fn add_member(&self, kind: MemberKind) -> Result<String, SupervisorError> {
        let _membership = self.begin_change()?;
        let roles = match kind {
            MemberKind::Acceptor => self.acceptor_roles(),
            MemberKind::Replica => vec![Role::Replica, Role::Leader],
        };
        let host = self.bring_up(kind.name(), roles, None)?;
        let request = Request::Add(member_of(&host.node()));
        let goal = Goal {
            comes: Some(host.id),
            goes: None,
        };
        self.admit(&host, &request, goal)?;
        self.wait_until_it_plays_its_part(&host)?;
        Ok(host.plan.name.clone())
    }

    pub(super) fn replace_member(&self, name: &str) -> Result<String, SupervisorError> {
        let _membership = self.begin_change()?;
        let old = self.named(name)?;
        let new = self.bring_up(kind_of(name).0, old.plan.roles.clone(), Some(&old))?;
        let request = Request::Replace {
            old: old.id,
            new: member_of(&new.node()),
        };
        let goal = Goal {
            comes: Some(new.id),
            goes: Some(old.id),
        };
        self.set_changing(old.id, true)?;
        self.admit(&new, &request, goal)?;
        self.wait_until_it_plays_its_part(&new)?;
        self.wait_until_controllers_vote()?;
        self.say(format!("{name} leaves"));
        self.drop_host(&old)?;
        Ok(new.plan.name.clone())
    }

    pub(super) fn remove_member(&self, name: &str) -> Result<String, SupervisorError> {
        let _membership = self.begin_change()?;
        let host = self.named(name)?;
        let is_replica = |h: &&Arc<HostRuntime>| h.plan.has(Role::Replica);
        if host.plan.has(Role::Replica) && self.hosts().iter().filter(is_replica).count() == 1 {
            return Err(SupervisorError::WrongState(format!(
                "{name} is the last replica: nobody else has the data; add another first, or stop \
                 the cluster with `inband down`"
            )));
        }
        let goal = Goal {
            comes: None,
            goes: Some(host.id),
        };
        self.set_changing(host.id, true)?;
        self.say(format!("asking the control plane to let {name} go"));
        if let Err(failure) = change::carry_out(self, &Request::Remove(host.id), goal) {
            if matches!(failure, Failure::Undone(_)) {
                self.set_changing(host.id, false)?;
            }
            return Err(failure.error().into());
        }
        self.wait_until_controllers_vote()?;
        self.say(format!("stopping {name}"));
        self.drop_host(&host)?;
        self.wait_until_the_others_serve(name)?;
        Ok(name.to_owned())
    }

    pub(super) fn move_leader(
        &self,
        log: Option<u32>,
        name: &str,
    ) -> Result<String, SupervisorError> {
        let _membership = self.begin_change()?;
        let host = self.named(name)?;
        self.ask_until_accepted(&Request::MoveLeader {
            partition: log,
            to: host.id,
        })?;
        let logs: Vec<usize> = match log {
            Some(log) => vec![log as usize],
            None => (0..self.logs()).collect(),
        };
        self.say(format!("waiting until {name} leads"));
        let (began, mut again_at) = (Instant::now(), Instant::now() + LEADER_AGAIN);
        loop {
            let hosts = self.hosts();
            let statuses = self.host_statuses(&hosts);
            let leads = |log: &usize| {
                Self::leader_among(&statuses, *log).is_some_and(|i| hosts[i].id == host.id)
            };
            let Some(missing) = logs.iter().find(|log| !leads(log)) else {
                return Ok(name.to_owned());
            };
            if began.elapsed() >= LEADER_LIMIT {
                return Err(SupervisorError::WrongState(format!(
                    "{name} is the preferred leader, but does not lead {} after {} s; `inband status` shows \
                     whether it runs",
                    log_name(*missing, self.logs()),
                    LEADER_LIMIT.as_secs()
                )));
            }
            if Instant::now() >= again_at {
                self.prefer_again(*missing, host.id)?;
                again_at = Instant::now() + LEADER_AGAIN;
            }
            self.pause_for_a_poll()?;
        }
    }

    /// A host takes the lead when it *becomes* the preferred leader. If it already was, while another host led, prefer
    /// the other one first and then this one again.
    fn prefer_again(&self, log: usize, host: u8) -> Result<(), SupervisorError> {
        let opened = self.plane_status()?.opened;
        let order = opened.and_then(|opened| opened.leaders.get(log).cloned());
        let other = order.into_iter().flatten().find(|other| *other != host);
        for to in other.into_iter().chain([host]) {
            let partition = Some(log as u32);
            self.ask_until_accepted(&Request::MoveLeader { partition, to })?;
        }
        Ok(())
    }

    /// Retries while the control plane refuses for a temporary reason. Only for idempotent requests.
    fn ask_until_accepted(&self, request: &Request) -> Result<(), SupervisorError> {
        let began = Instant::now();
        loop {
            match self.ask_plane(request) {
                Ok(_) => return Ok(()),
                Err(error) if error.is_passing() && began.elapsed() < ACCEPT_LIMIT => {
                    self.pause_for_a_poll()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns what a membership change is doing now.
    pub(super) fn progress(&self) -> Option<String> {
        lock(&self.progress).clone()
    }

    fn begin_change(&self) -> Result<Change<'_>, SupervisorError> {
        let guard = match self.membership.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(SupervisorError::WrongState(format!(
                    "another change of the members is under way ({}); wait for it",
                    self.progress().unwrap_or_else(|| "just begun".into())
                )));
            }
        };
        self.refuse_after_end()?;
        if self.stopping.load(Ordering::Acquire) {
            return Err(SupervisorError::WrongState(
                "the cluster is being stopped".into(),
            ));
        }
        let change = Change {
            shared: self,
            _guard: guard,
        };
        self.plane_status()?;
        // The cluster may be repairing itself, or an earlier change may not be finished.
        let began = Instant::now();
        while !self.settle(false)? {
            self.say(format!("waiting: {}", self.plane_in_words()));
            if began.elapsed() >= ACCEPT_LIMIT {
                return Err(SupervisorError::WrongState(format!(
                    "an earlier change is not finished ({}); see `inband member list`, and try \
                     again then",
                    self.plane_in_words()
                )));
            }
            self.pause_for_a_poll()?;
        }
        Ok(change)
    }

    /// A new acceptor also becomes a controller if there are few, or if that makes their number odd.
    fn acceptor_roles(&self) -> Vec<Role> {
        let hosts = self.hosts();
        let controllers = hosts
            .iter()
            .filter(|h| h.plan.has(Role::Controller))
            .count();
        if controllers < CONTROLLERS_WANTED || controllers % 2 == 0 {
            vec![Role::Acceptor, Role::Controller]
        } else {
            vec![Role::Acceptor]
        }
    }

    /// Plans, records, configures and starts a new host. After a failure nothing remains of it but its used id.
    fn bring_up(
        &self,
        kind: &str,
        roles: Vec<Role>,
        in_place_of: Option<&HostRuntime>,
    ) -> Result<Arc<HostRuntime>, SupervisorError> {
        self.check_memory(&roles)?;
        let (id, name) = lock(&self.record).next_host(kind)?;
        let plan = HostPlan {
            name,
            roles,
            dataplane: in_place_of.map_or_else(Default::default, |old| old.dataplane),
        };
        let resp = own_listener(&self.spec, &plan);
        if let Some(address) = resp {
            bind(address, "--resp (replicas use the ports after it)")?;
        } else if plan.has(Role::Replica) {
            return Err(SupervisorError::WrongState(format!(
                "{} would have a RESP port above 65535; choose a lower --resp at the next `inband up`",
                plan.name
            )));
        }
        let (address, held_port) = match &self.lab {
            Some(_) => (lab_address(id), None),
            None => {
                let taken: Vec<SocketAddrV4> = self.hosts().iter().map(|h| h.address).collect();
                let cluster = lock(&self.record).name.clone();
                let listeners = first_listeners(&self.spec);
                let held = free_loopback_ports(&cluster, 1, &taken, &listeners)?.pop();
                let held = held.expect("one was asked for");
                (held.address, Some(held))
            }
        };
        let host = Arc::new(HostRuntime {
            id,
            dataplane: resolve(plan.dataplane, self.dataplane),
            address,
            _held_port: held_port,
            dir: self.dir.host(&plan.dir_name()),
            resp,
            plan,
            process: ProcessSlot::default(),
            metrics: Mutex::new(None),
        });
        self.say(format!("starting {} at {address}", host.name()));
        let mut record = lock(&self.record);
        record.add_host(host.record(true));
        self.dir.write_record(&record)?;
        drop(record);
        lock(&self.hosts).push(Arc::clone(&host));
        match self.wire_and_start(&host) {
            Ok(()) => Ok(host),
            Err(error) => {
                self.undo(&host);
                Err(error)
            }
        }
    }

    fn check_memory(&self, roles: &[Role]) -> Result<(), SupervisorError> {
        let need = MemoryNeed::of(&self.spec);
        let needed_bytes = if roles.contains(&Role::Replica) {
            need.replica_bytes
        } else {
            need.acceptor_rings_bytes
        };
        let available_bytes = memory::available_bytes();
        if needed_bytes > available_bytes {
            return Err(SupervisorError::WrongState(format!(
                "another host needs about {} MiB of memory and this machine has {} MiB available; \
                 remove one first",
                needed_bytes >> 20,
                available_bytes >> 20
            )));
        }
        Ok(())
    }

    fn wire_and_start(&self, host: &HostRuntime) -> Result<(), SupervisorError> {
        let _operation = lock(&self.operation);
        if let Some(lab) = &self.lab {
            lab.add_host(host.name(), *host.address.ip())?;
        }
        self.write_config(host, &self.as_known_to(host))?;
        self.spawn(host)?;
        self.wait_until_answering(host)
    }

    /// Returns the members that a new host knows at first: all controllers, because it may not hear from their leader
    /// otherwise, and no more of the others than a configuration allows.
    fn as_known_to(&self, new: &HostRuntime) -> Vec<Arc<HostRuntime>> {
        let mut hosts = self.hosts();
        let limits = [
            (Role::Acceptor, bounds::ACCEPTORS),
            (Role::Replica, bounds::REPLICAS),
        ];
        for (role, allowed) in limits {
            let is_spare = |host: &Arc<HostRuntime>| {
                let plan = &host.plan;
                host.id != new.id && plan.has(role) && !plan.has(Role::Controller)
            };
            let having = hosts.iter().filter(|host| host.plan.has(role)).count();
            if let Some(spare) = hosts.iter().position(is_spare) {
                if having > *allowed.end() {
                    hosts.remove(spare);
                }
            }
        }
        hosts
    }

    /// Adds a new host to the members; after a failure nothing remains of it.
    fn admit(
        &self,
        host: &HostRuntime,
        request: &Request,
        goal: Goal,
    ) -> Result<(), SupervisorError> {
        self.say(format!(
            "asking the control plane to take {} in",
            host.name()
        ));
        match change::carry_out(self, request, goal) {
            Ok(()) => self.set_changing(host.id, false),
            Err(Failure::Undone(error)) => {
                self.undo(host);
                if let Some(old) = goal.goes {
                    self.set_changing(old, false)?;
                }
                Err(error.into())
            }
            Err(Failure::Open(error)) => Err(error.into()),
        }
    }

    fn wait_until_it_plays_its_part(&self, host: &HostRuntime) -> Result<(), SupervisorError> {
        let applied = most_applied(&self.host_statuses(&self.hosts()));
        let mut watch = Watch::default();
        while let Err(missing) = self.plays_its_part(host, &applied) {
            self.check_alive(host)?;
            self.say(format!("{} is a member; {missing}", host.name()));
            watch.look(missing.clone());
            if watch.is_stalled() {
                return Err(SupervisorError::WrongState(format!(
                    "{} is a member, but for {} s {missing}; see `inband member list` and {}",
                    host.name(),
                    STALL_LIMIT.as_secs(),
                    host.log().display()
                )));
            }
            self.pause_for_a_poll()?;
        }
        Ok(())
    }

    /// A host that was a controller is needed until the others have removed it: if it stopped before that, and then the
    /// next one did, they would have no majority. A host that cannot be reached cannot be waited for.
    fn wait_until_controllers_vote(&self) -> Result<(), SupervisorError> {
        let began = Instant::now();
        while began.elapsed() < VOTERS_LIMIT {
            if let Ok(status) = self.plane_status() {
                let controllers = status.opened.map_or_else(Vec::new, |c| c.controllers());
                let mut voters = status.voters;
                voters.sort_unstable();
                if voters == controllers {
                    return Ok(());
                }
            }
            self.say("the controllers change over".into());
            self.pause_for_a_poll()?;
        }
        tracing::warn!("the controllers have not changed over yet");
        Ok(())
    }

    /// After `gone` has left: all logs must have leaders, and all running acceptors must vote.
    fn wait_until_the_others_serve(&self, gone: &str) -> Result<(), SupervisorError> {
        let began = Instant::now();
        loop {
            let mut hosts = self.hosts();
            hosts.retain(|host| host.is_running());
            let statuses = self.host_statuses(&hosts);
            let not_voting = acceptors_not_voting(&hosts, &statuses);
            let logs = self.logs();
            let unled = (0..logs).find(|&log| Self::leader_among(&statuses, log).is_none());
            let missing = match (unled, &not_voting[..]) {
                (None, []) => return Ok(()),
                (Some(log), _) => format!("{} has no leader", log_name(log, logs)),
                (None, not_voting) => format!("{} does not vote", not_voting.join(", ")),
            };
            if began.elapsed() >= STALL_LIMIT {
                return Err(SupervisorError::WrongState(format!(
                    "{gone} is gone, but after {} s {missing}; see `inband status`",
                    STALL_LIMIT.as_secs()
                )));
            }
            self.say(format!("{gone} is gone; {missing}"));
            self.pause_for_a_poll()?;
        }
    }

    /// Finds out how interrupted membership changes ended. Starts over if the acceptors have lost their votes and that
    /// is allowed. Returns true if there is nothing left to wait for.
    pub(super) fn settle(&self, may_begin_empty: bool) -> Result<bool, SupervisorError> {
        let status = match self.plane_status() {
            Ok(status) => status,
            Err(error) if error.is_passing() => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let Some(opened) = &status.opened else {
            return Ok(false);
        };
        if let Waiting::MajorityLost(_) = status.waiting {
            self.begin_empty(may_begin_empty)?;
            return Ok(false);
        }
        if status.pending.is_some() {
            return Ok(false);
        }
        let is_changing = |host: &&HostRecord| host.changing;
        let changing: Vec<HostRecord> = lock(&self.record)
            .hosts
            .iter()
            .filter(is_changing)
            .cloned()
            .collect();
        for host in changing {
            if opened.members.contains_key(&host.id) {
                self.set_changing(host.id, false)?;
            } else {
                let host = self.named(&host.name)?;
                tracing::info!("{} is not a member and is stopped", host.name());
                self.drop_host(&host)?;
            }
        }
        Ok(true)
    }

    fn begin_empty(&self, is_allowed: bool) -> Result<(), SupervisorError> {
        if !is_allowed {
            return Err(SupervisorError::WrongState(format!(
                "{}; stop with `inband down` and use `inband up --accept-loss` to continue from the \
                 most advanced replica",
                self.plane_in_words()
            )));
        }
        let record = lock(&self.record);
        let request = Request::Restart {
            at_least: record.epoch,
            first_instances: record.first_instances.clone(),
        };
        drop(record);
        match self.ask_plane(&request) {
            Ok(Response::Accepted { epoch }) => {
                let mut record = lock(&self.record);
                record.epoch = epoch;
                self.dir.write_record(&record)
            }
            // Another change came first, or not everything is known yet; the next check will show.
            Err(PlaneError::Refused(
                Refusal::NothingLost | Refusal::NotHeard(_) | Refusal::PositionUnknown(_),
            )) => Ok(()),
            Err(error) if !error.is_passing() => Err(error.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn set_changing(&self, id: u8, changing: bool) -> Result<(), SupervisorError> {
        let mut record = lock(&self.record);
        if let Some(host) = record.host_mut(id) {
            host.changing = changing;
        }
        self.dir.write_record(&record)
    }

    /// Stops a host that is not a member, and removes it from network and record. Its directory stays.
    fn drop_host(&self, host: &Arc<HostRuntime>) -> Result<(), SupervisorError> {
        let _operation = lock(&self.operation);
        // A stopped process would not see the request to stop.
        let _ = self.resume_host(host);
        self.stop_hosts(std::slice::from_ref(host));
        let _ = fs::remove_file(host.pid_file());
        lock(&self.hosts).retain(|other| other.id != host.id);
        let mut record = lock(&self.record);
        record.hosts.retain(|other| other.id != host.id);
        self.dir.write_record(&record)?;
        drop(record);
        if let Some(lab) = &self.lab {
            lab.remove_host(host.name())?;
        }
        Ok(())
    }

    /// Removes a host that never was a member.
    fn undo(&self, host: &HostRuntime) {
        let found = self.hosts().into_iter().find(|other| other.id == host.id);
        let dropped = found.map_or(Ok(()), |host| self.drop_host(&host));
        if let Err(error) = dropped {
            tracing::warn!("{}: {error}", host.name());
        }
        let data = self.dir.data_dirs(&host.plan.dir_name());
        for dir in std::iter::once(&host.dir).chain(&data) {
            let _ = fs::remove_dir_all(dir);
        }
    }

    /// Sleeps until the next poll; fails if the cluster is stopping.
    fn pause_for_a_poll(&self) -> Result<(), SupervisorError> {
        if self.wait_a_little() {
            Ok(())
        } else {
            Err(ChangeError::BrokenOff.into())
        }
    }
}

impl Plane for Shared {
    fn ask(&self, request: &Request) -> Result<Response, PlaneError> {
        self.ask_plane(request)
    }

    fn say(&self, what: String) {
        let mut progress = lock(&self.progress);
        if progress.as_ref() != Some(&what) {
            tracing::info!("{what}");
            *progress = Some(what);
        }
    }

    fn wait_a_little(&self) -> bool {
        thread::sleep(POLL_INTERVAL);
        !self.stopping.load(Ordering::Acquire)
    }
}

/// A change in progress, which is shown in the status until this is dropped.
struct Change<'s> {
    shared: &'s Shared,
    _guard: MutexGuard<'s, ()>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        *lock(&self.shared.progress) = None;
    }
}
