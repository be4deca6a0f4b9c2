//! Checks that cannot fail are worth nothing: every rule that is broken on purpose must be detected.

use inband_sim::paxos::{run, Invariant, Mutation, Options};

/// Seeds after which a mutation must have been detected.
const SEEDS_MAX: u64 = 150;

/// Mutations that need a directed schedule: `round_used_twice`, `read_without_memory` and `read_beside_an_old_leader`
/// in schedules.rs, `sealed_without_memory` in epochs.rs.
const OF_THEIR_OWN: [Mutation; 4] = [
    Mutation::ReadOfStamped,
    Mutation::IncarnationReused,
    Mutation::ReadOfRecovering,
    Mutation::RecoveringSealed,
];

/// The invariants that a broken rule may violate; any other is a detection for the wrong reason.
fn invariants_broken_by(mutation: Mutation) -> &'static [Invariant] {
    use Invariant::*;
    match mutation {
        Mutation::VoteCountedTwice | Mutation::VotesIgnored | Mutation::SilenceIsNoVote => {
            &[Agreement]
        }
        Mutation::Amnesia => &[PromiseKept, Agreement],
        Mutation::IncarnationReused => &[RoundsUnique, Agreement],
        Mutation::TrimTooFar => &[TrimKept],
        Mutation::NoSessionTable => &[ExactlyOnce],
        Mutation::HighestSequenceOnly => &[NothingLost],
        Mutation::NotDurable => &[TrimKept],
        Mutation::OpenedEarly | Mutation::RecoveringSealed => {
            &[EpochFenced, Agreement, ReadsLinearizable]
        }
        Mutation::ReadOfStamped
        | Mutation::ReadOfOneAcceptor
        | Mutation::ReadJoinedLate
        | Mutation::ReadOfAnother
        | Mutation::ReadOfRecovering => &[ReadsLinearizable],
        Mutation::LyingDisk => &[DiskKept],
    }
}

#[test]
fn every_mutation_is_caught() {
    for (mutation, name) in Mutation::ALL {
        if OF_THEIR_OWN.contains(&mutation) {
            continue;
        }
        let options = Options {
            faulty_us: 500_000,
            mutation: Some(mutation),
            ..Options::default()
        };
        let caught =
            (1..=SEEDS_MAX).find_map(|seed| run(seed, &options).violation.map(|v| (seed, v)));
        let Some((seed, violation)) = caught else {
            panic!("{name} was not noticed in {SEEDS_MAX} seeds");
        };
        println!(
            "{name}: seed {seed}, {} us: {}: {}",
            violation.at_us, violation.invariant, violation.what
        );
        assert!(
            invariants_broken_by(mutation).contains(&violation.invariant),
            "{name} was noticed for another reason: {}",
            violation.what
        );
    }
}
