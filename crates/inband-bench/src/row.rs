//! One figure of a benchmark: a line of text, a JSON object, and a bar of a plot.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use serde::Serialize;

use super::plot::{self, Bar, Chart};

/// A figure measured in the same run, for comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Baseline {
    pub name: String,
    /// Its value, in the row's unit.
    pub value: f64,
}

/// Returns a figure quoted from a paper.
pub const fn quote(place: &'static str, what: &'static str, value: f64) -> Quoted {
    Quoted { place, what, value }
}

/// A figure that a paper reports, measured on its own machines.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Quoted {
    /// Where it is: paper, section, figure.
    pub place: &'static str,
    /// What it is, if that is not clear from the row.
    pub what: &'static str,
    /// Its value, in the row's unit.
    pub value: f64,
}

/// One figure. Metric names are an interface and must not change.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub bench: &'static str,
    pub metric: &'static str,
    /// Where the roles ran.
    pub backend: String,
    /// Distinguishes it from rows of the same metric and backend; may be empty.
    pub variant: String,
    /// Median over the rounds.
    pub value: f64,
    /// Unit of value and baseline.
    pub unit: &'static str,
    pub baseline: Option<Baseline>,
    /// value / baseline.
    pub ratio: Option<f64>,
    /// A paper's figure for the same metric.
    pub paper: Option<Quoted>,
    /// What was run, and on which machine.
    pub conditions: String,
}

/// All results of a benchmark, as in its file.
#[derive(Serialize)]
struct Results<'a> {
    bench: &'a str,
    finished_unix_s: u64,
    kernel: String,
    cores: usize,
    load_average_before: &'a str,
    load_average_after: String,
    notes: &'a [String],
    rows: &'a [Row],
    charts: &'a [Chart],
}

/// Prints rows immediately, and writes all of them to two files at the end.
pub struct Output {
    json: bool,
    dir: PathBuf,
    load_before: String,
    notes: std::cell::RefCell<Vec<String>>,
    rows: Vec<Row>,
    charts: Vec<Chart>,
}

impl Output {
    /// Prints JSON or text to standard output, and writes files to `dir`.
    pub fn new(json: bool, dir: PathBuf) -> Output {
        Output {
            json,
            dir,
            load_before: load_average(),
            notes: std::cell::RefCell::default(),
            rows: Vec::new(),
            charts: Vec::new(),
        }
    }

    pub fn row(&mut self, row: &Row) -> Result<()> {
        let line = serde_json::to_string(row)?;
        println!("{}", if self.json { line } else { row.to_text() });
        self.rows.push(row.clone());
        Ok(())
    }

    /// Adds a chart to the plot; without any chart the rows are plotted as bars.
    pub fn chart(&mut self, chart: Chart) {
        self.charts.push(chart);
    }

    /// Prints a line of text; with `--json` to standard error.
    pub fn note(&self, text: &str) {
        if self.json {
            eprintln!("{text}");
        } else {
            println!("{text}");
        }
        self.notes.borrow_mut().push(text.to_owned());
    }

    /// Notes what was skipped and why.
    pub fn skipped(&self, what: &str) {
        self.note(&format!("SKIPPED {what}"));
    }

    /// Everything noted so far.
    #[cfg(test)]
    pub fn notes(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }

    /// Writes `NAME.json` and `NAME.svg`.
    pub fn finish(self, name: &str) -> Result<()> {
        if self.rows.is_empty() && self.charts.is_empty() {
            return Ok(());
        }
        let charts = match self.charts.is_empty() {
            true => bars_of(&self.rows),
            false => self.charts,
        };
        let notes = self.notes.into_inner();
        let results = Results {
            bench: name,
            finished_unix_s: SystemTime::UNIX_EPOCH
                .elapsed()
                .as_ref()
                .map_or(0, Duration::as_secs),
            kernel: kernel(),
            cores: cores(),
            load_average_before: &self.load_before,
            load_average_after: load_average(),
            notes: &notes,
            rows: &self.rows,
            charts: &charts,
        };
        let mut under: Vec<&str> = self.rows.iter().map(|r| r.conditions.as_str()).collect();
        under.dedup();
        under.truncate(CONDITIONS_SHOWN_MAX);
        under.extend(notes.iter().map(String::as_str));
        let svg = plot::svg(&format!("inband bench {name}"), &charts, &under.join("\n"))?;
        let dir = &self.dir;
        std::fs::create_dir_all(dir).with_context(|| format!("--out {}", dir.display()))?;
        let stem = name.replace(' ', "-");
        let texts = [
            ("json", serde_json::to_string_pretty(&results)? + "\n"),
            ("svg", svg),
        ];
        for (extension, text) in texts {
            let path = dir.join(format!("{stem}.{extension}"));
            std::fs::write(&path, text).with_context(|| format!("--out {}", dir.display()))?;
            eprintln!("wrote {}", path.display());
        }
        Ok(())
    }
}

/// Maximum number of conditions in a plot; the JSON has those of every row.
const CONDITIONS_SHOWN_MAX: usize = 4;

/// One chart per unit: each row, followed by its baseline and the paper's figure.
fn bars_of(rows: &[Row]) -> Vec<Chart> {
    let mut units: Vec<&str> = Vec::new();
    for row in rows {
        if !units.contains(&row.unit) {
            units.push(row.unit);
        }
    }
    let bars = |unit: &str| {
        let mut bars: Vec<Bar> = Vec::new();
        for row in rows.iter().filter(|row| row.unit == unit) {
            let mut push = |name: String, value, is_baseline| {
                bars.push(Bar {
                    name,
                    value,
                    is_baseline,
                });
            };
            push(
                format!("{} {} {}", row.metric, row.backend, row.variant),
                row.value,
                false,
            );
            // A baseline that is another row's figure is already shown.
            let beside = row.baseline.iter().filter(|b| {
                let is_shown = |other: &Row| other.unit == unit && other.value == b.value;
                !rows.iter().any(is_shown)
            });
            for baseline in beside {
                push(format!("    {}", baseline.name), baseline.value, true);
            }
            if let Some(paper) = row.paper {
                push(format!("    paper: {}", paper.place), paper.value, true);
            }
        }
        bars
    };
    units
        .into_iter()
        .map(|unit| Chart::Bars {
            title: unit.to_owned(),
            bars: bars(unit),
        })
        .collect()
}

/// Returns the default output directory: the repository's results directory when run in the repository.
pub fn default_dir() -> PathBuf {
    let here = PathBuf::from("bench");
    match here.join("run").is_file() {
        true => here.join("results"),
        false => PathBuf::from("."),
    }
}

fn load_average() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or("unknown").to_owned()
}

fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {}", release.trim())
}

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

/// Shows a progress line, which the next call overwrites. An empty `text` clears it.
pub fn progress(text: &str) {
    eprint!("\r{text:<70}");
    if text.is_empty() {
        eprint!("\r");
    }
}

/// Returns the machine's part of a row's conditions, recorded before a benchmark.
pub fn machine() -> String {
    format!(
        "{} cores, {}, load average {} before",
        cores(),
        kernel(),
        load_average()
    )
}

impl Row {
    /// Creates a figure without a baseline.
    pub fn new(
        (bench, metric): (&'static str, &'static str),
        backend: impl Into<String>,
        variant: impl Into<String>,
        (value, unit): (f64, &'static str),
        conditions: impl Into<String>,
    ) -> Row {
        Row {
            bench,
            metric,
            backend: backend.into(),
            variant: variant.into(),
            value,
            unit,
            baseline: None,
            ratio: None,
            paper: None,
            conditions: conditions.into(),
        }
    }

    fn to_text(&self) -> String {
        let mut text = format!(
            "{:<24} {:>12} {:<10} {:<12}",
            self.metric,
            number(self.value),
            self.unit,
            self.backend
        );
        if !self.variant.is_empty() {
            text += &format!(" {:<22}", self.variant);
        }
        if let (Some(baseline), Some(ratio)) = (&self.baseline, self.ratio) {
            text += &format!(
                " {} x {} ({})",
                number(ratio),
                baseline.name,
                number(baseline.value)
            );
        }
        if let Some(paper) = &self.paper {
            text += &format!(
                "\n    paper: {} {}{}{} ({}); ours is {} of it",
                number(paper.value),
                self.unit,
                if paper.what.is_empty() { "" } else { ", " },
                paper.what,
                paper.place,
                number(self.value / paper.value)
            );
        }
        text + "\n    " + &self.conditions
    }

    /// Adds a paper's figure.
    pub fn quoting(mut self, paper: impl Into<Option<Quoted>>) -> Row {
        self.paper = paper.into();
        self
    }

    /// Adds a baseline from the same run.
    pub fn beside(mut self, baseline: Option<Baseline>) -> Row {
        self.ratio = baseline.as_ref().map(|b| self.value / b.value);
        self.baseline = baseline;
        self
    }
}

/// Formats a number for people: thousands separators, and only significant digits.
pub fn number(value: f64) -> String {
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

/// Returns the median; for an even count, the lower of the two middle values.
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

    fn row(metric: &'static str, value: f64) -> Row {
        let conditions = "conditions of the row";
        Row::new(("bench", metric), "xdp", "64 B", (value, "us"), conditions)
    }

    #[test]
    fn results_are_a_json_and_an_svg_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut output = Output::new(true, dir.path().join("made"));
        let paper = Quoted {
            place: "section 5",
            what: "",
            value: 8.0,
        };
        output
            .row(&row("latency", 4.0).quoting(paper))
            .expect("a row");
        output.note("a note");
        output.finish("paper latency").expect("files");
        let read = |name| std::fs::read_to_string(dir.path().join("made").join(name));
        let json = read("paper-latency.json").expect("the JSON");
        let json: serde_json::Value = serde_json::from_str(&json).expect("good JSON");
        assert_eq!(json["rows"][0]["value"], 4.0);
        assert_eq!(json["rows"][0]["paper"]["value"], 8.0);
        assert_eq!(json["notes"][0], "a note");
        assert_eq!(json["charts"][0]["bars"].as_array().map(Vec::len), Some(2));
        let svg = read("paper-latency.svg").expect("the plot");
        assert!(svg.contains("section 5") && svg.contains("conditions of the row"));
    }

    #[test]
    fn a_baseline_that_is_a_row_has_one_bar() {
        let baseline = |value| {
            let name = "the other".into();
            Some(Baseline { name, value })
        };
        let rows = [row("a", 1.0).beside(baseline(2.0)), row("b", 2.0)];
        let [Chart::Bars { bars, .. }] = &bars_of(&rows)[..] else {
            panic!("one unit, one chart");
        };
        assert_eq!(bars.len(), 2);
        let rows = [row("a", 1.0).beside(baseline(3.0)), row("b", 2.0)];
        let [Chart::Bars { bars, .. }] = &bars_of(&rows)[..] else {
            panic!("one unit, one chart");
        };
        assert_eq!(bars.len(), 3);
    }

    #[test]
    fn a_paper_s_figure_is_printed_beside_ours() {
        let paper = Quoted {
            place: "section 5",
            what: "a switch",
            value: 8.0,
        };
        let text = row("latency", 4.0).quoting(paper).to_text();
        assert!(text.contains("8.000 us, a switch (section 5); ours is 0.500 of it"));
    }

    #[test]
    fn medians_and_numbers() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(number(1234567.0), "1,234,567");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(0.0312), "0.031");
    }
}
