//! The smallest world survives random schedules and detects a deliberate fault.

use super::{Invariant, Options, Sequencer};
use crate::asking::Fault;
use crate::{run, Seeds};

const FAULTY: Options = Options {
    same_incarnation: true,
};

#[test]
fn numbers_are_given_once_and_a_forgotten_incarnation_is_noticed() {
    let seeds = Seeds {
        first: 1,
        count: Some(100),
        jobs: 2,
    };
    let sound = seeds.play::<Sequencer>(&Options::default(), || false, |_| ());
    assert_eq!((sound.seeds, sound.failures), (100, 0));
    for fault in Fault::ALL {
        assert!(sound.stats.faults.of(fault.name()) > 50, "{fault}");
    }
    assert!(sound.stats.of("numbers given") > 10_000);
    let violations = (1..=50).filter_map(|seed| run::<Sequencer>(seed, &FAULTY).violation);
    let found: Vec<Invariant> = violations.map(|violation| violation.invariant).collect();
    assert!(found.len() > 25 && found.iter().all(|i| *i == Invariant::Unique));
}
