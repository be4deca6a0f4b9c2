//! Models in Promela, checked by SPIN: translated to C, compiled, run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::check::{Outcome, Refutation};

/// Maximum search depth; a longer path is an error.
const DEPTH_MAX: u32 = 1_000_000;
/// Memory limit of a run.
const MEMORY_MIB_MAX: u32 = 4096;

/// Why a model could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum SpinError {
    /// A program is missing or failed.
    #[error("{program} failed: {said}; `scripts/setup --test` installs what the models need")]
    Failed {
        program: String,
        /// The output of the program, or the system's error.
        said: String,
    },
    /// The verifier did not visit every state.
    #[error("the verifier of {model} did not finish: {said}")]
    Incomplete {
        model: String,
        /// Its output.
        said: String,
    },
}

fn run(program: &str, dir: &Path, args: &[String]) -> Result<String, SpinError> {
    let failed = |said: String| SpinError::Failed {
        program: program.to_owned(),
        said,
    };
    let output = Command::new(program).current_dir(dir).args(args).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    Err(failed(said + &String::from_utf8_lossy(&output.stderr)))
}

/// The folder of the models in Promela.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("spin")
}

/// The mutants that a model knows.
///
/// # Panics
/// If the model's file is missing.
pub fn mutants(model: &str) -> Vec<String> {
    let text =
        fs::read_to_string(folder().join(format!("{model}.pml"))).expect("the model is there");
    let is_word = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c| !is_word(c));
    let mut mutants: Vec<String> = words
        .filter_map(|w| Some(w.strip_prefix("MUTANT_")?.to_owned()))
        .collect();
    mutants.sort_unstable();
    mutants.dedup();
    mutants
}

/// The number between these words of the verifier's report.
fn number(report: &str, before: &str, behind: &str) -> Option<u64> {
    let line = report
        .lines()
        .find(|line| line.contains(before) && line.contains(behind))?;
    let from = line.find(before)? + before.len();
    let to = if behind.is_empty() {
        line.len()
    } else {
        line.rfind(behind)?
    };
    line.get(from..to)?.split(',').next()?.trim().parse().ok()
}

/// Visits every state of a model with these definitions, or all up to the first violation. `scratch` is a directory
/// used only by this check.
pub fn explore(model: &str, definitions: &[String], scratch: &Path) -> Result<Outcome, SpinError> {
    let began = Instant::now();
    let failed = |error: std::io::Error| SpinError::Failed {
        program: scratch.display().to_string(),
        said: error.to_string(),
    };
    fs::create_dir_all(scratch).map_err(failed)?;
    let defines = definitions.iter().map(|d| format!("-D{d}"));
    let file = folder().join(format!("{model}.pml")).display().to_string();
    let args: Vec<String> = defines.chain(["-a".to_owned(), file]).collect();
    run("spin", scratch, &args)?;
    let memory = format!("-DMEMLIM={MEMORY_MIB_MAX}");
    // A variant is refuted after few states: compiling it would take longer than running it.
    let is_variant = definitions.iter().any(|d| d.starts_with("MUTANT_"));
    let optimized = if is_variant { "-O0" } else { "-O1" };
    let args = [optimized, "-w", "-DSAFETY", &memory, "-o", "pan", "pan.c"];
    run("cc", scratch, &args.map(str::to_owned))?;
    let program = scratch.join("pan").display().to_string();
    let report = run(
        &program,
        scratch,
        &["-E".to_owned(), format!("-m{DEPTH_MAX}")],
    )?;
    let incomplete = || SpinError::Incomplete {
        model: model.to_owned(),
        said: report.clone(),
    };
    let violation = report.lines().find_map(|line| line.strip_prefix("pan:1: "));
    let is_whole =
        !report.contains("Search not completed") && !report.contains("max search depth too small");
    if violation.is_none() && !is_whole {
        return Err(incomplete());
    }
    let refuted = violation.map(|violation| Refutation {
        property: violation
            .split(" (at depth")
            .next()
            .unwrap_or(violation)
            .to_owned(),
        steps: Vec::new(),
    });
    Ok(Outcome {
        states: number(&report, "", " states, stored").ok_or_else(incomplete)?,
        depth: number(&report, "depth reached", "errors").ok_or_else(incomplete)?,
        took: began.elapsed(),
        refuted,
    })
}
