//! What `/metrics` says about requests, packets, databases and logs.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::Client;
use crate::health::ask;
use crate::logs::LoggedHost;
use crate::run::{wait_until_it_answers, TIMEOUT};

fn text(address: SocketAddr) -> String {
    let (status, text) = ask(address, "/metrics").expect("an answer");
    assert_eq!(status, 200, "{text}");
    text
}

/// The value of the series with this name and these labels.
fn value(text: &str, series: &str) -> f64 {
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    let value = line.unwrap_or_else(|| panic!("no {series} in {text}"));
    value.parse().expect("a number")
}

/// Checks names, units and types against Prometheus's conventions.
fn check_names(text: &str) {
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        return inband_testing::not_run("promtool is not on this machine");
    };
    let mut metrics = promtool.stdin.take().expect("a pipe");
    metrics.write_all(text.as_bytes()).expect("written");
    drop(metrics);
    let output = promtool.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn requests_packets_databases_and_logs_are_measured() {
    let mut host = LoggedHost::prepare("", "");
    let config = std::fs::read_to_string(host.config()).expect("read");
    let config = config.replace("epoch = 1,", "epoch = 1, partitions = 2,");
    std::fs::write(host.config(), config).expect("written");
    host.start(&[]);
    wait_until_it_answers(host.resp, &["DEL", "none"], ":0");

    // Requests: as many as were made, each in one bucket.
    let before = text(host.metrics);
    assert!(!before.contains("command=\"incr\""), "{before}");
    let mut client = Client::connect(host.resp);
    for i in 1..=7 {
        assert_eq!(client.call(&["INCR", "a"]), format!(":{i}"));
    }
    assert_eq!(client.call(&["PING"]), "+PONG");
    assert!(client.call(&["NOSUCH"]).starts_with("-ERR unknown"));
    let after = text(host.metrics);
    let of = |what: &str, more: &str| {
        let series = format!(
            "inband_request_duration_seconds_{what}{{node=\"one\",command=\"incr\"{more}}}"
        );
        value(&after, &series)
    };
    assert_eq!(of("count", ""), 7.0);
    assert_eq!(of("bucket", ",le=\"+Inf\""), 7.0);
    assert_eq!(of("bucket", ",le=\"8.388608\""), 7.0);
    assert!(of("bucket", ",le=\"0.000064\"") <= of("bucket", ",le=\"0.000128\""));
    assert!(of("sum", "") > 0.0 && of("sum", "") < 7.0 * 5.0);
    assert!(
        after.contains("inband_request_duration_seconds_count{node=\"one\",command=\"ping\"} 1")
    );
    assert!(!after.contains("nosuch"), "{after}");

    // Packets: each reason has a counter from the start, and what is dropped is counted.
    let dropped = |text: &str, reason: &str| {
        let series = format!("inband_dropped_packets_total{{node=\"one\",reason=\"{reason}\"}}");
        value(text, &series)
    };
    assert!(after.contains("# TYPE inband_dropped_packets_total counter\n"));
    let was = dropped(&after, "bad_truncated");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for _ in 0..5 {
        socket.send_to(b"no packet", host.address).expect("sent");
    }
    let deadline = Instant::now() + TIMEOUT;
    while dropped(&text(host.metrics), "bad_truncated") < was + 5.0 {
        assert!(Instant::now() < deadline, "{}", text(host.metrics));
        std::thread::sleep(Duration::from_millis(20));
    }

    // Databases and logs: two partitions, and the log of commands over both. A leader may take a moment.
    let deadline = Instant::now() + TIMEOUT;
    let after = loop {
        let said = text(host.metrics);
        let is_led = |line: &str| line.starts_with("inband_leader_node{") && line.ends_with(" 1");
        if said.lines().filter(|line| is_led(line)).count() == 3 {
            break said;
        }
        assert!(Instant::now() < deadline, "{said}");
        std::thread::sleep(Duration::from_millis(20));
    };
    for partition in ["0", "1", "M"] {
        let of = |name: &str| {
            let series = format!("inband_{name}{{node=\"one\",partition=\"{partition}\"}}");
            value(&after, &series)
        };
        assert!(of("trim_floor") >= 1.0);
        assert!(of("rocksdb_memtable_bytes") > 0.0);
        for name in [
            "rocksdb_file_bytes",
            "rocksdb_live_bytes",
            "rocksdb_level0_files",
            "rocksdb_pending_compaction_bytes",
            "rocksdb_running_compactions",
            "rocksdb_running_flushes",
        ] {
            assert!(of(name) >= 0.0);
        }
        for name in [
            "rocksdb_write_stopped",
            "rocksdb_delayed_write_bytes_per_second",
            "rocksdb_background_errors_total",
            "rocksdb_stalled_seconds_total",
        ] {
            assert_eq!(of(name), 0.0, "{name}");
        }
    }
    assert!(after.contains("# TYPE inband_events_total counter\n"));
    assert!(!after.contains("_us\""), "a duration is no event: {after}");
    check_names(&after);
    let dir = host.dir.path().join("state/data").display().to_string();
    let disk = |name: &str| {
        value(
            &after,
            &format!("inband_{name}{{dir=\"{dir}\",node=\"one\"}}"),
        )
    };
    assert!(disk("disk_free_bytes") > 0.0 && disk("disk_free_bytes") <= disk("disk_bytes"));
}
