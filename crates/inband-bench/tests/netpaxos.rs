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
        |_| true,
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

/// Of messages that arrive in order none is disagreed about; of those on links with jitter some cannot be decided.
#[test]
fn orders_of_arrival_are_compared() {
    if let Err(error) = inband_lab::preflight::check_lab() {
        inband_testing::not_run(error);
        return;
    }
    let arguments = [
        "--messages",
        "2000",
        "--rates",
        "5000",
        "--jitter-us",
        "200",
    ];
    let more = ["--jitter-rate", "2000", "--queues", "2"];
    let arguments = [&arguments[..], &more].concat();
    let results = common::bench(
        "netpaxos",
        "inband-netpaxos",
        "ordering",
        &arguments,
        |_| true,
    );
    let rows = results["rows"].as_array().expect("rows");
    let value = |metric: &str, variant: &str| {
        let mut rows = rows.iter();
        let row = rows.find(|row| row["metric"] == metric && row["variant"] == variant);
        row.unwrap_or_else(|| panic!("{metric}, {variant}: {rows:?}"))["value"]
            .as_f64()
            .expect("a number")
    };
    assert_eq!(value("disagreement", "5000/s"), 0.0);
    assert!(value("indecision", "2000/s, jitter 200 us") > 0.0);
    for variant in [
        "5000/s, bursts",
        "5000/s, 2 queues",
        "5000/s, bursts, 2 queues",
    ] {
        assert!((0.0..=100.0).contains(&value("indecision", variant)));
    }
}
