//! `inband bench falcon`, each figure in its shortest form.

mod common;

use serde_json::Value;

fn bench(figure: &str, more: &[&str]) -> Value {
    common::bench("falcon", "inband", figure, more, |_| true)
}

/// The values of a metric whose variant has this in it.
fn values(results: &Value, metric: &str, variant: &str) -> Vec<f64> {
    let rows = results["rows"].as_array().expect("rows");
    let rows = rows.iter().filter(|row| row["metric"] == metric);
    let rows = rows.filter(|row| row["variant"].as_str().is_some_and(|v| v.contains(variant)));
    rows.map(|row| row["value"].as_f64().expect("a number"))
        .collect()
}

#[test]
fn the_testbed_is_measured() {
    let results = bench("testbed", &["--arrivals", "poisson"]);
    let [p50, p95, bound] = ["delay_p50_us", "delay_p95_us", "bound_p95_us"]
        .map(|metric| values(&results, metric, "poisson, 95 %")[0]);
    // Less than light takes through the kernel, or longer than all of it, is no delay.
    assert!(1.0 < p50 && p50 <= p95 && p95 < 60e6, "{p50} {p95}");
    assert!(bound >= 0.0, "{bound}");
    for step in [
        "client to scheduler",
        "in the queue",
        "scheduler to worker",
        "worker to start",
    ] {
        assert!(values(&results, "step_p95_us", step)[0] > 0.0, "{step}");
    }
    let rows = results["rows"].as_array().expect("rows");
    let conditions = rows[0]["conditions"].as_str().expect("conditions");
    assert!(conditions.contains(" 0 tasks failed"), "{conditions}");
}

#[test]
fn the_scheduler_is_measured_alone() {
    let results = bench("scheduler", &["--arrivals", "periodic"]);
    let [p50, p95] = ["scheduler_p50_us", "scheduler_p95_us"]
        .map(|metric| values(&results, metric, "periodic, 95 %")[0]);
    assert!(1.0 < p50 && p50 <= p95 && p95 < 60e6, "{p50} {p95}");
    let conditions = results["rows"][0]["conditions"]
        .as_str()
        .expect("conditions");
    assert!(conditions.contains(" 0 tasks failed"), "{conditions}");
}

#[test]
fn peers_that_are_not_there_are_said_to_be_left_out() {
    let results = bench("peers", &["--python", "/nonexistent/python"]);
    let notes = results["notes"].as_array().expect("notes");
    for peer in ["Ray", "Dask", "Inband, Python"] {
        let is_said = |note: &Value| {
            let note = note.as_str().unwrap_or_default();
            note.starts_with(&format!("SKIPPED {peer}")) && note.contains("/nonexistent/python")
        };
        assert!(notes.iter().any(is_said), "{peer}: {notes:?}");
    }
}

/// A scheduler that answers as `peer.py` does.
const FAKE: &str = r#"#!/bin/sh
echo "some library's chatter" >&2
[ "$3" = dask ] && { echo "no module named dask" >&2; exit 1; }
echo '{"rate_per_s": 200.0, "wanted": 80, "begun": 80, "is_held": true, "p50_us": 2e9, "p95_us": 3e9, "late_p50_us": 4.0}'
"#;

#[test]
fn peers_stand_beside_inband_at_the_rate_that_they_hold() {
    let dir = tempfile::tempdir().expect("a directory");
    let python = dir.path().join("python");
    inband_testing::write_script(&python, FAKE);
    let results = bench("peers", &["--python", &python.to_string_lossy()]);
    assert_eq!(
        values(&results, "held_tasks_per_s", "").len(),
        held(&results)
    );
    let at_rays = values(&results, "delay_p50_us", "at Ray's highest");
    assert!(at_rays.contains(&2e9), "{at_rays:?}");
    let notes = results["notes"].to_string();
    assert!(
        notes.contains("SKIPPED Dask") && notes.contains("no module named dask"),
        "{notes}"
    );
}

/// Inband in Rust may not hold the rate where others build; the two that the fake stands for do.
fn held(results: &Value) -> usize {
    let rust_holds = !results["notes"]
        .to_string()
        .contains("Inband, Rust does not hold");
    2 + usize::from(rust_holds)
}

/// Systems that answer as `tasks.py` does.
const FAKE_TASKS: &str = r#"#!/bin/sh
[ "$3" = ray ] && { echo "no module named ray" >&2; exit 1; }
[ "$3" = inband ] && echo '{"metric": "cpu_us", "variant": "scheduler", "value": 12.0}'
[ "$3" = inband ] && rate=300 || rate=600
echo '{"metric": "tasks_per_s", "variant": "submit", "value": '$rate'}'
echo '{"metric": "array_mb_per_s", "variant": "numpy", "value": 500.0}'
echo '{"metric": "copy_mb_per_s", "variant": "", "value": 2000.0}'
"#;

#[test]
fn empty_tasks_and_arrays_stand_beside_other_executors_and_a_copy() {
    let dir = tempfile::tempdir().expect("a directory");
    let python = dir.path().join("python");
    inband_testing::write_script(&python, FAKE_TASKS);
    let results = bench("python", &["--python", &python.to_string_lossy()]);
    assert_eq!(
        values(&results, "tasks_per_s", "submit"),
        [300.0, 600.0, 600.0]
    );
    assert_eq!(values(&results, "cpu_us", "scheduler"), [12.0]);
    let rows = results["rows"].as_array().expect("rows");
    let beside = |metric: &str, system: &str| {
        let is_it = |row: &&Value| row["metric"] == metric && row["backend"] == system;
        let row = rows.iter().find(is_it).expect("a row");
        (row["baseline"]["name"].clone(), row["ratio"].clone())
    };
    assert_eq!(
        beside("tasks_per_s", "Inband"),
        ("ProcessPoolExecutor".into(), 0.5.into())
    );
    assert_eq!(beside("tasks_per_s", "Dask"), ("Inband".into(), 2.0.into()));
    assert_eq!(
        beside("array_mb_per_s", "Inband"),
        ("a copy in memory".into(), 0.25.into())
    );
    let notes = results["notes"].to_string();
    assert!(
        notes.contains("SKIPPED Ray") && notes.contains("no module named ray"),
        "{notes}"
    );
}

#[test]
fn large_clusters_are_simulated() {
    let results = bench("scale", &[]);
    let [falcon, random] = ["Falcon, a switch", "random"]
        .map(|policy| values(&results, "scale_delay_p50_us", policy)[0]);
    assert!(falcon < random, "{falcon} {random}");
}
