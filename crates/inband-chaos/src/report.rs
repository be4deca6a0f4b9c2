//! The report: one self-contained HTML page.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use super::history::{Outcome, Seen};
use crate::chaos::Findings;

const PAGE: &str = include_str!("report.html");
/// The placeholder in the page that the data replaces.
const PLACE: &str = "/*DATA*/null";
/// Operations drawn individually. If there are more, fast successful ones are sampled. Throughput and latency always
/// include all operations.
const OPERATIONS_DRAWN_MAX: usize = 150_000;
/// Operations that take at least this long are always drawn.
const SLOW_NS: u64 = 20_000_000;
const BUCKET_NS: u64 = 100_000_000;

/// Throughput and latency in one interval.
#[derive(Debug, Default, Clone)]
struct Bucket {
    ok: u32,
    failed: u32,
    unknown: u32,
    /// Of successful operations.
    latencies_us: Vec<u32>,
}

pub fn write(findings: &Findings, path: &Path) -> Result<()> {
    // The readers of the final check are not clients.
    let clients = findings.about.clients;
    let of_clients = |seen: &&Seen| seen.client < clients;
    let operations = findings.summary.operations.iter().filter(of_clients);
    let operations: Vec<Seen> = operations.copied().collect();
    let data = json!({
        "about": findings.about,
        "verdict": findings.verdict,
        "served": match &findings.served_after {
            Ok(time) => json!({"after_ms": time.as_millis() as u64}),
            Err(error) => json!({"error": format!("{error:#}")}),
        },
        "agreed": match &findings.agreed {
            Ok(()) => json!({}),
            Err(error) => json!({"error": format!("{error:#}")}),
        },
        "faults_ns": [findings.faults_ns.0, findings.faults_ns.1],
        "faults": findings.summary.faults,
        "errors": findings.summary.errors,
        "bucket_ms": BUCKET_NS / 1_000_000,
        "buckets": buckets(&operations),
        "operations": drawn(&operations, clients),
    });
    // No text may close the script element.
    let text = data.to_string().replace("</", "<\\/");
    let page = PAGE.replacen(PLACE, &text, 1);
    fs::write(path, page).with_context(|| format!("writing {}", path.display()))
}

/// For each interval: counts of ok, failed and unknown, then the median, 99th percentile and maximum latency in us.
fn buckets(operations: &[Seen]) -> Vec<[u32; 6]> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for seen in operations {
        // Count an operation where it ends, so that an outage shows as a gap.
        let index = (seen.return_ns / BUCKET_NS) as usize;
        if buckets.len() <= index {
            buckets.resize(index + 1, Bucket::default());
        }
        let bucket = &mut buckets[index];
        match seen.outcome {
            Outcome::Ok => {
                bucket.ok += 1;
                let latency_us = (seen.return_ns - seen.call_ns) / 1000;
                bucket.latencies_us.push(latency_us as u32);
            }
            Outcome::Failed => bucket.failed += 1,
            Outcome::Unknown => bucket.unknown += 1,
        }
    }
    buckets.into_iter().map(Bucket::numbers).collect()
}

impl Bucket {
    fn numbers(mut self) -> [u32; 6] {
        self.latencies_us.sort_unstable();
        let count = self.latencies_us.len();
        let at = |share: f64| {
            let index = (count as f64 * share) as usize;
            self.latencies_us
                .get(index.min(count.saturating_sub(1)))
                .copied()
        };
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| at(share).unwrap_or(0));
        [self.ok, self.failed, self.unknown, p50, p99, max]
    }
}

/// For each client, a flat list of its operations in order, three numbers each: microseconds since the previous one
/// began, duration in microseconds, and outcome.
fn drawn(operations: &[Seen], clients: usize) -> Vec<Vec<u64>> {
    let stride = operations.len() / OPERATIONS_DRAWN_MAX + 1;
    let mut drawn = vec![Vec::new(); clients];
    let mut before_us = vec![0; clients];
    for (index, seen) in operations.iter().enumerate() {
        let is_dull = seen.outcome == Outcome::Ok && seen.return_ns - seen.call_ns < SLOW_NS;
        if is_dull && index % stride != 0 {
            continue;
        }
        let outcome = match seen.outcome {
            Outcome::Ok => 0,
            Outcome::Failed => 1,
            Outcome::Unknown => 2,
        };
        let call_us = seen.call_ns / 1000;
        let took_us = (seen.return_ns - seen.call_ns) / 1000;
        drawn[seen.client].extend([call_us - before_us[seen.client], took_us, outcome]);
        before_us[seen.client] = call_us;
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(client: usize, call_ms: u64, return_ms: u64, outcome: Outcome) -> Seen {
        Seen {
            client,
            call_ns: call_ms * 1_000_000,
            return_ns: return_ms * 1_000_000,
            outcome,
        }
    }

    #[test]
    fn intervals_count_what_ended_in_them() {
        let operations = [
            seen(0, 0, 10, Outcome::Ok),
            seen(1, 0, 30, Outcome::Ok),
            seen(0, 90, 250, Outcome::Unknown),
            seen(1, 240, 260, Outcome::Failed),
        ];
        let buckets = buckets(&operations);
        assert_eq!(buckets[0], [2, 0, 0, 30_000, 30_000, 30_000]);
        assert_eq!(buckets[1], [0; 6]);
        assert_eq!(buckets[2], [0, 1, 1, 0, 0, 0]);
    }

    #[test]
    fn clients_are_drawn_from_operation_to_operation() {
        let operations = [
            seen(0, 1, 2, Outcome::Ok),
            seen(1, 1, 3, Outcome::Failed),
            seen(0, 5, 9, Outcome::Unknown),
        ];
        let expected = [
            vec![1_000, 1_000, 0, 4_000, 4_000, 2],
            vec![1_000, 2_000, 1],
        ];
        assert_eq!(drawn(&operations, 2), expected);
    }

    #[test]
    fn the_page_has_a_place_for_its_data() {
        assert_eq!(PAGE.matches(PLACE).count(), 1);
    }
}
