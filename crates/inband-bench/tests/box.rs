//! `inband bench box`, each figure in its shortest form.
#![allow(missing_docs)]

mod common;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// One cluster at a time.
static ONE: Mutex<()> = Mutex::new(());

fn bench(figure: &str, more: &[&str]) -> Value {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    common::bench("box", "inband-box", figure, more, |_| true)
}

/// The only value of a metric and variant.
fn value(results: &Value, metric: &str, variant: &str) -> f64 {
    let rows = results["rows"].as_array().expect("rows").iter();
    let rows = rows.filter(|row| {
        row["metric"] == metric && row["variant"] == variant && row["backend"] == "inband"
    });
    let values: Vec<f64> = rows
        .map(|row| row["value"].as_f64().expect("a number"))
        .collect();
    assert_eq!(values.len(), 1, "{metric}, {variant}: {values:?}");
    values[0]
}

/// Stands in for a build of libpaxos: three replicas that listen, and a client whose figures are its values in flight and
/// the length of their filling.
fn fake_libpaxos(dir: &Path) -> String {
    for (name, script) in [
        (
            "replica",
            "#!/bin/sh\nport=$(sed -n \"s/^replica $1 127.0.0.1 //p\" \"$2\")\nexec python3 -m http.server --bind \
             127.0.0.1 \"$port\"\n",
        ),
        (
            "client",
            "#!/bin/sh\nwhile sleep 0.01; do echo \"$3 value/sec, 1.00 Mbps, latency min 1 us max 2 us avg $5 us\"; done\n",
        ),
    ] {
        inband_testing::write_script(&dir.join(name), script);
    }
    format!("libpaxos={}", dir.display())
}

#[test]
fn rates_and_goals_are_measured() {
    let dir = tempfile::tempdir().expect("a directory");
    let peer = fake_libpaxos(dir.path());
    let more = ["--alone", "--clients", "4", "--peer", &peer];
    let results = bench("throughput", &more);
    let rows = results["rows"].as_array().expect("rows");
    let theirs: Vec<&Value> = rows.iter().filter(|r| r["backend"] == "libpaxos").collect();
    assert_eq!(theirs.len(), 1, "{theirs:?}");
    assert_eq!(theirs[0]["variant"], "sets, 3 nodes, 128 B");
    assert_eq!(theirs[0]["value"], 4.0, "as many in flight as clients");
    let beside: Vec<&Value> = rows.iter().filter(|r| !r["baseline"].is_null()).collect();
    assert_eq!(beside.len(), 1, "{beside:?}");
    assert_eq!(beside[0]["variant"], "sets, 3 nodes, 128 B");
    assert_eq!(beside[0]["baseline"]["value"], 4.0);
    let mut rates = Vec::new();
    for nodes in ["3 nodes", "3 nodes, quorum all", "4 nodes", "7 nodes"] {
        for kind in [
            "sets",
            "gets",
            "local gets",
            "10 % sets",
            "20 % sets",
            "UDP sets",
            "UDP gets",
        ] {
            let variant = format!("{kind}, {nodes}, 128 B");
            rates.push(value(&results, "requests_per_s", &variant));
        }
    }
    // On a busy machine, a measurement this short may fall into an election.
    let served = rates.iter().filter(|rate| **rate > 0.0).count();
    assert!(served > rates.len() / 2, "{rates:?}");
    let notes = results["notes"].to_string();
    assert!(notes.contains("SETs of 7 nodes beside 3"), "{notes}");
}

#[test]
fn elections_are_timed() {
    let results = bench("election", &["--kills", "2"]);
    let median = value(&results, "election_median_ms", "leader killed");
    // The leader was suspected first.
    assert!(median >= 1.0, "{median}");
    assert!(value(&results, "election_worst_ms", "leader killed") >= median);
}

#[test]
fn a_node_that_catches_up_is_timed() {
    let results = bench("joiner", &["--items-bytes", "2000000"]);
    assert!(value(&results, "joiner_others_per_s", "all nodes") > 0.0);
    let notes = results["notes"].to_string();
    assert!(notes.contains("while a node catches up"), "{notes}");
}

#[test]
fn rounds_over_a_network_are_timed() {
    if !inband_testing::frame::may_load_bpf() {
        return;
    }
    let results = bench("round", &[]);
    for variant in ["3 nodes, 64 B", "7 nodes, 1024 B"] {
        let rows = results["rows"].as_array().expect("rows");
        let row = |metric: &str| {
            let mut rows = rows.iter();
            let row = rows.find(|row| row["metric"] == metric && row["variant"] == variant);
            row.expect(metric)["value"].as_f64().expect("a number")
        };
        assert!(row("round_p50_us") > 0.0);
        assert!(row("round_p99_us") >= row("round_p50_us"));
    }
}

#[test]
fn gets_in_the_kernel_are_measured() {
    if !inband_testing::frame::may_load_bpf() {
        return;
    }
    let results = bench("gets", &["--alone", "--clients", "8"]);
    let rows = results["rows"].as_array().expect("rows");
    for metric in ["get_kernel_ns", "kernel_gets_per_s"] {
        let of = |row: &&Value| row["metric"] == metric;
        let mut values = rows.iter().filter(of).map(|row| row["value"].as_f64());
        assert!(values.clone().count() >= 2, "{metric}: {rows:#?}");
        assert!(values.all(|value| value > Some(0.0)), "{metric}: {rows:#?}");
    }
}
