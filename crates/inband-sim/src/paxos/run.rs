//! One seed, one schedule; and many seeds.

use std::fmt;

use inband_dataplane::auth::Secret;
use inband_paxos::timing::Micros;

use crate::panics::panic_of;
use crate::paxos::faults::Unkindness;
use crate::paxos::invariant::Invariant;
use crate::paxos::layout::Layout;
use crate::paxos::ledger::Ends;
use crate::paxos::limits::{
    ATTACKER_EVERY_US, ATTACKER_PPM, EPOCHS_PPM, EVENTS_MAX, FAULTY_PHASE_US, KEYED_PPM, LOADS_US,
    PLANE_PPM, RECONFIGURE_US, STORE_LOAD_US, STORE_PARTITIONS, STORE_PPM, STORE_READS_PPM,
    SYNC_PPM, TRACE_EVENTS,
};
use crate::paxos::mutation::Mutation;
use crate::paxos::network::Rates;
use crate::paxos::stats::Stats;
use crate::paxos::world::{Violation, World};
use crate::rng::Rng;

/// How to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Simulated time with faults.
    pub faulty_us: Micros,
    /// Events kept for the trace.
    pub trace_events: usize,
    /// Do replicas run the real store? `None`: those of some seeds do.
    pub store: Option<bool>,
    /// Does the real control plane change the members? `None`: in some seeds it does.
    pub plane: Option<bool>,
    /// A rule to break.
    pub mutation: Option<Mutation>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            faulty_us: FAULTY_PHASE_US,
            trace_events: TRACE_EVENTS,
            store: None,
            plane: None,
            mutation: None,
        }
    }
}

/// What a run found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The seed: the same one gives the same run.
    pub seed: u64,
    /// The cluster.
    pub layout: String,
    /// Its replicas ran the real store.
    pub store: bool,
    /// `None`: all went well.
    pub violation: Option<Violation>,
    /// In numbers.
    pub stats: Stats,
    /// How submissions ended.
    pub ends: Ends,
    /// Instances applied.
    pub applied: u64,
    /// Equal for equal runs.
    pub trace_hash: u64,
    /// The last events, one a line; always there after a violation.
    pub trace: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: {}; {} events, {} fault events ({} faults, {} crashes), {} instances, {} of {} \
             commands succeeded, {} reads, {} activations, {} epochs, {} checkpoints, {} busy, settled after {} ms, trace {:016x}",
            self.seed,
            self.layout,
            self.stats.events,
            self.stats.fault_events(),
            self.stats.faults.total(),
            self.stats.crashes,
            self.applied,
            self.ends.success,
            self.stats.submitted,
            self.ends.reads,
            self.stats.activations,
            self.stats.epochs,
            self.stats.checkpoints,
            self.stats.busy,
            self.stats.settled_after_us / 1000,
            self.trace_hash
        )?;
        match &self.violation {
            None => Ok(()),
            Some(violation) => {
                write!(
                    f,
                    "\n  VIOLATION of {} at {} us: {}",
                    violation.invariant, violation.at_us, violation.what
                )
            }
        }
    }
}

/// How unkind the world of a seed is.
fn unkindness(rng: &mut Rng) -> Unkindness {
    let loss_ppm = [0, 1_000, 10_000, 100_000, 250_000][rng.below(5) as usize];
    Unkindness {
        rates: Rates {
            loss_ppm,
            duplicate_ppm: [0, 10_000, 100_000][rng.below(3) as usize],
            hold_up_ppm: [0, 1_000, 20_000, 100_000][rng.below(4) as usize],
            bit_flip_ppm: [0, 0, 1_000, 10_000][rng.below(4) as usize],
        },
        every_us: [0, 8_000, 25_000, 80_000][rng.below(4) as usize],
    }
}

/// Does this seed run the real store? Then with several partitions, or a single one.
fn runs_store(seed: u64, options: &Options, layout: &mut Layout) -> bool {
    let mut rng = Rng::new(seed, 11);
    let by_seed = options.mutation.is_none() && rng.chance_ppm(STORE_PPM);
    layout.store = options.store.unwrap_or(by_seed);
    if layout.store {
        let several = rng.chance_ppm(750_000);
        let partitions = if several { STORE_PARTITIONS } else { 1 };
        layout.partitions = inband_kv::partition::logs_of(partitions);
        layout.store_reads_ppm = *rng.pick(&STORE_READS_PPM).expect("there are some");
    }
    layout.store
}

/// Play the schedule of a seed.
pub fn run(seed: u64, options: &Options) -> Report {
    let mut rng = Rng::new(seed, 0);
    let mut layout = Layout::random(&mut rng);
    let needs_journal = options.mutation == Some(Mutation::LyingDisk);
    layout.sync = needs_journal || Rng::new(seed, 6).chance_ppm(SYNC_PPM);
    layout.sync &= options.plane != Some(true);
    let mut rng_epochs = Rng::new(seed, 8);
    let needs_epochs = matches!(
        options.mutation,
        Some(Mutation::OpenedEarly | Mutation::RecoveringSealed)
    );
    let needs_epochs = needs_epochs || options.plane == Some(true);
    let changes = needs_epochs || rng_epochs.chance_ppm(EPOCHS_PPM);
    let changes = changes && !layout.sync;
    if changes {
        layout.add_spare_acceptor();
        // The mutations of epochs are about the coordinator that the real one takes the place of.
        let by_seed = !needs_epochs && Rng::new(seed, 12).chance_ppm(PLANE_PPM);
        layout.plane = options.plane.unwrap_or(by_seed);
    }
    let mut rng_security = Rng::new(seed, 10);
    let needs_attacker = options.mutation == Some(Mutation::ReadOfAnother);
    let has_attacker = rng_security.chance_ppm(ATTACKER_PPM) || needs_attacker;
    if rng_security.chance_ppm(KEYED_PPM) {
        layout.digest_key = Some(Secret([seed as u8; 16]));
    }
    let unkind = unkindness(&mut rng);
    let load_us = LOADS_US[rng.below(3) as usize];
    let load_us = match runs_store(seed, options, &mut layout) {
        true => STORE_LOAD_US,
        false => load_us,
    };
    let described = layout.describe();
    let mut world = World::new(seed, layout, options.mutation, options.trace_events);
    let panic = panic_of(|| {
        world.be_unkind(unkind);
        world.load(load_us);
        if changes {
            world.reconfigure_every(RECONFIGURE_US);
        }
        if has_attacker {
            world.attack_every(ATTACKER_EVERY_US);
        }
        let until = world.now + options.faulty_us;
        world.run_until(until, |w| w.stats.events > EVENTS_MAX);
        if world.violation().is_some() {
            return;
        }
        world.reconfigure_every(0);
        let dead = world.choose_the_dead();
        world.end_all_faults(&dead);
        world.must_settle();
    });
    if let Some(text) = panic {
        let what = format!("panicked: {text}");
        world.check(Err(Invariant::NoPanic.broken(what)));
    }
    Report {
        seed,
        layout: described,
        store: world.layout.store,
        violation: world.violation().cloned(),
        stats: world.stats,
        ends: world.ledger.ends,
        applied: world.ledger.len(),
        trace_hash: world.trace.hash(),
        trace: world.trace.lines(),
    }
}
