//! One figure of a benchmark, as a line for people or as a JSON object.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

/// A figure measured in the same run as the one it stands beside.
#[derive(Debug, Clone, Serialize)]
pub struct Baseline {
    /// What it is.
    pub name: String,
    /// Its value, in the row's unit.
    pub value: f64,
}

/// One figure. Metric names are an interface: they do not change.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Which benchmark.
    pub bench: &'static str,
    /// Which figure.
    pub metric: &'static str,
    /// Where the roles ran.
    pub backend: String,
    /// Median over the rounds.
    pub value: f64,
    /// Unit of value and baseline.
    pub unit: &'static str,
    /// What it stands beside.
    pub baseline: Option<Baseline>,
    /// value / baseline.
    pub ratio: Option<f64>,
    /// What was run, on what.
    pub conditions: String,
}

/// Where rows go.
pub struct Output {
    json: bool,
    results: Option<(PathBuf, File)>,
}

impl Output {
    /// To standard output, as JSON or for people, and as JSON behind what is in `results`.
    pub fn new(json: bool, results: Option<&Path>) -> Result<Output> {
        let open = |path: &Path| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            let file = file.with_context(|| format!("--results {}", path.display()))?;
            anyhow::Ok((path.to_owned(), file))
        };
        Ok(Output {
            json,
            results: results.map(open).transpose()?,
        })
    }

    /// Print one figure.
    pub fn row(&mut self, row: &Row) -> Result<()> {
        let line = serde_json::to_string(row)?;
        if let Some((path, file)) = &mut self.results {
            writeln!(file, "{line}").with_context(|| format!("--results {}", path.display()))?;
        }
        println!("{}", if self.json { line } else { row.to_text() });
        Ok(())
    }

    /// A line for people; with `--json` it goes to standard error.
    pub fn note(&self, text: &str) {
        if self.json {
            eprintln!("{text}");
        } else {
            println!("{text}");
        }
    }

    /// Say what was left out, and why. Never silently.
    pub fn skipped(&self, what: &str) {
        self.note(&format!("SKIPPED {what}"));
    }
}

/// Overwritten by the next one, and by nothing if `text` is empty.
pub fn progress(text: &str) {
    eprint!("\r{text:<70}");
    if text.is_empty() {
        eprint!("\r");
    }
}

/// The machine's part of a row's conditions, as it is before a benchmark.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown").to_owned();
    format!("{cores} cores, load average {load} before")
}

impl Row {
    fn to_text(&self) -> String {
        let mut text = format!(
            "{:<24} {:>12} {:<10} {:<12}",
            self.metric,
            number(self.value),
            self.unit,
            self.backend
        );
        if let (Some(baseline), Some(ratio)) = (&self.baseline, self.ratio) {
            text += &format!(
                " {} x {} ({})",
                number(ratio),
                baseline.name,
                number(baseline.value)
            );
        }
        text + "\n    " + &self.conditions
    }

    /// With a figure of the same run beside it.
    pub fn beside(mut self, baseline: Option<Baseline>) -> Row {
        self.ratio = baseline.as_ref().map(|b| self.value / b.value);
        self.baseline = baseline;
        self
    }
}

fn number(value: f64) -> String {
    if value.abs() >= 1000.0 {
        let digits = format!("{:.0}", value);
        let mut out = String::new();
        for (i, c) in digits.chars().enumerate() {
            if i > 0 && (digits.len() - i) % 3 == 0 && c != '-' {
                out.push(',');
            }
            out.push(c);
        }
        out
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}

/// The middle one; of an even number, the lower of the two in the middle.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values
        .get(values.len().saturating_sub(1) / 2)
        .copied()
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_numbers() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(number(1234567.0), "1,234,567");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(0.0312), "0.031");
    }
}
