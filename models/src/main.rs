//! Checks every model, and that every variant with a rule left out is refuted.
//!
//! `inband-models [--short] [NAME]`: `--short` leaves out checks that take longer than seconds; NAME is a part of a
//! model's or a variant's name.

use std::path::Path;
use std::process::ExitCode;

use inband_models::catalogue::{all, Check};
use inband_models::check::Outcome;

fn is_wanted(check: &Check, is_short: bool, name: Option<&str>) -> bool {
    let named = |name: &str| {
        let mutant = check.mutant.as_deref().unwrap_or_default();
        check.model.contains(name) || mutant.contains(name)
    };
    (check.is_short || !is_short) && name.is_none_or(named)
}

fn print(check: &Check, outcome: &Outcome) {
    let mutant = check.mutant.as_deref().unwrap_or("-");
    let refuted = outcome.refuted.as_ref();
    println!(
        "| {} | {} | {mutant} | {} | {} | {:.1} | {} |",
        check.model,
        check.bounds,
        outcome.states,
        outcome.depth,
        outcome.took.as_secs_f64(),
        refuted.map_or("holds", |refuted| &refuted.property)
    );
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_short = args.iter().any(|arg| arg == "--short");
    let name = args.iter().find(|arg| !arg.starts_with("--"));
    let scratch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/models");
    println!("| model | bounds | rule left out | states | depth | seconds | outcome |");
    println!("|---|---|---|---|---|---|---|");
    let mut wrong = Vec::new();
    let mut checks = all();
    checks.retain(|check| is_wanted(check, is_short, name.map(String::as_str)));
    for check in checks {
        let outcome = match check.run(&scratch.join(check.model)) {
            Ok(outcome) => outcome,
            Err(error) => {
                eprintln!("models: {error}");
                return ExitCode::FAILURE;
            }
        };
        print(&check, &outcome);
        if outcome.refuted.is_some() != check.mutant.is_some() {
            let mutant = check.mutant.as_deref().unwrap_or("nothing");
            wrong.push(format!(
                "{} ({}) without {mutant}",
                check.model, check.bounds
            ));
            for step in outcome.refuted.iter().flat_map(|refuted| &refuted.steps) {
                eprintln!("    {step}");
            }
        }
    }
    if wrong.is_empty() {
        println!("models: all hold, and every variant with a rule left out is refuted");
        return ExitCode::SUCCESS;
    }
    eprintln!("models: not as it should be: {}", wrong.join("; "));
    ExitCode::FAILURE
}
