//! `inband-sim` as a command-line tool.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

fn sim(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inband-sim"));
    command.args(args);
    command
}

fn output(args: &[&str]) -> Output {
    sim(args).output().expect("it runs")
}

fn said(args: &[&str]) -> String {
    let output = output(args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn no_seeds_are_an_error() {
    let output = output(&["paxos", "--seeds", "0"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    assert!(error.contains("'0' for '--seeds <N>'"), "{error}");
}

#[test]
fn a_command_whose_output_nobody_reads_ends_as_other_tools_do() {
    let mut child = sim(&["paxos", "--seeds", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!error.contains("panicked"), "{error}");
    assert_eq!(output.status.signal(), Some(Signal::SIGPIPE as i32));
}

#[test]
fn what_cannot_be_printed_on_a_full_disk_is_a_failure() {
    for args in [
        &["--list"][..],
        &["--help"],
        &["flair", "--help"],
        &["flair", "--rules"],
        &["paxos", "--seeds", "1"],
    ] {
        let mut options = std::fs::OpenOptions::new();
        let full = options.write(true).open("/dev/full").expect("it is there");
        let output = sim(args).stdout(full).output().expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{error}");
        assert!(
            error.contains("writing to standard output: No space left"),
            "{error}"
        );
    }
}

#[test]
fn every_system_has_a_world() {
    let dataplane = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dataplane");
    let entries = std::fs::read_dir(dataplane).expect("the folders of the systems");
    let folders = entries.map(|entry| entry.expect("an entry"));
    let folders = folders.filter(|entry| entry.path().is_dir());
    let names = folders.map(|entry| entry.file_name().into_string().expect("text"));
    let mut systems: Vec<String> = names.filter(|name| name != "ground").collect();
    assert!(systems.len() >= 7, "{systems:?}");
    systems.sort();
    let listed = said(&["--list"]);
    let mut listed: Vec<&str> = listed.lines().collect();
    listed.sort_unstable();
    assert_eq!(listed, systems);
}

#[test]
fn two_processes_play_a_seed_alike() {
    for system in said(&["--list"]).lines() {
        let trace = |seed| said(&[system, "--seed", seed, "--trace", "--last", "100000"]);
        let first = trace("7");
        assert!(first.len() > 100_000, "{system}: {}", first.len());
        assert!(first == trace("7"), "{system}: byte for byte");
        assert!(first != trace("8"), "{system}");
    }
}

#[test]
fn it_ends_in_time_and_at_ctrl_c_with_a_summary() {
    let started = Instant::now();
    let in_time = said(&["paxos", "--minutes", "0.02", "--jobs", "2"]);
    assert!(started.elapsed() < Duration::from_secs(30));
    assert!(in_time.contains("fault events/min per core"), "{in_time}");
    let mut child = sim(&["paxos", "--seeds", "100000", "--seed", "5000"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    // Before that line, Ctrl-C would end it without a summary.
    let threads = format!("/proc/{}/task", child.id());
    while std::fs::read_dir(&threads).map_or(0, Iterator::count) < 2 {
        assert!(child.try_wait().expect("it is ours").is_none());
        std::thread::yield_now();
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it is ours");
    let interrupted = child.wait_with_output().expect("it ends");
    assert_eq!(interrupted.status.code(), Some(130));
    let summary = String::from_utf8(interrupted.stdout).expect("text");
    assert!(summary.contains("0 failed"), "{summary}");
}

#[test]
fn it_names_its_invariants() {
    for (system, invariants) in [
        (
            "paxos",
            &["Agreement", "ExactlyOnce", "ReadsLinearizable", "Liveness"][..],
        ),
        ("flair", &["OneSwitchServes", "Linearizable"]),
        ("falcon", &["GivenOnce", "Prompt"]),
    ] {
        let rules = said(&[system, "--rules"]);
        for invariant in invariants {
            assert!(rules.contains(invariant), "{rules}");
        }
    }
}

#[test]
fn a_system_has_options_of_its_own() {
    let reads = |args: &[&str]| {
        let summary = said(&[&["flair", "--seeds", "3"], args].concat());
        assert!(summary.contains("3 seeds in"), "{summary}");
        let of = |what: &str| {
            let line = summary.lines().find(|line| line.ends_with(what));
            let count = line.and_then(|line| line.split_whitespace().next());
            let digits = count.expect("it is counted").replace(',', "");
            digits.parse::<u64>().expect("a number")
        };
        (of(" reads of leaders"), of(" reads of followers"))
    };
    let (_, followers) = reads(&[]);
    assert!(followers > 0);
    let (leaders, followers) = reads(&["--reads", "leader"]);
    assert!(leaders > 0 && followers == 0, "{leaders}, {followers}");
    let refused = output(&["paxos", "--reads", "leader"]);
    assert!(!refused.status.success());
}

/// The forms from before the system came first.
#[test]
fn older_names_play_the_same_and_say_so() {
    for (old, new) in [
        (&["--seeds", "2", "--each"][..], "paxos"),
        (&["--flair", "--seeds", "2", "--each"], "flair"),
        (&["--seeds", "2", "--falcon", "--each"], "falcon"),
    ] {
        let output = output(old);
        let note = String::from_utf8_lossy(&output.stderr);
        assert!(note.contains(&format!("`inband sim {new}`")), "{note}");
        let seeds = |text: String| {
            let lines = text.lines().filter(|line| line.starts_with("seed "));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let old = seeds(String::from_utf8(output.stdout).expect("text"));
        assert_eq!(old, seeds(said(&[new, "--seeds", "2", "--each"])));
        assert_eq!(old.len(), 2);
    }
}
