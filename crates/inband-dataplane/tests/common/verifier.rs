//! Every program that a host may load, in every mode in which it may be loaded, and the verifier's figures for it. Used
//! by `tests/verifier.rs` (this machine's kernel) and `tests/kernels.rs` (other kernels, in virtual machines).
#![allow(dead_code, missing_docs)]

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

#[path = "modes.rs"]
pub mod modes;
use modes::{modes_of, LOADED};

use libbpf_rs::{ObjectBuilder, PrintLevel};
use serde::{Deserialize, Serialize};

/// Maximum number of instructions that a verifier may process for one program: a third of its limit, because every
/// kernel counts differently.
pub const VERIFIED_INSNS_MAX: u64 = 1_000_000 / 3;
/// Growth over the record that is tolerated on the same kernel series and compiler...
const GROWTH_MAX_PERCENT: u64 = 10;
/// ... and on others, which count differently.
const GROWTH_ELSEWHERE_MAX_PERCENT: u64 = 100;
const STACK_GROWTH_MAX_BYTES: u64 = 64;
/// The kernel's BPF_LOG_STATS: figures and the reason of a refusal, without a trace of instructions.
const LOG_STATS: u32 = 4;
const LOG_TRACE: u32 = 1;
/// Lines of the trace to show for a refusal.
const TRACE_LINES: usize = 12;
const SETTINGS_MAPS: [&str; 2] = [".rodata.settings", ".rodata.own"];

/// One program in one mode.
pub struct Case {
    pub name: String,
    object: Cow<'static, [u8]>,
    /// Settings, if the program has any.
    settings: [Vec<u8>; 2],
}

impl Case {
    /// A program without settings.
    pub fn plain(name: String, object: Vec<u8>) -> Case {
        Case {
            name,
            object: Cow::Owned(object),
            settings: [Vec::new(), Vec::new()],
        }
    }
}

/// Which modes are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Modes {
    All,
    /// The largest sizes, which give the verifier the most work, and those with which a host loads by default.
    Short,
}

/// Every program in these modes.
pub fn cases(modes: Modes) -> Vec<Case> {
    let mut cases = Vec::new();
    for program in LOADED {
        let alike = LOADED.iter().filter(|other| other.name == program.name);
        // Two systems may have programs of the same name.
        let name = match alike.count() {
            1 => program.name.to_owned(),
            _ => format!("{}_{}", program.folder, program.name),
        };
        let is_tried = |mode: &modes::Mode| modes == Modes::All || mode.is_in_short_form;
        cases.extend(
            modes_of(program)
                .into_iter()
                .filter(is_tried)
                .map(|mode| Case {
                    name: format!("{name}{}", mode.name),
                    object: Cow::Borrowed(program.object),
                    settings: mode.settings,
                }),
        );
    }
    if let Some(only) = only() {
        cases.retain(|case| case.name.contains(&only));
    }
    cases
}

/// If this variable is set, only cases whose name contains its value are tried, and nothing is compared or recorded.
pub const ONLY: &str = "INBAND_VERIFIER_ONLY";

/// If this variable is set, `tests/kernels.rs` tries all modes.
pub const ALL: &str = "INBAND_VERIFIER_ALL";

pub fn modes_in_guest() -> Modes {
    let is_all = is_set(ALL) || renews() || only().is_some();
    if is_all {
        Modes::All
    } else {
        Modes::Short
    }
}

pub fn only() -> Option<String> {
    std::env::var(ONLY).ok().filter(|only| !only.is_empty())
}

/// The verifier's figures for a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Instructions that the verifier processed, over all paths; its limit is a million.
    pub verified_insns: u64,
    /// Instructions of the compiled program.
    pub insns: u64,
    pub stack_bytes: u64,
}

static LOG: Mutex<String> = Mutex::new(String::new());

fn keep_log(_level: PrintLevel, message: String) {
    LOG.lock().unwrap().push_str(&message);
}

/// The number after `label` in the verifier's log.
fn number_after(log: &str, label: &str) -> u64 {
    let at = log
        .find(label)
        .unwrap_or_else(|| panic!("the verifier does not say \"{label}\": {log}"));
    let digits = log[at + label.len()..].trim_start();
    let end = digits.find(|c: char| !c.is_ascii_digit());
    digits[..end.unwrap_or(digits.len())].parse().unwrap()
}

/// "stack depth 96+0": one number per function. Linux 7.3 reports "stack depth max 96", for the deepest call.
pub fn stack_bytes(log: &str) -> u64 {
    let line = log
        .lines()
        .find_map(|line| line.strip_prefix("stack depth "));
    let line = line.unwrap_or_else(|| panic!("the verifier states no stack depth: {log}"));
    let numbers = line.trim_start_matches("max ").split('+');
    let number = |text: &str| text.trim().parse::<u64>();
    let numbers: Result<Vec<u64>, _> = numbers.map(number).collect();
    let numbers = numbers.unwrap_or_else(|error| panic!("stack depth {line}: {error}"));
    numbers.iter().sum()
}

/// Loads a program. Returns the verifier's log and the number of instructions.
fn load(case: &Case, log_level: u32) -> (String, Result<u64, String>) {
    libbpf_rs::set_print(Some((PrintLevel::Debug, keep_log)));
    LOG.lock().unwrap().clear();
    let mut object = ObjectBuilder::default().open_memory(&case.object).unwrap();
    for mut map in object.maps_mut() {
        for (name, settings) in SETTINGS_MAPS.iter().zip(&case.settings) {
            if map.name() == *name {
                map.set_initial_value(settings).unwrap();
            }
        }
    }
    for mut program in object.progs_mut() {
        program.set_log_level(log_level);
    }
    let insns = match object.load() {
        Ok(object) => Ok(object.progs().map(|p| p.insn_cnt() as u64).sum()),
        Err(error) => Err(error.to_string()),
    };
    (std::mem::take(&mut *LOG.lock().unwrap()), insns)
}

/// The figures of a case, or why the verifier refuses it.
pub fn measure(case: &Case) -> Result<Figures, String> {
    let (log, insns) = load(case, LOG_STATS);
    match insns {
        Ok(insns) => Ok(Figures {
            verified_insns: number_after(&log, "\nprocessed "),
            insns,
            stack_bytes: stack_bytes(&log),
        }),
        Err(error) if log.contains("too large") => Err(format!("{error}: {}", reason(&log))),
        Err(error) => Err(format!("{error}: {}", reason(&load(case, LOG_TRACE).0))),
    }
}

/// The end of the verifier's log of a refusal.
fn reason(log: &str) -> String {
    let log = log
        .split("-- BEGIN PROG LOAD LOG --\n")
        .nth(1)
        .unwrap_or(log);
    let log = log.split("\nprocessed ").next().unwrap_or(log);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(TRACE_LINES)..].join("\n")
}

/// One kernel's figures for all cases.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfKernel {
    /// The kernel's release string.
    pub release: String,
    pub program: BTreeMap<String, Figures>,
}

impl OfKernel {
    /// The first two numbers of the release.
    pub fn series(&self) -> String {
        series(&self.release)
    }
}

/// The first two numbers of a kernel's release.
pub fn series(release: &str) -> String {
    let numbers: Vec<&str> = release.trim().split('.').take(2).collect();
    numbers.join(".")
}

/// The release of the running kernel.
pub fn running_release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    release.trim().to_owned()
}

/// The contents of `dataplane/verifier.toml`.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub compiler: String,
    pub kernel: BTreeMap<String, OfKernel>,
}

const HEAD: &str =
    "# What the verifiers of several kernels say of every program in every mode: instructions
# walked over all paths, instructions of the program, bytes of stack. tests/verifier.rs and
# tests/kernels.rs hold the programs to it. Made by `make verifier-matrix RECORD=1`.
";

impl Record {
    pub fn read() -> Record {
        let text = std::fs::read_to_string(file());
        let text = text.expect("make verifier-matrix RECORD=1 writes it");
        toml::from_str(&text).unwrap()
    }

    /// Replaces one kernel's figures in the file.
    pub fn renew(name: &str, now: OfKernel) {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _one = ONE_AT_A_TIME.lock();
        let mut record = Record::read();
        record.compiler = compiler();
        record.kernel.insert(name.to_owned(), now);
        std::fs::write(file(), record.text()).unwrap();
    }

    /// One line per program.
    pub fn text(&self) -> String {
        let mut text = format!("{HEAD}\ncompiler = \"{}\"\n", self.compiler);
        for (name, kernel) in &self.kernel {
            write!(text, "\n[kernel.\"{name}\"]\n").unwrap();
            writeln!(text, "release = \"{}\"", kernel.release).unwrap();
            write!(text, "\n[kernel.\"{name}\".program]\n").unwrap();
            for (name, figures) in &kernel.program {
                writeln!(text, "{name} = {}", line(figures)).unwrap();
            }
        }
        text
    }

    /// Figures that grew too much, one line each.
    pub fn jumps(&self, name: &str, compiler: &str, now: &OfKernel, modes: Modes) -> Vec<String> {
        let mut jumps = Vec::new();
        for (program, figures) in &now.program {
            if figures.verified_insns > VERIFIED_INSNS_MAX {
                let walked = figures.verified_insns;
                jumps.push(format!(
                    "{program}: the verifier walks {walked} instructions, {VERIFIED_INSNS_MAX} are allowed"
                ));
            }
        }
        let Some(recorded) = self.kernel.get(name) else {
            return jumps;
        };
        let alike = recorded.series() == now.series() && self.compiler == compiler;
        let percent = if alike {
            GROWTH_MAX_PERCENT
        } else {
            GROWTH_ELSEWHERE_MAX_PERCENT
        };
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
        }
        let left_out: BTreeSet<String> = match modes {
            Modes::All => BTreeSet::new(),
            Modes::Short => cases(Modes::All)
                .into_iter()
                .map(|case| case.name)
                .collect(),
        };
        let gone = recorded
            .program
            .keys()
            .filter(|name| !now.program.contains_key(*name) && !left_out.contains(*name));
        jumps.extend(gone.map(|name| format!("{name} is in the record and is no program")));
        jumps
    }
}

/// Figures as an inline table of TOML.
pub fn line(figures: &Figures) -> String {
    format!(
        "{{ verified_insns = {}, insns = {}, stack_bytes = {} }}",
        figures.verified_insns, figures.insns, figures.stack_bytes
    )
}

fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|set| !set.is_empty())
}

/// Returns whether to update the record instead of comparing with it.
pub fn renews() -> bool {
    is_set("INBAND_VERIFIER_RECORD")
}

/// Compares a kernel's figures with the record, or updates the record.
pub fn hold_to_record(
    name: &str,
    now: OfKernel,
    modes: Modes,
    must_be_recorded: bool,
) -> Result<(), String> {
    if only().is_some() {
        for (program, figures) in now.program {
            eprintln!("{name}: {program} = {}", line(&figures));
        }
        return Ok(());
    }
    if renews() {
        Record::renew(name, now);
        return Ok(());
    }
    let record = Record::read();
    let mut jumps = record.jumps(name, &compiler(), &now, modes);
    if must_be_recorded && !record.kernel.contains_key(name) {
        jumps.push(format!("the kernel of {name} is not in the record"));
    }
    if jumps.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{}\nIf this is as it should be: make verifier-matrix RECORD=1, and commit dataplane/verifier.toml",
        jumps.join("\n")
    ))
}

pub fn compiler() -> String {
    // The build used the first of these that exists (clang.rs).
    let said = Command::new("clang-19").arg("--version").output();
    let said = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
    let line = said.unwrap_or_default();
    let version = line.split("clang version ").nth(1).unwrap_or("unknown");
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.');
    format!("clang {}", &version[..end.unwrap_or(version.len())])
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../dataplane/verifier.toml")
}
