//! `inband bench agreement` in its shortest form.
#![allow(missing_docs)]

use std::process::Command;

use serde_json::Value;

/// Runs it and reads the rows that it wrote.
fn bench(args: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().expect("a directory");
    inband_testing::build("inband");
    let output = Command::new(env!("CARGO_BIN_EXE_inband-bench"))
        .args(["agreement", "--rounds", "1", "--duration-ms", "300"])
        .args(args)
        .arg("--out")
        .arg(dir.path())
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let written = std::fs::read_to_string(dir.path().join("agreement.json")).expect("results");
    let results: Value = serde_json::from_str(&written).expect("it is JSON");
    results["rows"].as_array().expect("rows").clone()
}

fn value(rows: &[Value], metric: &str, variant: &str) -> f64 {
    let row = rows
        .iter()
        .find(|row| row["metric"] == metric && row["variant"] == variant);
    let row = row.unwrap_or_else(|| panic!("{metric}, {variant}: {rows:?}"));
    row["value"].as_f64().expect("a number")
}

#[test]
fn hosts_on_loopback_are_measured() {
    let rows = bench(&["--loopback"]);
    for variant in ["1 outstanding", "64 outstanding"] {
        for metric in ["per_s", "p50_us", "mean_us", "cpu_us_per_value"] {
            let value = value(&rows, &format!("loopback_{metric}"), variant);
            assert!(value > 0.0, "{metric}, {variant}: {value}");
        }
    }
}

#[test]
fn hosts_in_namespaces_are_measured() {
    if let Err(error) = inband_lab::preflight::check_lab() {
        inband_testing::not_run(error);
        return;
    }
    let rows = bench(&["--backends", "udp"]);
    for metric in [
        "latency_p50_us",
        "delivered_per_s",
        "batched_commands_per_s",
    ] {
        assert!(value(&rows, metric, "") > 0.0, "{metric}");
    }
}
