//! Every check of every model, with its bounds, and every variant that must be refuted.

use std::path::Path;

use crate::check::{explore, Outcome};
use crate::cross_partition::{self, CrossPartition};
use crate::cross_partition_reads::{self, CrossPartitionReads};
use crate::falcon_queue;
use crate::leader_change::{self, LeaderChange, With};
use crate::memory;
use crate::netpaxos;
use crate::read_routing;
use crate::reconfiguration::{self, Reconfiguration};
use crate::spin::{self, SpinError};
use crate::zab;

pub struct Check {
    pub model: &'static str,
    pub bounds: String,
    /// The rule left out, if any.
    pub mutant: Option<String>,
    /// Whether it takes only seconds and is part of the short form.
    pub is_short: bool,
    run: Box<Run>,
}

type Run = dyn Fn(&Path) -> Result<Outcome, SpinError>;

impl Check {
    /// Runs the check; `scratch` is a directory for its files.
    pub fn run(&self, scratch: &Path) -> Result<Outcome, SpinError> {
        (self.run)(scratch)
    }
}

fn in_spin(
    model: &'static str,
    definitions: &[&str],
    mutant: Option<&str>,
    is_short: bool,
) -> Check {
    let mut defined: Vec<String> = definitions.iter().map(|d| (*d).to_owned()).collect();
    defined.extend(mutant.map(|mutant| format!("MUTANT_{mutant}")));
    Check {
        model,
        bounds: definitions.join(" "),
        mutant: mutant.map(str::to_owned),
        is_short,
        run: Box::new(move |scratch| {
            spin::explore(model, &defined, &scratch.join(defined.join("-")))
        }),
    }
}

fn in_rust<M>(
    name: &'static str,
    bounds: String,
    mutant: Option<String>,
    is_short: bool,
    model: M,
) -> Check
where
    M: stateright::Model + Copy + Send + Sync + 'static,
    M::State: Clone + std::fmt::Debug + std::hash::Hash + PartialEq + Send + Sync,
    M::Action: Clone + std::fmt::Debug + PartialEq + Send + Sync,
{
    Check {
        model: name,
        bounds,
        mutant,
        is_short,
        run: Box::new(move |_| Ok(explore(model))),
    }
}

fn packets(checks: &mut Vec<Check>) {
    checks.push(in_spin("packets", &["QUORUM"], None, true));
    checks.push(in_spin(
        "packets",
        &["RECOVERY", "INSTANCES=1"],
        None,
        false,
    ));
    for mutant in spin::mutants("packets") {
        checks.push(in_spin("packets", &["QUORUM"], Some(&mutant), true));
    }
}

fn slot(checks: &mut Vec<Check>) {
    checks.push(in_spin("slot", &["USER_SPACE"], None, true));
    checks.push(in_spin("slot", &["PACKET"], None, true));
    for mutant in spin::mutants("slot") {
        checks.push(in_spin("slot", &["USER_SPACE"], Some(&mutant), true));
    }
}

fn leader_changes(checks: &mut Vec<Check>) {
    let check = |with: With, mutant: Option<leader_change::Mutant>| {
        let named = mutant.map(|mutant| format!("{mutant:?}"));
        let model = LeaderChange { with, mutant };
        in_rust("leader_change", format!("{with:?}"), named, true, model)
    };
    checks.extend([With::Restart, With::Trim].map(|with| check(with, None)));
    let mutants = leader_change::Mutant::ALL;
    checks.extend(mutants.map(|(mutant, with)| check(with, Some(mutant))));
}

fn reconfigurations(checks: &mut Vec<Check>) {
    use reconfiguration::{Bounds, Mutant, ONE_CRASH, THREE_EPOCHS, THREE_PROPOSERS};
    let check = |bounds: Bounds, mutant: Option<Mutant>| {
        let named = mutant.map(|mutant| format!("{mutant:?}"));
        let model = Reconfiguration { bounds, mutant };
        let Bounds {
            epochs,
            proposers,
            crashes,
        } = bounds;
        let said = format!("{epochs} epochs, {proposers} proposers, {crashes} crashes");
        in_rust("reconfiguration", said, named, bounds == ONE_CRASH, model)
    };
    checks.extend([ONE_CRASH, THREE_EPOCHS, THREE_PROPOSERS].map(|bounds| check(bounds, None)));
    checks.extend(Mutant::ALL.map(|(mutant, bounds)| check(bounds, Some(mutant))));
}

fn cross_partition_checks(checks: &mut Vec<Check>) {
    let check = |mutant: Option<cross_partition::Mutant>| {
        let named = mutant.map(|mutant| format!("{mutant:?}"));
        let bounds = "3 entries, 3 partitions, 1 crash".to_owned();
        in_rust(
            "cross_partition",
            bounds,
            named,
            true,
            CrossPartition { mutant },
        )
    };
    checks.push(check(None));
    checks.extend(cross_partition::Mutant::ALL.map(|mutant| check(Some(mutant))));
}

fn cross_partition_reads_checks(checks: &mut Vec<Check>) {
    let check = |mutant: Option<cross_partition_reads::Mutant>| {
        let named = mutant.map(|mutant| format!("{mutant:?}"));
        let bounds = "1 read, 2 partitions, 2 replicas, 1 crash".to_owned();
        let model = CrossPartitionReads { mutant };
        in_rust("cross_partition_reads", bounds, named, true, model)
    };
    checks.push(check(None));
    checks.extend(cross_partition_reads::Mutant::ALL.map(|mutant| check(Some(mutant))));
}

fn read_routings(checks: &mut Vec<Check>) {
    use read_routing::*;
    let check = |bounds: Bounds, mutant: Option<Mutant>| {
        let named = mutant.map(|mutant| format!("{mutant:?}"));
        let is_short = mutant.is_some() || ![ELECTION, RESTART].contains(&bounds);
        let model = ReadRouting { bounds, mutant };
        in_rust("read_routing", bounds.to_string(), named, is_short, model)
    };
    let whole = [
        ELECTION_ONE_READ,
        RESTART_ONE_WRITE,
        AGAIN,
        ELECTION,
        RESTART,
    ];
    checks.extend(whole.map(|bounds| check(bounds, None)));
    checks.extend(Mutant::ALL.map(|(mutant, bounds)| check(bounds, Some(mutant))));
}

fn falcon_queues(checks: &mut Vec<Check>) {
    use falcon_queue::*;
    let check = |bounds: Bounds, mutant: Option<Mutant>| {
        let named = mutant.map(|mutant| format!("{mutant:?}"));
        let model = FalconQueue { bounds, mutant };
        let is_short = ![CALM_PAIR, REPEATED, RESTARTED].contains(&bounds);
        in_rust("falcon_queue", bounds.to_string(), named, is_short, model)
    };
    let whole = [
        CALM,
        ONE_FOR_TWO,
        FULL,
        REPEATED_ONE,
        LOST,
        RESTARTED_ONE,
        CALM_PAIR,
        REPEATED,
        RESTARTED,
    ];
    checks.extend(whole.map(|bounds| check(bounds, None)));
    checks.extend(Mutant::ALL.map(|(mutant, bounds)| check(bounds, Some(mutant))));
}

fn memories(checks: &mut Vec<Check>) {
    use memory::*;
    let check = |bounds: Bounds, mutant: Option<Mutant>| {
        let named = mutant.map(|mutant| format!("{mutant:?}"));
        let model = Memory { bounds, mutant };
        let is_long = [TAKEOVER, RESTART, AMNESIA_RESENT, REPEATED_AND_BACK].contains(&bounds);
        let is_short =
            !is_long || [Some(Mutant::InventedEpoch), Some(Mutant::EpochIgnored)].contains(&mutant);
        in_rust("memory", bounds.to_string(), named, is_short, model)
    };
    let whole = [
        CALM,
        RESENT,
        TAKEOVER,
        RESTART,
        AMNESIA,
        AMNESIA_RESENT,
        REPEATED,
        REPEATED_AND_BACK,
    ];
    checks.extend(whole.map(|bounds| check(bounds, None)));
    checks.extend(Mutant::ALL.map(|(mutant, bounds)| check(bounds, Some(mutant))));
}

fn zabs(checks: &mut Vec<Check>) {
    use zab::*;
    let check = |bounds: Bounds, mutant: Option<Mutant>| {
        let named = mutant.map(|mutant| format!("{mutant:?}"));
        let is_short = mutant.is_some() || [ELECTIONS, CRASH].contains(&bounds);
        in_rust(
            "zab",
            bounds.to_string(),
            named,
            is_short,
            Zab { bounds, mutant },
        )
    };
    let whole = [ELECTIONS, ELECTIONS_OF_MORE, CRASH, CRASHES];
    checks.extend(whole.map(|bounds| check(bounds, None)));
    checks.extend(Mutant::ALL.map(|(mutant, bounds)| check(bounds, Some(mutant))));
}

fn netpaxoses(checks: &mut Vec<Check>) {
    use netpaxos::*;
    let check = |bounds: Bounds, mutant: Option<Mutant>| {
        let named = mutant.map(|mutant| format!("{mutant:?}"));
        let model = NetPaxos { bounds, mutant };
        in_rust("netpaxos", bounds.to_string(), named, true, model)
    };
    checks.extend([RECOVERIES, LOSS].map(|bounds| check(bounds, None)));
    checks.extend(Mutant::ALL.map(|(mutant, bounds)| check(bounds, Some(mutant))));
}

/// All checks, starting with the models without mutants.
pub fn all() -> Vec<Check> {
    let mut checks = Vec::new();
    packets(&mut checks);
    slot(&mut checks);
    leader_changes(&mut checks);
    reconfigurations(&mut checks);
    cross_partition_checks(&mut checks);
    cross_partition_reads_checks(&mut checks);
    read_routings(&mut checks);
    falcon_queues(&mut checks);
    memories(&mut checks);
    zabs(&mut checks);
    netpaxoses(&mut checks);
    checks
}
