//! `inband bench memory`, each figure in its shortest form.

mod common;

use std::ffi::OsStr;
use std::path::PathBuf;

use serde_json::Value;

/// The library that is preloaded, as it was built for this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this test is a file");
    test.with_file_name("libinband_memory_heap.so")
}

fn bench(figure: &str, more: &[&str]) -> Value {
    let library = library();
    let mut options = vec![OsStr::new("--library"), library.as_os_str()];
    options.extend(more.iter().map(OsStr::new));
    common::bench("memory", "inband-memory", figure, &options, |_| true)
}

/// The only value of a metric and variant.
fn value(results: &Value, metric: &str, variant: &str) -> f64 {
    let rows = results["rows"].as_array().expect("rows").iter();
    let rows = rows.filter(|row| row["metric"] == metric && row["variant"] == variant);
    let values: Vec<f64> = rows
        .map(|row| row["value"].as_f64().expect("a number"))
        .collect();
    assert_eq!(values.len(), 1, "{metric}, {variant}: {values:?}");
    values[0]
}

fn notes(results: &Value) -> String {
    results["notes"].to_string()
}

/// Returns whether tests that need namespaces can run here; reports it if not.
fn has_lab() -> bool {
    match inband_lab::preflight::check_lab() {
        Ok(()) => true,
        Err(error) => {
            inband_testing::not_run(error);
            false
        }
    }
}

fn latency_is_of_the_places(dataplane: &str) {
    let results = bench("latency", &["--dataplane", dataplane]);
    for unit in ["page", "line"] {
        for access in ["read", "write"] {
            let places = ["local memory", "one server", "three servers"];
            let p50 = format!("{unit}_{access}_p50_us");
            let [local, one, three] = places.map(|place| value(&results, &p50, place));
            // A network is slower than memory, on any machine.
            assert!(0.0 < local && local < one.min(three), "{p50}");
            let p99 = value(&results, &format!("{unit}_{access}_p99_us"), places[2]);
            assert!(three <= p99, "{three} {p99}");
        }
    }
    let notes = notes(&results);
    for said in [
        "page write, p50 through a handler thread",
        "that mode is not built",
        "0 transfers were tried again",
    ] {
        assert!(notes.contains(said), "{said}: {notes}");
    }
}

#[test]
fn latency_over_udp() {
    latency_is_of_the_places("udp");
}

#[test]
fn latency_over_xdp() {
    if has_lab() {
        latency_is_of_the_places("xdp");
    }
}

fn failures_are_survived(dataplane: &str) {
    let results = bench("failures", &["--dataplane", dataplane]);
    for variant in ["server killed", "switch killed"] {
        for unit in ["line", "page"] {
            let worst = value(&results, &format!("{unit}_stall_worst_ms"), variant);
            let median = value(&results, &format!("{unit}_stall_median_ms"), variant);
            assert!(0.0 < median && median <= worst, "{median} {worst}");
        }
        let goal = format!("{variant}: a page's longest stall");
        assert!(notes(&results).contains(&goal), "{goal}");
    }
}

#[test]
fn failures_over_udp() {
    failures_are_survived("udp");
}

#[test]
fn failures_over_xdp() {
    if has_lab() {
        failures_are_survived("xdp");
    }
}

fn throughput_is_of_lines_and_pages(dataplane: &str) {
    let results = bench("throughput", &["--dataplane", dataplane]);
    for variant in [
        "1 outstanding, 1 client",
        "100 outstanding, 1 client",
        "512 outstanding, 8 clients",
    ] {
        for metric in [
            "line_reads_per_s",
            "line_writes_per_s",
            "page_reads_per_s",
            "page_writes_per_s",
        ] {
            let rate = value(&results, metric, variant);
            // With many in flight, a busy machine may answer none in such a short time.
            let is_one = variant.starts_with("1 ");
            assert!(rate > 0.0 || !is_one, "{metric} {variant}: {rate}");
        }
    }
    let notes = notes(&results);
    assert!(
        notes.contains("most lines a second of three servers"),
        "{notes}"
    );
    if dataplane == "udp" {
        return;
    }
    if notes.contains("SKIPPED what lines cost in the kernel") {
        return inband_testing::not_run("test runs of packet programs");
    }
    let [one, sixteen] = ["1 a request", "16 a request"].map(|lines| {
        value(
            &results,
            "kernel_ns_per_line",
            &format!("switch read, {lines}"),
        )
    });
    assert!(0.0 < sixteen && 0.0 < one, "{sixteen} {one}");
}

#[test]
fn throughput_over_udp() {
    throughput_is_of_lines_and_pages("udp");
}

#[test]
fn throughput_over_xdp() {
    if has_lab() {
        throughput_is_of_lines_and_pages("xdp");
    }
}

#[test]
fn programs_give_the_same_results_as_without() {
    let results = bench("programs", &["--dataplane", "udp"]);
    let notes = notes(&results);
    for program in [
        "sqlite3",
        "redis-benchmark",
        "sort",
        "Python dictionary",
        "hash join",
    ] {
        if notes.contains(&format!("SKIPPED {program}: ")) {
            inband_testing::not_run(format!("{program} is not on this machine"));
            continue;
        }
        assert!(value(&results, "program_s", program) > 0.0, "{program}");
        for percent in [25, 50, 75] {
            let variant = format!("{program}, {percent} % local");
            let rows = results["rows"].as_array().expect("rows").iter();
            let mut rows = rows.filter(|row| row["variant"] == variant.as_str());
            let is_late = notes.contains(&format!("{variant}, the rest in replicated memory"));
            assert!(
                is_late || rows.any(|row| row["backend"] == "udp"),
                "{variant}"
            );
        }
    }
    if notes.contains("SKIPPED GET and SET") {
        return inband_testing::not_run("GET and SET beside the benchmark were skipped");
    }
    assert!(value(&results, "page_read_p50_us", "beside GET") > 0.0);
}
