//! Checks that cannot fail are worth nothing: every rule broken on purpose must be noticed.

use inband_sim::{run, Mutation, Options};

/// Seeds tried until a mutation must be found out.
const SEEDS_MAX: u64 = 150;

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
    }
}

#[test]
fn every_mutation_is_caught() {
    for (mutation, name) in Mutation::ALL {
        if mutation == Mutation::IncarnationReused {
            continue; // takes a schedule of its own: `round_used_twice` in schedules.rs
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
