//! A clean stop: everything that was ever decided is applied at every live replica and synced, and the record says so.
//!
//! The order matters. Clients are shut out and in-flight values finish (drain). The replicas must then be equal, and at
//! or above the highest vote of a majority of acceptors: any instance that was chosen has a vote there, even if its
//! submitter is dead. Acceptors and leaders stop next; after that nothing can be decided. Only if the replicas are
//! *still* where they were do they sync and stop, and the marker is written last.
//!
//! In memory, the acceptors hold the only copy of what a replica has applied and cannot write, for example because its
//! disk is full. So replicas sync before the acceptors stop, too, first while clients are still served, and if one says
//! that it cannot, nothing is stopped.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use inband_paxos::config::{Durability, Role};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::{lock, HostRuntime, Shared, SupervisorError};
use crate::paxos::control::{
    self, instances, log_name, ControlError, HostRequest, HostStatus, Position,
};

/// Timeout for values in flight to finish. Longer than a host's own timeout, whose message is better.
const DRAIN_LIMIT: Duration = Duration::from_secs(15);
/// Timeout for replicas to become equal after that.
const EQUAL_LIMIT: Duration = Duration::from_secs(10);
const EQUAL_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long they must then stay equal. Hosts publish their registers periodically, at least ten times a second, so a
/// recent decision must have had the time to show.
const EQUAL_FOR: Duration = Duration::from_millis(300);
/// Timeout for the position of a replica that has just drained: it is late only if the machine stalls, and after an unclean
/// stop in memory the next start needs `--accept-loss`.
const POSITION_LIMIT: Duration = Duration::from_secs(15);
/// Timeout of other answers.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Timeout of a sync of everything applied.
const SYNC_LIMIT: Duration = Duration::from_secs(30);
/// Timeout for a process to end after it was asked to, and again after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// The state of a cluster of which only the replicas were made ready for a stop.
const DRAINED: &str = "it takes no more commands";

/// The result of a stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownReport {
    /// By log: the instance at which the cluster was left, if the stop was clean.
    pub clean_at: Option<Vec<u64>>,
    /// Why it was not clean; the next start needs `--accept-loss`.
    pub unclean_because: Option<String>,
}

/// Why there is no clean stop.
enum Obstacle {
    /// Acknowledged writes would be lost. The acceptors still run.
    Loss(String),
    Other(String),
}

impl From<String> for Obstacle {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

impl Shared {
    /// With `accept_loss`, stops in any case.
    pub(super) fn down(&self, accept_loss: bool) -> Result<DownReport, SupervisorError> {
        self.stopping.store(true, Ordering::Release);
        let _membership = lock(&self.membership);
        let _operation = lock(&self.operation);
        if let Some(report) = lock(&self.ended).clone() {
            return Ok(report);
        }
        let epoch = self.status().epoch;
        let outcome = match self.stop_cleanly(accept_loss) {
            Err(Obstacle::Loss(why)) => {
                self.stopping.store(false, Ordering::Release);
                return Err(SupervisorError::WouldLose(why));
            }
            Err(Obstacle::Other(why)) => Err(why),
            Ok(applied) => Ok(applied),
        };
        self.stop_hosts(&self.hosts());
        self.kill_all();
        let outcome = outcome.and_then(|applied| {
            let mut record = lock(&self.record);
            record.epoch = epoch;
            record.clean_at = Some(applied.clone());
            self.dir
                .write_record(&record)
                .map(|()| applied)
                .map_err(|error| error.to_string())
        });
        let report = match outcome {
            Ok(applied) => DownReport {
                clean_at: Some(applied),
                unclean_because: None,
            },
            Err(why) => DownReport {
                clean_at: None,
                unclean_because: Some(why),
            },
        };
        *lock(&self.ended) = Some(report.clone());
        self.ended_signal.notify_all();
        Ok(report)
    }

    /// By log: the instance that every live replica has applied, with nothing decided above it; or why that could not
    /// be reached.
    fn stop_cleanly(&self, accept_loss: bool) -> Result<Vec<u64>, Obstacle> {
        for host in self.hosts() {
            // Fails for hosts that are not paused.
            let _ = self.resume_host(&host);
        }
        let live = self.hosts().into_iter().filter(|host| host.is_running());
        // A replica that is being added or removed need not be where the others are.
        let record = lock(&self.record).hosts.clone();
        let is_changing = |id| record.iter().any(|host| host.id == id && host.changing);
        let (replicas, others): (Vec<_>, Vec<_>) =
            live.partition(|host| host.plan.has(Role::Replica) && !is_changing(host.id));
        if replicas.is_empty() {
            return Err("no replica is alive".to_owned().into());
        }
        // With `sync`, the acceptors' journals have everything.
        let may_lose = lock(&self.record).durability == Durability::Memory && !accept_loss;
        if may_lose {
            self.refuse_loss(&replicas, "its clients are served as before")?;
        }
        let equal = self
            .ask(&replicas, &HostRequest::Drain, DRAIN_LIMIT)
            .and_then(|_| self.wait_until_equal(&replicas));
        if may_lose {
            self.refuse_loss(&replicas, DRAINED)?;
        }
        let applied = match equal {
            Err(why) if may_lose => return Err(self.obstacle(why, &replicas)),
            equal => equal?,
        };
        self.stop_hosts(&others);
        let after = self.ask(&replicas, &HostRequest::Applied, POSITION_LIMIT)?;
        if let Some(moved) = after.iter().find(|p| p.applied != applied) {
            return Err(format!(
                "a replica went on to {} after all had stopped at {}",
                instances(&moved.applied),
                instances(&applied)
            )
            .into());
        }
        self.ask(&replicas, &HostRequest::Sync, SYNC_LIMIT)?;
        Ok(applied)
    }

    /// Fails if a replica says that it cannot sync what it has applied. Any other failure, such as no answer, makes the
    /// stop an unclean one.
    fn refuse_loss(&self, replicas: &[Arc<HostRuntime>], state: &str) -> Result<(), Obstacle> {
        let answers = self.ask_each(replicas, &HostRequest::Sync, SYNC_LIMIT);
        for (answer, host) in answers.into_iter().zip(replicas) {
            if let Err(ControlError::Refused(why)) = answer {
                return Err(Obstacle::Loss(format!(
                    "{}: {why} (the cluster runs, and {state})",
                    host.name()
                )));
            }
        }
        Ok(())
    }

    /// Replicas are not where the acceptors are. If one of them refuses commands, such as one that applies nothing because
    /// its disk is full, it may lack what a dead one has acknowledged.
    fn obstacle(&self, why: String, replicas: &[Arc<HostRuntime>]) -> Obstacle {
        let statuses = self.host_statuses(replicas).into_iter().zip(replicas);
        let refusal = |(status, host): (Option<HostStatus>, &Arc<HostRuntime>)| {
            let refuses = status?.replica?.refuses?;
            Some(format!("{} refuses {refuses}", host.name()))
        };
        match { statuses }.find_map(refusal) {
            Some(refusal) => Obstacle::Loss(format!(
                "{why}, and {refusal}; try again once that is fixed (the cluster runs, and {DRAINED})"
            )),
            None => Obstacle::Other(why),
        }
    }

    /// Queries several replicas in parallel; all must answer.
    fn ask(
        &self,
        replicas: &[Arc<HostRuntime>],
        request: &HostRequest,
        limit: Duration,
    ) -> Result<Vec<Position>, String> {
        let answers = self.ask_each(replicas, request, limit).into_iter();
        answers
            .zip(replicas)
            .map(|(answer, host)| answer.map_err(|e| format!("{} ({request:?}): {e}", host.name())))
            .collect()
    }

    fn ask_each(
        &self,
        replicas: &[Arc<HostRuntime>],
        request: &HostRequest,
        limit: Duration,
    ) -> Vec<Result<Position, ControlError>> {
        let sockets: Vec<PathBuf> = replicas.iter().map(|host| host.socket()).collect();
        thread::scope(|scope| {
            let asked: Vec<_> = sockets
                .iter()
                .map(|socket| scope.spawn(move || control::position(socket, request, limit)))
                .collect();
            asked
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        })
    }

    fn wait_until_equal(&self, replicas: &[Arc<HostRuntime>]) -> Result<Vec<u64>, String> {
        let hosts = self.hosts();
        let acceptors = hosts.iter().filter(|h| h.plan.has(Role::Acceptor)).count();
        let deadline = Instant::now() + EQUAL_LIMIT;
        let mut equal_since: Option<(Vec<u64>, Instant)> = None;
        loop {
            let positions = self.ask(replicas, &HostRequest::Applied, POSITION_LIMIT)?;
            let votes = voting(&self.host_statuses(&hosts), self.logs());
            let state = agreed(&positions, &votes, acceptors);
            equal_since = match (&state, equal_since) {
                (Ok(now), Some((then, since))) if *now == then => Some((then, since)),
                (Ok(now), _) => Some((now.clone(), Instant::now())),
                (Err(_), _) => None,
            };
            let is_still = |(_, since): &(Vec<u64>, Instant)| since.elapsed() >= EQUAL_FOR;
            match state {
                Ok(applied) if equal_since.as_ref().is_some_and(is_still) => return Ok(applied),
                _ if Instant::now() < deadline => thread::sleep(EQUAL_POLL_INTERVAL),
                Ok(applied) => {
                    return Err(format!("replicas still move at {}", instances(&applied)))
                }
                Err(why) => return Err(format!("{why}, after {} s", EQUAL_LIMIT.as_secs())),
            }
        }
    }

    /// Asks all hosts in parallel to stop, then sends SIGTERM, then kills them.
    pub(super) fn stop_hosts(&self, hosts: &[Arc<HostRuntime>]) {
        let children: Vec<_> = hosts
            .iter()
            .filter_map(|host| Some((host, host.process.take()?)))
            .collect();
        let killed = AtomicBool::new(false);
        thread::scope(|scope| {
            for (host, mut child) in children {
                let (socket, killed) = (host.socket(), &killed);
                scope.spawn(move || {
                    if control::stop(&socket, ANSWER_LIMIT).is_ok()
                        && child.wait_for_exit(STOP_LIMIT)
                    {
                        return;
                    }
                    child.signal(Signal::SIGTERM);
                    if !child.wait_for_exit(STOP_LIMIT) {
                        killed.store(true, Ordering::Relaxed);
                        child.kill();
                    }
                });
            }
        });
        if killed.load(Ordering::Relaxed) {
            tracing::warn!("a host did not end when asked and was killed");
        }
    }
}

/// For each log, the highest instance voted by every acceptor that votes in it, in the latest epoch, whose acceptors
/// hold everything chosen in earlier ones.
fn voting(statuses: &[Option<HostStatus>], logs: usize) -> Vec<Vec<u64>> {
    let said = || statuses.iter().flatten();
    let epoch = said().map(|s| s.epoch).max();
    (0..logs)
        .map(|log| {
            let current = said().filter(|s| Some(s.epoch) == epoch);
            let acceptors = current.map(|s| s.acceptors.get(log));
            let voting = acceptors.flatten().filter(|a| a.voting);
            voting.map(|a| a.highest_voted).collect()
        })
        .collect()
}

/// Returns the common position, if nothing above it can have been chosen.
fn agreed(
    positions: &[Position],
    votes: &[Vec<u64>],
    acceptors: usize,
) -> Result<Vec<u64>, String> {
    if let Some(busy) = positions.iter().find(|p| p.outstanding > 0) {
        return Err(format!("{} values are outstanding", busy.outstanding));
    }
    let logs = votes.len();
    if let Some(other) = positions.iter().find(|p| p.applied.len() != logs) {
        return Err(format!(
            "a replica tells of {} logs, the cluster has {logs}",
            other.applied.len()
        ));
    }
    let agreed_in = |log: usize| {
        let applied: Vec<u64> = positions.iter().map(|p| p.applied[log]).collect();
        agreed_in_one(&applied, &votes[log], acceptors).map_err(|why| match logs {
            1 => why,
            _ => format!("{}: {why}", log_name(log, logs)),
        })
    };
    (0..logs).map(agreed_in).collect()
}

/// Like [`agreed`], for one log.
fn agreed_in_one(applied: &[u64], votes: &[u64], acceptors: usize) -> Result<u64, String> {
    let (Some(&least), Some(&most)) = (applied.iter().min(), applied.iter().max()) else {
        return Err("no replica is alive".into());
    };
    if least != most {
        return Err(format!("replicas are at instances {least} to {most}"));
    }
    if votes.len() <= acceptors / 2 {
        return Err(format!(
            "{} of {acceptors} acceptors vote; without a majority it cannot be known what was \
             decided",
            votes.len()
        ));
    }
    match votes.iter().max() {
        Some(&voted) if voted > most => Err(format!(
            "instance {voted} has a vote and replicas are at {most}"
        )),
        _ => Ok(most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(applied: &[u64]) -> Position {
        Position {
            applied: applied.to_vec(),
            outstanding: 0,
        }
    }

    #[test]
    fn equal_replicas_above_all_votes_agree() {
        let good = |positions: &[Position], votes: &[&[u64]]| {
            let votes: Vec<Vec<u64>> = votes.iter().map(|v| v.to_vec()).collect();
            agreed(positions, &votes, 3)
        };
        assert_eq!(good(&[at(&[7]), at(&[7])], &[&[7, 6, 7]]), Ok(vec![7]));
        assert_eq!(
            good(&[at(&[7])], &[&[5, 7]]),
            Ok(vec![7]),
            "a majority is enough"
        );
        assert_eq!(
            good(&[at(&[0])], &[&[0, 0]]),
            Ok(vec![0]),
            "nothing was ever decided"
        );
        assert_eq!(
            good(
                &[at(&[7, 0, 3]), at(&[7, 0, 3])],
                &[&[7, 7], &[0, 0], &[3, 1]]
            ),
            Ok(vec![7, 0, 3])
        );
    }

    #[test]
    fn whatever_may_hide_a_decision_is_not_clean() {
        let no = |positions: &[Position], votes: &[&[u64]]| {
            let votes: Vec<Vec<u64>> = votes.iter().map(|v| v.to_vec()).collect();
            agreed(positions, &votes, 3).expect_err("not clean")
        };
        assert!(no(&[], &[&[0, 0]]).contains("no replica"));
        assert!(no(&[at(&[7]), at(&[6])], &[&[7, 7]]).contains("6 to 7"));
        let busy = Position {
            outstanding: 2,
            ..at(&[7])
        };
        assert!(no(&[busy], &[&[7, 7]]).contains("2 values"));
        assert!(no(&[at(&[7])], &[&[7]]).contains("1 of 3 acceptors"));
        // The submitter may be dead, and the value may be chosen nevertheless.
        assert!(no(&[at(&[7]), at(&[7])], &[&[7, 8]]).contains("instance 8 has a vote"));
        // One log that differs is enough.
        let votes: &[&[u64]] = &[&[7, 7], &[2, 2], &[0, 0]];
        let error = no(&[at(&[7, 2, 0]), at(&[7, 1, 0])], votes);
        assert_eq!(error, "partition 1: replicas are at instances 1 to 2");
        assert!(no(&[at(&[7, 2, 0]), at(&[7, 2])], votes).contains("2 logs"));
    }
}
