//! `inband bench flair`, in its shortest form.

mod common;

use std::path::Path;

use serde_json::Value;

/// Where control groups of version 1 limit CPU time, which every figure does to storage nodes.
const CPU_GROUPS: &str = "/sys/fs/cgroup/cpu/cpu.shares";

/// Returns whether the lab and CPU limits work here; reports it if not.
fn can_run() -> bool {
    if let Err(error) = inband_lab::preflight::check_lab() {
        inband_testing::not_run(error);
        return false;
    }
    if !Path::new(CPU_GROUPS).exists() {
        inband_testing::not_run_optional(format!("there is no {CPU_GROUPS}"));
        return false;
    }
    true
}

fn reads_are_timed(more: &[&str]) {
    if !can_run() {
        return;
    }
    // Less than a system call takes is no round trip.
    let are_measured = |results: &Value| p50_us(results).iter().all(|us| *us > 1.0);
    let results = common::bench("flair", "inband", "latency", more, are_measured);
    let p50 = p50_us(&results);
    assert!(!p50.is_empty() && are_measured(&results), "{p50:?}");
}

fn p50_us(results: &Value) -> Vec<f64> {
    let rows = results["rows"].as_array().expect("rows").iter();
    let p50 = rows.filter(|row| row["metric"] == "read_p50_us");
    p50.map(|row| row["value"].as_f64().expect("a number"))
        .collect()
}

#[test]
fn reads_are_timed_without_keys() {
    reads_are_timed(&[]);
}

#[test]
fn reads_are_timed_with_keys_and_tls() {
    reads_are_timed(&["--secure"]);
}
