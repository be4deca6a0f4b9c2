//! Restarting a cluster with empty acceptors, after what its replicas have applied.

use super::{Coordinator, Waiting};
use crate::configuration::{majority, Beginning, Configuration, Epoch, NodeId};
use crate::message::Report;
use crate::state::{Command, Refusal, State};
use crate::timing::Micros;

impl Coordinator {
    /// Returns the command for a restart with empty acceptors, starting right after what the most advanced replica has
    /// applied. Allowed only if the acceptors cannot continue. `first_instances`: the caller's values, or empty. A dead
    /// replica may have applied more than the others: then the caller must supply the values. For a live replica only
    /// its own report counts.
    ///
    /// If a log makes no progress although its acceptors vote, other logs may still advance, and replicas would deliver
    /// more while this is decided. In that case the first command halts the cluster, and the caller asks again until
    /// the replicas have reported where they stopped, and a majority of them durably holds everything up to there, as
    /// required below a trim floor.
    pub fn restart(
        &self,
        now: Micros,
        state: &State,
        at_least: Epoch,
        first_instances: Vec<u64>,
    ) -> Result<Command, Refusal> {
        let in_force = state.in_force()?;
        let opened = in_force.epoch;
        let acceptors = in_force.acceptors();
        let is_halted = in_force.beginning == Beginning::Halted;
        let is_lost = matches!(
            self.obstacle(now, &acceptors, opened),
            Waiting::MajorityLost(_)
        );
        if is_halted || is_lost {
            let first_instances = self.behind_all_applied(now, in_force, first_instances)?;
            if is_halted {
                self.check_durable(now, in_force)?;
            }
            return Ok(Command::Restart {
                opened,
                at_least,
                first_instances,
            });
        }
        if self.has_stopped_log(now, in_force) {
            // Refuse before halting anything if the restart could not be answered afterwards.
            self.behind_all_applied(now, in_force, first_instances)?;
            return Ok(Command::Halt { opened });
        }
        match acceptors.iter().find(|a| self.alive(now, **a).is_none()) {
            Some(missing) => Err(Refusal::NotHeard(*missing)),
            None => Err(Refusal::NothingLost),
        }
    }

    /// Returns whether a log is stuck at its most advanced replica. Another replica may merely have fallen behind.
    fn has_stopped_log(&self, now: Micros, in_force: &Configuration) -> bool {
        let replicas = in_force.replicas();
        let reports = || replicas.iter().filter_map(|node| self.alive(now, *node));
        let applied = |log: u32| {
            let of_log = |report: &Report| report.applied.as_ref()?.get(log as usize).copied();
            reports().filter_map(of_log).max()
        };
        let mut stopped = reports().flat_map(|report| &report.stopped);
        stopped.any(|stopped| Some(stopped.instance) > applied(stopped.log))
    }

    /// For each log, the instance after the last one that any replica has applied.
    fn behind_all_applied(
        &self,
        now: Micros,
        in_force: &Configuration,
        given: Vec<u64>,
    ) -> Result<Vec<u64>, Refusal> {
        let replicas = in_force.replicas();
        let applied = |node: &NodeId| self.final_report(now, in_force, *node)?.applied.as_ref();
        let silent = replicas.iter().find(|node| applied(node).is_none());
        let mut reported = vec![1; in_force.partitions()];
        for of_replica in replicas.iter().filter_map(applied) {
            for (first, applied) in reported.iter_mut().zip(of_replica) {
                *first = (*first).max(applied + 1);
            }
        }
        if replicas.is_empty() {
            return match given.is_empty() {
                true => Err(Refusal::NobodyLeft(
                    "replicas, which would say what they have applied,".into(),
                )),
                false => Ok(given), // they are outside of this control plane
            };
        }
        if given.is_empty() {
            return silent.map_or(Ok(reported), |node| Err(Refusal::PositionUnknown(*node)));
        }
        let may_live = |node: &NodeId| self.alive(now, *node).is_some() || !self.has_listened(now);
        let mut replicas_to_come = replicas.iter().filter(|node| applied(node).is_none());
        if let Some(node) = replicas_to_come.find(|node| may_live(node)) {
            return Err(Refusal::PositionUnknown(*node));
        }
        for (log, (given, reported)) in given.iter().zip(&reported).enumerate() {
            if given < reported || (silent.is_none() && given > reported) {
                return Err(Refusal::AppliedOtherwise {
                    log,
                    given: given.saturating_sub(1),
                    applied: reported - 1,
                });
            }
        }
        Ok(given)
    }

    /// Returns the report of a live replica that is in this configuration and has reported what it has applied.
    fn final_report(&self, now: Micros, in_force: &Configuration, node: NodeId) -> Option<&Report> {
        let report = self.alive(now, node)?;
        let is_final = report.revision >= in_force.revision && report.applied.is_some();
        is_final.then_some(report)
    }

    /// Whether a majority durably holds everything up to the last instance that any live replica has applied. For dead
    /// replicas an operator has supplied the values: they are not waited for.
    fn check_durable(&self, now: Micros, in_force: &Configuration) -> Result<(), Refusal> {
        let replicas = in_force.replicas();
        let reports: Vec<&Report> = replicas
            .iter()
            .filter_map(|node| self.final_report(now, in_force, *node))
            .collect();
        let needed = majority(replicas.len()).min(reports.len());
        for log in 0..in_force.partitions() {
            let of_log = |positions: &[u64]| positions.get(log).copied().unwrap_or(0);
            let applied = |report: &&Report| of_log(report.applied.as_deref().unwrap_or(&[]));
            let highest = reports.iter().map(applied).max().unwrap_or(0);
            let holds = |report: &&&Report| of_log(&report.durable) >= highest;
            let holders = reports.iter().filter(holds).count();
            if holders < needed {
                return Err(Refusal::NotDurable {
                    log,
                    applied: highest,
                    holders,
                    needed,
                });
            }
        }
        Ok(())
    }
}
