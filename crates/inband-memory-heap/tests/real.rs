//! Ordinary programs whose heap is larger than the buffer give the same result as without. The memory is local;
//! `cluster.rs` does the same with servers and switches that fail.

mod common;

use common::run;
use common::workloads::{python, sort, sqlite, Redis, Workload};

const BUFFER: [&str; 2] = ["--buffer", "8MiB"];

/// Returns the output with and without a paged heap, after checking that it is the same.
fn same(workload: &Workload) -> String {
    let result = workload.result(None);
    assert!(
        workload.result(Some(run(&BUFFER))) == result,
        "another result"
    );
    result
}

#[test]
fn sqlite_in_memory() {
    let Some(workload) = sqlite(120_000) else {
        return;
    };
    let result = same(&workload);
    assert!(
        result.ends_with("ok\n") && result.lines().count() == 98,
        "{result}"
    );
}

#[test]
fn sort_of_a_file_larger_than_the_buffer() {
    let Some(workload) = sort(1_500_000) else {
        return;
    };
    let result = same(&workload);
    assert_eq!(result.lines().count(), 1_500_000);
    assert!(result.len() > 8 << 20);
}

#[test]
fn python_builds_a_dictionary() {
    let Some(workload) = python(1_000_000, 1) else {
        return;
    };
    let result = same(&workload);
    assert!(result.starts_with("666666 "), "{result}");
}

#[test]
fn redis_under_its_benchmark() {
    let digests = [None, Some(run(&BUFFER))].map(|runner| {
        let redis = Redis::start(runner)?;
        let digest = redis.fill(40_000);
        redis.benchmark(5_000);
        redis.end();
        Some(digest)
    });
    assert_eq!(digests[0], digests[1]);
}
