//! `inband bench netpaxos`, each figure in its shortest form.
#![allow(missing_docs)]

mod common;

#[test]
fn pauses_are_timed_and_failures_counted() {
    let results = common::bench(
        "netpaxos",
        "inband-netpaxos",
        "failures",
        &["--dataplane", "udp"],
    );
    let rows = results["rows"].as_array().expect("rows");
    let value = |metric: &str, variant: &str| {
        let mut rows = rows.iter();
        let row = rows.find(|row| row["metric"] == metric && row["variant"] == variant);
        row.expect(metric)["value"].as_f64().expect("a number")
    };
    for variant in ["serializer killed", "minion killed"] {
        assert!(value("pause_worst_ms", variant) >= value("pause_median_ms", variant));
        assert!(value("request_worst_ms", variant) > 0.0);
        assert_eq!(value("requests_failed", variant), 0.0);
    }
}
