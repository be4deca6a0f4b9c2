//! A benchmark of several figures.

use anyhow::{ensure, Result};
use clap::ValueEnum;

use crate::row::{progress, Output};

/// Measure and write one figure, or all of them; the others are still measured when one fails. `name_of` makes a figure's
/// name in the output of its name on the command line.
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
