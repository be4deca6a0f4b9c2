//! The short form of `make models`: the models hold, and each variant with a rule left out is refuted.

use std::path::Path;

use inband_models::catalogue::all;

#[test]
fn models_hold_and_mutants_are_refuted() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("models");
    for check in all().iter().filter(|check| check.is_short) {
        let name = format!("{} ({}) {:?}", check.model, check.bounds, check.mutant);
        let outcome = check
            .run(&scratch.join(check.model))
            .unwrap_or_else(|error| panic!("{error}"));
        println!("{name}: {} states, {:?}", outcome.states, outcome.refuted);
        assert_eq!(outcome.refuted.is_some(), check.mutant.is_some(), "{name}");
        let is_whole = check.mutant.is_none();
        assert!(!is_whole || outcome.states > 1000, "{name} does nothing");
    }
}
