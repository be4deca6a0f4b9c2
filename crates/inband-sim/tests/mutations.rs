//! Checks that cannot fail are worth nothing: every rule broken on purpose must be noticed.

use inband_sim::{run, Mutation, Options};

/// Seeds tried until a mutation must be found out.
const SEEDS_MAX: u64 = 150;

/// Mutations that take a schedule of their own: `round_used_twice` and `read_without_memory` in
/// schedules.rs, `sealed_without_memory` in epochs.rs.
const OF_THEIR_OWN: [Mutation; 3] = [
    Mutation::IncarnationReused,
    Mutation::ReadOfRecovering,
    Mutation::RecoveringSealed,
];

/// What the checks may say about a broken rule; anything else is noticed for the wrong reason.
fn words_for(mutation: Mutation) -> &'static [&'static str] {
    match mutation {
        Mutation::VoteCountedTwice => &["no majority voted for"],
        Mutation::VotesIgnored | Mutation::SilenceIsNoVote => {
            &["voted in", "chosen", "another value"]
        }
        Mutation::Amnesia => &["below its promise", "voted in", "chosen"],
        Mutation::IncarnationReused => &["in one round", "chosen"],
        Mutation::TrimTooFar => &["no command through", "not settled", "below its floor"],
        Mutation::NoSessionTable => &["applied twice"],
        Mutation::HighestSequenceOnly => &["acknowledged"],
        Mutation::NotDurable => &["not settled", "no command through"],
        Mutation::OpenedEarly | Mutation::RecoveringSealed => &[
            "voted in",
            "chosen",
            "another value",
            "of which a client knew",
        ],
        Mutation::ReadOfStamped
        | Mutation::ReadOfOneAcceptor
        | Mutation::ReadJoinedLate
        | Mutation::ReadOfRecovering => &["of which a client knew"],
        Mutation::LyingDisk => &["forgot"],
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
            "{name}: seed {seed}, {} us: {}",
            violation.at_us, violation.what
        );
        assert!(
            words_for(mutation)
                .iter()
                .any(|words| violation.what.contains(words)),
            "{name} was noticed for another reason: {}",
            violation.what
        );
    }
}
