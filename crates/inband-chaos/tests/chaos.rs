//! Short runs of `inband chaos`: a real cluster under mixed faults stays linearizable, and the checker finds stale
//! answers. `make chaos` runs longer.

use std::path::{Path, PathBuf};
use std::process::Command;

fn report_dir(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ib-chaos-{name}-{}", std::process::id()))
}

/// How many times as long a run may be if a shorter one was not enough: how much happens in a run depends on the machine.
const LONGER: [f64; 3] = [1.0, 3.0, 9.0];

/// Runs `inband chaos` for this many minutes, or longer until it is enough. A failed run leaves the history and the report in its directory.
fn chaos(name: &str, minutes: f64, arguments: &[&str], is_enough: impl Fn(&str) -> bool) {
    let report = report_dir(name);
    inband_testing::build(match arguments.first() {
        Some(&"memory") => "inband-memory",
        Some(&"box") => "inband-box",
        Some(&"netpaxos") => "inband-netpaxos",
        _ => "inband",
    });
    for longer in LONGER {
        let output = Command::new(env!("CARGO_BIN_EXE_inband-chaos"))
            .args(arguments)
            .args(["--minutes", &(minutes * longer).to_string()])
            .arg("--report")
            .arg(&report)
            .output()
            .expect("the program runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("{said}");
        let why = String::from_utf8_lossy(&output.stderr);
        if arguments.contains(&"--control") && why.contains("the checker did not notice") {
            continue;
        }
        assert!(output.status.success(), "{why}");
        check_report(&report);
        if is_enough(&said) {
            let _ = std::fs::remove_dir_all(&report);
            return;
        }
    }
    panic!("{name}: not enough has happened");
}

/// A run whose history is linearizable, however much has happened in it.
fn linearizable(name: &str, minutes: f64, arguments: &[&str], is_enough: impl Fn(&str) -> bool) {
    chaos(name, minutes, arguments, |said| {
        assert!(said.contains("\nlinearizable:"), "{name}: {said}");
        is_enough(said)
    });
}

/// Clients behind a proxy that gives stale answers.
fn is_found(name: &str, system: &[&str]) {
    let arguments = [system, &["--faults", "", "--control"]].concat();
    chaos(name, 0.08, &arguments, |said| said.contains("\nviolation:"));
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
    linearizable("mixture", 0.4, &[], |said| {
        number_before(said, " operations ok") > 300 && number_before(said, " faults\n") > 5
    });
}

#[test]
fn stale_answers_of_a_proxy_are_found() {
    let arguments = ["--faults", "", "--control"];
    chaos("control", 0.08, &arguments, |said| {
        said.contains("\nviolation:") && said.contains("GET")
    });
}

#[test]
fn flair_under_a_mixture_of_faults_is_linearizable() {
    linearizable("flair", 0.25, &["flair"], |said| {
        number_before(said, " operations ok") > 300
            && number_before(said, " faults\n") > 3
            && number_before(said, " flair_reads_follower") > 0
    });
}

#[test]
fn stale_answers_of_a_proxy_before_flair_s_gateway_are_found() {
    is_found("flair-control", &["flair"]);
}

fn memory_is_linearizable(name: &str, arguments: &[&str]) {
    let arguments = [&["memory"], arguments].concat();
    linearizable(name, 0.25, &arguments, |said| {
        number_before(said, " operations ok") > 1_000
            && number_before(said, " faults\n") > 3
            && number_before(said, " memory_read,") > 0
    });
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
    is_found("memory-control", &["memory"]);
}

#[test]
fn a_box_under_a_mixture_of_faults_is_linearizable() {
    // By default the roles run in the kernel where possible.
    for (name, more) in [
        ("box", &[][..]),
        ("box-udp", &["--dataplane", "udp"]),
        ("box-sync", &["--durability", "sync"]),
    ] {
        linearizable(name, 0.2, &[&["box"], more].concat(), |said| {
            number_before(said, " operations ok") > 500
                && number_before(said, " faults\n") > 1
                && number_before(said, " local reads") > 20
        });
    }
}

#[test]
fn stale_answers_of_a_box_are_found() {
    is_found("box-control", &["box"]);
}

#[test]
fn a_store_on_netpaxos_under_a_mixture_of_faults_is_linearizable() {
    // By default in the kernel where possible.
    for (name, more) in [
        ("netpaxos", &[][..]),
        ("netpaxos-udp", &["--dataplane", "udp", "--minions", "7"]),
        ("netpaxos-sync", &["--durability", "sync"]),
    ] {
        linearizable(name, 0.15, &[&["netpaxos"], more].concat(), |said| {
            number_before(said, " operations ok") > 300
                && number_before(said, " faults\n") > 1
                && number_before(said, " decided_fast") > 300
        });
    }
}

#[test]
fn stale_answers_of_a_proxy_before_a_learner_s_store_are_found() {
    is_found("netpaxos-control", &["netpaxos"]);
}
