//! One figure of a benchmark, as a line for people or as a JSON object.

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

impl Row {
    /// Print as a JSON object on a line, or as a line for people.
    pub fn print(&self, json: bool) {
        if json {
            // A row is plain strings and numbers.
            println!("{}", serde_json::to_string(self).expect("a row is representable in JSON"));
            return;
        }
        let mut line = format!(
            "{:<24} {:>12} {:<10} {:<12}",
            self.metric,
            number(self.value),
            self.unit,
            self.backend
        );
        if let (Some(baseline), Some(ratio)) = (&self.baseline, self.ratio) {
            line += &format!(" {:.2} x {} ({})", ratio, baseline.name, number(baseline.value));
        }
        println!("{line}");
        println!("    {}", self.conditions);
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
    } else {
        format!("{value:.1}")
    }
}

/// The middle one; of an even number, the lower of the two in the middle.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_numbers() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(number(1234567.0), "1,234,567");
        assert_eq!(number(12.34), "12.3");
    }
}
