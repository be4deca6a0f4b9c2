//! Short runs of `inband chaos`: a real cluster under mixed faults stays linearizable, and the checker finds stale
//! answers. `make chaos` runs longer.

use std::path::{Path, PathBuf};
use std::process::Command;

fn report_dir(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ib-chaos-{name}-{}", std::process::id()))
}

/// Runs `inband chaos` and returns its standard output. A failed run leaves the history and the report in its
/// directory.
fn chaos(name: &str, arguments: &[&str]) -> String {
    let report = report_dir(name);
    inband_testing::build(match arguments.first() {
        Some(&"memory") => "inband-memory",
        Some(&"box") => "inband-box",
        Some(&"netpaxos") => "inband-netpaxos",
        _ => "inband",
    });
    let output = Command::new(env!("CARGO_BIN_EXE_inband-chaos"))
        .args(arguments)
        .arg("--report")
        .arg(&report)
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    check_report(&report);
    let _ = std::fs::remove_dir_all(&report);
    said
}

fn check_report(dir: &Path) {
    let history = std::fs::read_to_string(dir.join("history.jsonl")).expect("a history");
    let line = history.lines().next().unwrap_or("");
    assert!(line.contains(r#""kind":"about""#), "{line}");
    let page = std::fs::read_to_string(dir.join("index.html")).expect("a report");
    assert!(page.contains(r#""verdict":{"#), "the report has no verdict");
}

fn number_before(said: &str, words: &str) -> u64 {
    let (before, _) = said.split_once(words).expect(words);
    let number = before.rsplit([' ', '\n']).find(|word| !word.is_empty());
    number.and_then(|n| n.parse().ok()).expect(words)
}

#[test]
fn a_cluster_under_a_mixture_of_faults_is_linearizable() {
    let said = chaos("mixture", &["--minutes", "0.4"]);
    assert!(said.contains("\nlinearizable:"), "{said}");
    assert!(number_before(&said, " operations ok") > 300, "{said}");
    assert!(number_before(&said, " faults\n") > 5, "{said}");
}

#[test]
fn stale_answers_of_a_proxy_are_found() {
    let arguments = ["--minutes", "0.08", "--faults", "", "--control"];
    let said = chaos("control", &arguments);
    assert!(
        said.contains("\nviolation:") && said.contains("GET"),
        "{said}"
    );
}

#[test]
fn flair_under_a_mixture_of_faults_is_linearizable() {
    let said = chaos("flair", &["flair", "--minutes", "0.25"]);
    assert!(said.contains("\nlinearizable:"), "{said}");
    assert!(number_before(&said, " operations ok") > 300, "{said}");
    assert!(number_before(&said, " faults\n") > 3, "{said}");
    assert!(number_before(&said, " flair_reads_follower") > 0, "{said}");
}

#[test]
fn stale_answers_of_a_proxy_before_flair_s_gateway_are_found() {
    let arguments = ["flair", "--minutes", "0.08", "--faults", "", "--control"];
    let said = chaos("flair-control", &arguments);
    assert!(said.contains("\nviolation:"), "{said}");
}

fn memory_is_linearizable(name: &str, arguments: &[&str]) -> String {
    let arguments = [&["memory", "--minutes", "0.25"], arguments].concat();
    let said = chaos(name, &arguments);
    assert!(said.contains("\nlinearizable:"), "{said}");
    assert!(number_before(&said, " operations ok") > 1_000, "{said}");
    assert!(number_before(&said, " faults\n") > 3, "{said}");
    assert!(number_before(&said, " memory_read,") > 0, "{said}");
    said
}

#[test]
fn memory_under_a_mixture_of_faults_is_linearizable() {
    memory_is_linearizable("memory", &[]);
}

/// A user-space switch that was frozen resumes with the packets that queued in its socket.
#[test]
fn memory_in_user_space_under_a_mixture_of_faults_is_linearizable() {
    let arguments = ["--dataplane", "udp", "--faults", "kill,freeze"];
    memory_is_linearizable("memory-udp", &arguments);
}

#[test]
fn stale_answers_of_memory_are_found() {
    let arguments = ["memory", "--minutes", "0.08", "--faults", "", "--control"];
    let said = chaos("memory-control", &arguments);
    assert!(said.contains("\nviolation:"), "{said}");
}

#[test]
fn a_box_under_a_mixture_of_faults_is_linearizable() {
    // By default the roles run in the kernel where possible.
    for (name, more) in [
        ("box", &[][..]),
        ("box-udp", &["--dataplane", "udp"]),
        ("box-sync", &["--durability", "sync"]),
    ] {
        let said = chaos(name, &[&["box", "--minutes", "0.2"], more].concat());
        assert!(said.contains("\nlinearizable:"), "{name}: {said}");
        assert!(
            number_before(&said, " operations ok") > 500,
            "{name}: {said}"
        );
        assert!(number_before(&said, " faults\n") > 1, "{name}: {said}");
        assert!(number_before(&said, " local reads") > 20, "{name}: {said}");
    }
}

#[test]
fn stale_answers_of_a_box_are_found() {
    let arguments = ["box", "--minutes", "0.08", "--faults", "", "--control"];
    let said = chaos("box-control", &arguments);
    assert!(said.contains("\nviolation:"), "{said}");
}

#[test]
fn a_store_on_netpaxos_under_a_mixture_of_faults_is_linearizable() {
    // By default in the kernel where possible.
    for (name, more) in [
        ("netpaxos", &[][..]),
        ("netpaxos-udp", &["--dataplane", "udp", "--minions", "7"]),
        ("netpaxos-sync", &["--durability", "sync"]),
    ] {
        let said = chaos(name, &[&["netpaxos", "--minutes", "0.15"], more].concat());
        assert!(said.contains("\nlinearizable:"), "{name}: {said}");
        assert!(
            number_before(&said, " operations ok") > 300,
            "{name}: {said}"
        );
        assert!(number_before(&said, " faults\n") > 1, "{name}: {said}");
        assert!(
            number_before(&said, " decided_fast") > 300,
            "{name}: {said}"
        );
    }
}

#[test]
fn stale_answers_of_a_proxy_before_a_learner_s_store_are_found() {
    let arguments = ["netpaxos", "--minutes", "0.08", "--faults", "", "--control"];
    let said = chaos("netpaxos-control", &arguments);
    assert!(said.contains("\nviolation:"), "{said}");
}
