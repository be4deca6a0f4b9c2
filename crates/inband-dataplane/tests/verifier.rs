//! What the kernel's verifier says of every deployable program, held against what was recorded in
//! `dataplane/xdp/verifier.toml`: instructions, stack and time may not jump unnoticed.
//!
//! `make verifier-record` renews the record.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use inband_dataplane::c;
use inband_dataplane::falcon::Policy;
use libbpf_rs::{ObjectBuilder, PrintLevel};
use serde::{Deserialize, Serialize};

/// Set, the test writes the record instead of comparing with it.
const RECORD: &str = "INBAND_VERIFIER_RECORD";
const HEAD: &str = "# What the kernel's verifier says of the XDP programs; tests/verifier.rs holds
# them to it. Made by `make verifier-record`. Generic mode folds other branches.\n\n";
/// How much more than recorded is not yet a jump, by the same kernel and compiler.
const GROWTH_MAX_PERCENT: u64 = 10;
/// ... and by others, which count otherwise.
const GROWTH_ELSEWHERE_MAX_PERCENT: u64 = 100;
const STACK_GROWTH_MAX_BYTES: u64 = 64;
/// Longest time to verify a program, on any machine that is busy with something else.
const VERIFY_TIME_MAX_US: u64 = 20_000_000;
/// BPF_LOG_STATS of the kernel: figures only, no trace of instructions.
const LOG_STATS: u32 = 4;
const SETTINGS_MAP: &str = ".rodata.settings";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    kernel: String,
    compiler: String,
    program: BTreeMap<String, Figures>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figures {
    /// Instructions that the verifier walked, over all paths; its limit is a million.
    verified_insns: u64,
    /// Instructions of the program as compiled.
    insns: u64,
    stack_bytes: u64,
    /// Of one run, of no weight.
    verify_time_us: u64,
}

macro_rules! programs {
    ($($name:literal)*) => {
        [$(($name, &include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o"))[..])),*]
    };
}

/// Every program that a host may load; not those of benchmarks and of the race test.
fn programs() -> [(&'static str, &'static [u8]); 12] {
    programs!("dispatch" "leader" "acceptor" "quorum" "leader_alone" "acceptor_alone" "quorum_alone"
        "copies" "generic" "flair" "falcon" "bare")
}

static LOG: Mutex<String> = Mutex::new(String::new());

fn keep_log(_level: PrintLevel, message: String) {
    LOG.lock().unwrap().push_str(&message);
}

/// The number behind `label` in the verifier's log.
fn number_after(log: &str, label: &str) -> u64 {
    let at = log
        .find(label)
        .unwrap_or_else(|| panic!("the verifier does not say \"{label}\": {log}"));
    let digits = log[at + label.len()..].trim_start();
    let end = digits.find(|c: char| !c.is_ascii_digit());
    digits[..end.unwrap_or(digits.len())].parse().unwrap()
}

/// "stack depth 96+0": one number a function.
fn stack_bytes(log: &str) -> u64 {
    let line = log
        .lines()
        .find_map(|line| line.strip_prefix("stack depth "));
    let line = line.unwrap_or_else(|| panic!("the verifier states no stack depth: {log}"));
    line.split('+')
        .map(|n| n.trim().parse::<u64>().unwrap())
        .sum()
}

/// How a program is loaded: the verifier folds other branches in each mode.
#[derive(Clone, Copy, Default)]
struct Mode {
    generic: bool,
    authenticated: bool,
    /// Falcon's.
    policy: Policy,
}

fn settings(mode: Mode) -> Vec<u8> {
    // SAFETY: plain integers, for which zero is valid.
    let mut settings: c::ib_settings = unsafe { std::mem::zeroed() };
    (settings.node, settings.partitions, settings.ring_slots) = (2, 4, 4096);
    settings.groups = 4096;
    settings.falcon.workers = 1024;
    settings.falcon.slots_log2 = 11;
    settings.falcon.policy = mode.policy as u32;
    settings.generic = u32::from(mode.generic);
    settings.authenticated = u16::from(mode.authenticated);
    // SAFETY: plain integers without padding (checked by bindgen's layout test).
    let bytes = unsafe {
        std::slice::from_raw_parts((&raw const settings).cast::<u8>(), size_of_val(&settings))
    };
    bytes.to_vec()
}

fn measure(bytes: &[u8], mode: Mode) -> Figures {
    LOG.lock().unwrap().clear();
    let mut object = ObjectBuilder::default().open_memory(bytes).unwrap();
    for mut map in object.maps_mut() {
        if map.name() == SETTINGS_MAP {
            map.set_initial_value(&settings(mode)).unwrap();
        }
    }
    for mut program in object.progs_mut() {
        program.set_log_level(LOG_STATS);
    }
    let object = object.load().unwrap();
    let log = LOG.lock().unwrap().clone();
    Figures {
        verified_insns: number_after(&log, "\nprocessed "),
        insns: object.progs().map(|p| p.insn_cnt() as u64).sum(),
        stack_bytes: stack_bytes(&log),
        verify_time_us: number_after(&log, "verification time "),
    }
}

fn measure_all() -> BTreeMap<String, Figures> {
    libbpf_rs::set_print(Some((PrintLevel::Debug, keep_log)));
    let mut figures = BTreeMap::new();
    for (name, bytes) in programs() {
        let plain = Mode::default();
        figures.insert(name.to_owned(), measure(bytes, plain));
        let is_role = !matches!(name, "dispatch" | "copies" | "generic" | "bare");
        if is_role {
            let generic = true;
            let mode = Mode { generic, ..plain };
            figures.insert(format!("{name}_in_generic_mode"), measure(bytes, mode));
        }
        if name == "falcon" {
            for policy in Policy::ALL {
                let figures_of = measure(bytes, Mode { policy, ..plain });
                let policy = format!("{policy:?}").to_lowercase();
                figures.insert(format!("falcon_{policy}"), figures_of);
            }
        }
        if is_role || name == "dispatch" {
            let authenticated = true;
            let mode = Mode {
                authenticated,
                ..plain
            };
            figures.insert(format!("{name}_with_keys"), measure(bytes, mode));
        }
    }
    figures
}

/// The first two numbers of the kernel's version.
fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    release
        .trim()
        .split('.')
        .take(2)
        .collect::<Vec<_>>()
        .join(".")
}

fn compiler() -> String {
    // The build used the first of these that there is (clang.rs).
    let said = Command::new("clang-19").arg("--version").output();
    let said = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
    let line = said.unwrap_or_default();
    let version = line.split("clang version ").nth(1).unwrap_or("unknown");
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.');
    format!("clang {}", &version[..end.unwrap_or(version.len())])
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../dataplane/xdp/verifier.toml")
}

/// What has jumped, one line each.
fn jumps(recorded: &Record, now: &Record) -> Vec<String> {
    let alike = recorded.kernel == now.kernel && recorded.compiler == now.compiler;
    let percent = if alike {
        GROWTH_MAX_PERCENT
    } else {
        GROWTH_ELSEWHERE_MAX_PERCENT
    };
    let mut jumps = Vec::new();
    for (name, after) in &now.program {
        let Some(before) = recorded.program.get(name) else {
            jumps.push(format!("{name} is not in the record"));
            continue;
        };
        for (what, before, after) in [
            (
                "verified instructions",
                before.verified_insns,
                after.verified_insns,
            ),
            ("instructions", before.insns, after.insns),
        ] {
            if after > before + before * percent / 100 {
                jumps.push(format!("{name}: {after} {what}, {before} were recorded"));
            }
        }
        if after.stack_bytes > before.stack_bytes + STACK_GROWTH_MAX_BYTES {
            let (after, before) = (after.stack_bytes, before.stack_bytes);
            jumps.push(format!(
                "{name}: {after} bytes of stack, {before} were recorded"
            ));
        }
        if after.verify_time_us > VERIFY_TIME_MAX_US {
            let time_us = after.verify_time_us;
            jumps.push(format!(
                "{name}: {time_us} us to verify, {VERIFY_TIME_MAX_US} are allowed"
            ));
        }
    }
    let gone = recorded
        .program
        .keys()
        .filter(|name| !now.program.contains_key(*name));
    jumps.extend(gone.map(|name| format!("{name} is in the record and is no program")));
    jumps
}

#[test]
fn what_the_verifier_says_does_not_jump_unnoticed() {
    if !common::may_load_bpf("verifier") {
        return;
    }
    let now = Record {
        kernel: kernel(),
        compiler: compiler(),
        program: measure_all(),
    };
    if std::env::var_os(RECORD).is_some() {
        std::fs::write(file(), format!("{HEAD}{}", toml::to_string(&now).unwrap())).unwrap();
        return;
    }
    let recorded = std::fs::read_to_string(file()).expect("make verifier-record writes it");
    let recorded: Record = toml::from_str(&recorded).unwrap();
    let jumps = jumps(&recorded, &now);
    assert!(
        jumps.is_empty(),
        "{}\nIf this is as it should be: make verifier-record, and commit dataplane/xdp/verifier.toml",
        jumps.join("\n")
    );
}

#[test]
fn a_jump_is_noticed() {
    let figures = |verified_insns, stack_bytes| Figures {
        verified_insns,
        insns: 100,
        stack_bytes,
        verify_time_us: 1,
    };
    let record = |kernel: &str, figures| Record {
        kernel: kernel.into(),
        compiler: "clang 19".into(),
        program: BTreeMap::from([("leader".to_owned(), figures)]),
    };
    let recorded = record("6.18", figures(1000, 128));
    let jumped = |kernel, now| jumps(&recorded, &record(kernel, now)).len();
    assert_eq!(jumped("6.18", figures(1100, 192)), 0);
    assert_eq!(jumped("6.18", figures(1101, 128)), 1);
    assert_eq!(jumped("6.18", figures(1101, 193)), 2);
    assert_eq!(jumped("6.19", figures(1101, 128)), 0);
    assert_eq!(jumped("6.19", figures(2001, 128)), 1);
    assert_eq!(stack_bytes("x\nstack depth 96+8\n"), 104);
}
