//! The files in deploy/, each checked by the program that reads it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, Client};
use crate::health::{ask, wait_until_it_says, TwoHosts};
use crate::run::{free_addresses, start, TIMEOUT};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output();
    if found.is_err() {
        inband_testing::not_run(format!("{program} is not on this machine"));
    }
    found.is_ok()
}

/// Names of the store's metrics in a text.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter_map(|word| word.strip_prefix("inband_"))
}

#[test]
fn rules_and_dashboard_name_metrics_that_exist() {
    let source = read("crates/inband/src/metrics.rs");
    for file in ["deploy/prometheus/rules.yml", "deploy/grafana/inband.json"] {
        let text = read(file);
        assert!(names(&text).count() > 5, "{file} names none");
        for name in names(&text) {
            // Series of a histogram.
            let name = name.trim_end_matches("_bucket").trim_end_matches("_count");
            let is_there = [format!("\"{name}\""), format!("\"inband_{name}\"")]
                .iter()
                .any(|quoted| source.contains(quoted));
            assert!(is_there, "{file}: there is no metric inband_{name}");
        }
    }
    serde_json::from_str::<serde_json::Value>(&read("deploy/grafana/inband.json")).expect("JSON");
}

#[test]
fn the_alert_rules_fire_for_what_they_are_for() {
    if !has("promtool") {
        return;
    }
    for arguments in [
        ["check", "rules", "rules.yml"],
        ["test", "rules", "rules-test.yml"],
    ] {
        let output = Command::new("promtool")
            .args(arguments)
            .current_dir(root().join("deploy/prometheus"))
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{output:?}");
    }
}

/// A process that is always killed in the end.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Prometheus with the rules of deploy/, whose waiting times are left out.
#[test]
fn a_prometheus_sees_a_host_that_is_lost() {
    if !has("prometheus") {
        return;
    }
    let hosts = TwoHosts::new();
    let _store = start(&hosts.store);
    let second = start(&hosts.acceptor);
    wait_until_it_says(hosts.store_http, "/ready", 200, "ready\n");
    let dir = tempfile::tempdir().expect("a directory");
    let rules = read("deploy/prometheus/rules.yml");
    let rules: Vec<&str> = rules
        .lines()
        .filter(|line| !line.trim_start().starts_with("for: "))
        .collect();
    std::fs::write(dir.path().join("rules.yml"), rules.join("\n")).expect("the rules");
    let config = format!(
        "global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}\n\
         rule_files: [rules.yml]\n\
         scrape_configs: [{{job_name: inband, static_configs: [{{targets: [\"{}\", \"{}\"]}}]}}]\n",
        hosts.store_http, hosts.acceptor_http
    );
    let file = dir.path().join("prometheus.yml");
    std::fs::write(&file, config).expect("the configuration");
    let [address, _] = free_addresses();
    let prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", file.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            dir.path().join("data").display()
        ))
        .arg(format!("--web.listen-address={address}"))
        .arg("--log.level=error")
        .stdout(Stdio::null())
        .spawn()
        .expect("it runs");
    let _prometheus = Prometheus(prometheus);
    let wait_for = |what: &str, path: &str, holds: &dyn Fn(&str) -> bool| {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let said = ask(address, path).map(|(_, text)| text);
            if said.as_deref().is_some_and(holds) {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {said:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let alerts = |said: &str, name: &str| said.contains(&format!("\"alertname\":\"{name}\""));
    wait_for("both are scraped", "/api/v1/query?query=sum(up)", &|said| {
        said.contains(",\"2\"]")
    });
    let votes = "/api/v1/query?query=sum(inband_acceptor_voting)";
    wait_for("both vote", votes, &|said| said.contains(",\"2\"]"));
    let leader = "/api/v1/query?query=sum(inband_leader_active)";
    wait_for("one leads", leader, &|said| said.contains(",\"1\"]"));
    // The counters exist before the first packet is dropped, so that it counts as an increase.
    let mut client = Client::connect(hosts.resp);
    for _ in 0..20 {
        assert_eq!(client.call(&["SET", "a", "1"]), "+OK");
    }
    let requests =
        "/api/v1/query?query=inband_request_duration_seconds_count%7Bcommand%3D%22set%22%7D";
    wait_for("requests are counted", requests, &|said| {
        said.contains(",\"20\"]")
    });
    let typical = "/api/v1/query?query=histogram_quantile(0.5,inband_request_duration_seconds_bucket%7Bcommand%3D%22set%22%7D)%3C5";
    wait_for("the median is known", typical, &|said| {
        said.contains("\"value\"") && !said.contains("NaN")
    });
    for (name, count) in [
        (
            "inband_dropped_packets_total%7Breason%3D%22bad_tag%22%7D",
            "2",
        ),
        ("inband_leader_node%7Bnode%3D%22one%22%7D%3D%3D1", "1"),
        ("inband_trim_floor", "2"),
        ("inband_rocksdb_memtable_bytes%3E0", "1"),
        ("inband_rocksdb_stalled_seconds_total", "1"),
        ("inband_disk_free_bytes%3E0", "1"),
        ("inband_starting%3D%3D0", "2"),
    ] {
        let query = format!("/api/v1/query?query=count({name})");
        wait_for(name, &query, &|said| {
            said.contains(&format!(",\"{count}\"]"))
        });
    }
    wait_for("no alert", "/api/v1/alerts", &|said| {
        said.contains("\"success\"")
            && !alerts(said, "InbandHostDown")
            && !alerts(said, "InbandNoMajority")
    });
    drop(second);
    wait_for("alerts", "/api/v1/alerts", &|said| {
        alerts(said, "InbandHostDown") && alerts(said, "InbandNoMajority")
    });
}

/// The unit of the Debian package, and that of a box's node in its document.
#[test]
fn the_units_are_valid_and_give_away_little() {
    if !has("systemd-analyze") {
        return;
    }
    let text = read("docs/box.md");
    let (_, block) = text
        .split_once("# /etc/systemd/system/inband-box.service\n")
        .expect("the unit's block");
    let (of_a_box, _) = block.split_once("```").expect("its end");
    for (unit_name, program, unit) in [
        (
            "inband.service",
            "/usr/bin/inband",
            read("deploy/debian/inband.service").as_str(),
        ),
        ("inband-box.service", "/usr/local/bin/inband-box", of_a_box),
    ] {
        assert!(unit.contains(program), "{unit_name} does not run {program}");
        let unit = unit.replace(program, common::PROGRAM);
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join(unit_name);
        std::fs::write(&file, unit).expect("the unit");
        // The limit is in tenths; systemd calls up to 4.9 OK, and a service that runs as root has more than 9.
        for arguments in [
            vec!["verify"],
            vec!["security", "--offline=true", "--threshold=30"],
        ] {
            let output = Command::new("systemd-analyze")
                .args(arguments)
                .arg(&file)
                .output()
                .expect("it runs");
            let said = String::from_utf8_lossy(&output.stderr);
            let is_silent = !said.contains(&format!("{unit_name}:"));
            assert!(output.status.success() && is_silent, "{output:?}");
        }
    }
}
