//! Benchmarks with several figures.

use anyhow::{ensure, Result};
use clap::ValueEnum;

use crate::row::{progress, Output};

/// Measures and writes one figure, or all of them. If one fails, the others are still measured. `name_of` converts a
/// figure's name on the command line to its name in the output.
pub fn run_each<F: ValueEnum>(
    figures: &[F],
    name_of: impl Fn(&F, &str) -> String,
    output_of: &dyn Fn() -> Output,
    mut measure: impl FnMut(&F, &mut Output) -> Result<()>,
) -> Result<()> {
    let mut failed = Vec::new();
    for figure in figures {
        let value = figure.to_possible_value();
        let name = name_of(figure, value.as_ref().map_or("", |value| value.get_name()));
        let mut output = output_of();
        let measured = measure(figure, &mut output);
        progress("");
        if let Err(error) = measured.and_then(|()| output.finish(&name)) {
            eprintln!("inband bench {name}: {error:#}");
            failed.push(name);
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}
