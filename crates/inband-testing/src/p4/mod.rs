//! Roles in P4 (`dataplane/SYSTEM/p4/ROLE.p4`) under test, on bmv2's `simple_switch`.
//!
//! The programs are found in PATH or under P4_TOOLCHAIN; without them each test reports that it did not run, and fails
//! with INBAND_REQUIRE_P4=1. `INBAND_P4=all` (`make p4-test`) compares 10,000 random packets per role.

mod simple_switch;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use inband_ground::auth::Gate;
use inband_ground::soft::Arrival;
use inband_ground::xdp::rig::udp_frame;
use inband_ground::System;

use crate::frame::{turned, GROUP, GROUP_MAC, HERE, NODE, OWN_MAC};
use crate::random::{seed, Prng};
use crate::role::{native, Outcome, Registers, UnderTest};
use crate::vector::{cases, named, unsupported, Case};
pub use simple_switch::{SimpleSwitch, GROUP_PORT, HOST_PORT, SENDER_PORT};

/// Exit status of `scripts/p4`.
const CANNOT_RUN: i32 = 77;
/// Reasons have lower numbers: IB_REASONS_MAX.
const REASONS_MAX: u32 = 1024;
/// Random packets per role.
const PACKETS: usize = 400;
/// ... in a long run.
const PACKETS_OF_ALL: usize = 10_000;
/// Packets between two comparisons of registers.
const COMPARE_EVERY: usize = 40;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns whether tests that cannot run must fail.
pub fn is_required() -> bool {
    std::env::var_os("INBAND_REQUIRE_P4").is_some_and(|value| !value.is_empty())
}

/// Runs `scripts/p4`; its output, or `None` if a program cannot be found.
fn p4(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(root().join("scripts/p4"));
    let done = command.args(arguments).output().expect("it can be run");
    let errors = String::from_utf8_lossy(&done.stderr);
    if done.status.code() == Some(CANNOT_RUN) {
        assert!(!is_required(), "{errors}");
        return None;
    }
    assert!(done.status.success(), "{arguments:?}: {errors}");
    Some(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

/// Compiles a role with registers of these sizes. Returns `simple_switch` and the program for it, named after `name`;
/// `None` if the toolchain cannot be found: the test is reported as not run.
pub fn compiled(
    name: &str,
    system: &str,
    role: &str,
    sizes: &[(&str, usize)],
) -> Option<(PathBuf, PathBuf)> {
    let folder = root().join("target/p4");
    fs::create_dir_all(&folder).expect("it can be made");
    let json = folder.join(format!("{name}.json"));
    let output = json.display().to_string();
    let sizes: Vec<_> = sizes
        .iter()
        .map(|(name, n)| format!("{name}={n}"))
        .collect();
    let mut arguments = vec!["compile", system, role, &output];
    arguments.extend(sizes.iter().map(String::as_str));
    let found = p4(&arguments).and_then(|_| p4(&["find", "simple_switch"]));
    if found.is_none() {
        let why = "p4c-bm2-ss or simple_switch is neither in PATH nor under P4_TOOLCHAIN";
        crate::not_run_optional(why);
    }
    Some((found?.into(), json))
}

/// Returns how many random packets to compare, and whether they must meet all that they can.
pub fn packets() -> (usize, bool) {
    match std::env::var("INBAND_P4").is_ok_and(|value| value == "all") {
        true => (PACKETS_OF_ALL, true),
        false => (PACKETS, false),
    }
}

/// A switch with a role.
pub struct Running {
    /// Its control plane.
    pub switch: SimpleSwitch,
    /// What the test is called.
    name: String,
    frames: usize,
    /// Frames by the reason that must be counted.
    reasons: BTreeMap<String, u64>,
    /// For scripts/portability: how many frames were right.
    passed: PathBuf,
}

impl Running {
    /// Compiles the role with registers of these sizes and starts it, as this node at [`HERE`]. Returns `None` if the
    /// toolchain cannot be found; the test is reported as not run.
    pub fn start(
        test: &str,
        system: &str,
        role: &str,
        node: u8,
        sizes: &[(&str, usize)],
    ) -> Option<Running> {
        let name = format!("{test}-{system}-{role}");
        let (program, json) = compiled(&name, system, role, sizes)?;
        let passed = json.with_extension("passed");
        let _ = fs::remove_file(&passed);
        let mut switch = SimpleSwitch::start(&program, &json);
        let (address, port) = (HERE.ip().octets(), HERE.port().to_be_bytes());
        let host_port = (HOST_PORT as u16).to_be_bytes();
        let data: [&[u8]; 4] = [&[0, node], &address, &port, &host_port];
        switch.set_default("settings", "configure", &data);
        let (to, to_port) = (GROUP.0, GROUP.1.to_be_bytes());
        let data: [&[u8]; 6] = [&GROUP_MAC, &OWN_MAC, &to, &address, &to_port, &port];
        switch.add_entry("members", &[0, 1], "address", &data);
        Some(Running {
            switch,
            name,
            frames: 0,
            reasons: BTreeMap::new(),
            passed,
        })
    }

    /// Sends a frame. Notes what must come out of which port, and be counted.
    pub fn frame(
        &mut self,
        frame: &[u8],
        out: Option<(usize, Vec<u8>)>,
        reason: &str,
        what: &dyn Display,
    ) {
        self.switch.send(frame, out, &what.to_string());
        *self.reasons.entry(reason.to_owned()).or_default() += 1;
        self.frames += 1;
    }

    /// Checks that register `array[index]` is `word`.
    pub fn check(&mut self, array: &str, index: usize, word: u64, what: &dyn Display) {
        let now = self.switch.register(array, index);
        // Its interface has signed numbers: it gives the largest for all above. Packets show all bits.
        assert_eq!(
            now,
            word.min(i64::MAX as u64),
            "{array}[{index}] after {what}"
        );
    }

    /// Checks that all came out, and the counters.
    pub fn end<S: System>(mut self) {
        self.switch.settle();
        for number in 0..REASONS_MAX {
            let Some(reason) = S::reason_name(number) else {
                continue;
            };
            let counted = self.switch.counter("reasons", number as usize);
            let right = self.reasons.get(reason).copied().unwrap_or(0);
            assert_eq!(counted, right, "packets counted as {reason}");
        }
        fs::write(&self.passed, self.frames.to_string()).expect("it can be written");
        println!("P4 {}: {} frames", self.name, self.frames);
    }
}

/// Register arrays of a switch, and an index and word of each.
pub type Words = Vec<(&'static str, usize, u64)>;

/// A role in P4.
pub struct Target<T: UnderTest> {
    /// Its folder in `dataplane/`.
    pub system: &'static str,
    /// Its file.
    pub role: &'static str,
    /// Sizes of its registers: IB_P4_NAME, without the prefix.
    pub sizes: &'static [(&'static str, usize)],
    /// What the control plane sets once, besides settings and group.
    pub prepare: fn(&mut SimpleSwitch),
    /// The registers that packets change, as the switch has them.
    pub words: fn(&Registers<T>) -> Words,
    /// Whether packets with this verdict go to the group.
    pub is_to_group: fn(&T::Verdict) -> bool,
    /// The cases that it may fail. May only become smaller.
    pub unsupported_max: usize,
}

/// A role in the switch, and the same role built natively, to compare with.
struct Pair<'a, T: UnderTest> {
    target: &'a Target<T>,
    running: &'a mut Running,
    native: T::Role,
    gate: Gate,
    known: Words,
}

impl<'a, T: UnderTest> Pair<'a, T> {
    fn new(
        target: &'a Target<T>,
        running: &'a mut Running,
        (native, partitions): (T::Role, usize),
    ) -> Pair<'a, T> {
        let gate = Gate::of::<T::System>(None, partitions);
        Pair {
            target,
            running,
            native,
            gate,
            known: Words::new(),
        }
    }

    /// Sets the switch's registers to those of the native build.
    fn set(&mut self) {
        let now = (self.target.words)(self.native.registers());
        for (array, index, word) in &now {
            self.running.switch.write(array, *index, *word);
        }
        self.known = now;
    }

    fn handle(&mut self, packet: &[u8], arrival: Arrival) -> Outcome<T::Verdict> {
        native::<T>(&mut self.gate, &self.native, packet, arrival)
    }

    fn frame(&mut self, frame: &[u8], expected: &Outcome<T::Verdict>, what: &dyn Display) {
        let Outcome {
            verdict,
            reason,
            packet,
        } = expected;
        let out = if *verdict == T::DROP {
            None
        } else if *verdict == T::PASS {
            Some((HOST_PORT, frame.to_vec()))
        } else if (self.target.is_to_group)(verdict) {
            Some((GROUP_PORT, turned(frame, packet, Some(GROUP))))
        } else {
            assert_eq!(*verdict, T::REPLY);
            Some((SENDER_PORT, turned(frame, packet, None)))
        };
        self.running.frame(frame, out, reason, what);
    }

    /// Compares the registers that have changed.
    fn compare(&mut self, what: &dyn Display) {
        let now = (self.target.words)(self.native.registers());
        for (at, (array, index, word)) in now.iter().enumerate() {
            if self.known.get(at).is_none_or(|known| known.2 != *word) {
                self.running.check(array, *index, *word, what);
            }
        }
        self.known = now;
    }

    /// Compares all registers.
    fn compare_all(&mut self, what: &dyn Display) {
        self.known.clear();
        self.compare(what);
    }
}

impl<T: UnderTest> Target<T> {
    fn start(&self, test: &str) -> Option<Running> {
        let mut running = Running::start(test, self.system, self.role, NODE, self.sizes)?;
        (self.prepare)(&mut running.switch);
        Some(running)
    }

    /// Runs every case of the vectors that is for this role and not listed as unsupported.
    pub fn passes_every_vector<C: Case<System = T>>(&self, is_of_role: impl Fn(&C) -> bool) {
        let mut cases = cases::<C>(self.system);
        cases.retain(is_of_role);
        let names: Vec<&str> = cases.iter().map(Case::name).collect();
        let listed = unsupported(self.system, "p4", self.role, &names);
        assert!(listed.len() <= self.unsupported_max, "it may only shrink");
        let Some(mut running) = self.start("vectors") else {
            return;
        };
        for case in cases.iter().filter(|case| !listed.contains(case.name())) {
            named(case.name(), || {
                let mut pair = Pair::new(self, &mut running, case.native());
                let mut expected = case.prepare(pair.native.registers());
                pair.set();
                for at in 0..case.packets() {
                    let what = format!("packet {at} of \"{}\"", case.name());
                    let step = case.step(at, None);
                    let got = pair.handle(&step.packet, step.arrival);
                    let right = (step.verdict, &*step.reason, &step.out);
                    assert_eq!((got.verdict, got.reason, &got.packet), right, "{what}");
                    assert!(step.frame.is_none(), "no damaged frames: {what}");
                    let frame = udp_frame(step.arrival.from, HERE, &step.packet);
                    pair.frame(&frame, &got, &what);
                    case.check(at, pair.native.registers(), &mut expected);
                    pair.compare(&what);
                }
                pair.compare_all(&case.name());
            });
        }
        let (passed, total) = (cases.len() - listed.len(), cases.len());
        println!(
            "P4 {} {}: {passed} of {total} vectors",
            self.system, self.role
        );
        running.end::<T::System>();
    }

    /// Compares random packets with the native build. `next` makes them; a long run must meet all of the reasons `met`.
    pub fn equals_the_native_build(
        &self,
        native: (T::Role, usize),
        met: &[&str],
        next: &mut dyn FnMut(&mut Prng) -> (Vec<u8>, Arrival),
    ) {
        let seed = seed();
        eprintln!("INBAND_SEED={seed}");
        let Some(mut running) = self.start("random") else {
            return;
        };
        let mut prng = Prng(seed);
        let (packets, must_meet) = packets();
        let mut pair = Pair::new(self, &mut running, native);
        pair.set();
        for number in 0..packets {
            let what = format!("packet {number} of INBAND_SEED={seed}");
            let (packet, arrival) = next(&mut prng);
            let expected = pair.handle(&packet, arrival);
            pair.frame(&udp_frame(arrival.from, HERE, &packet), &expected, &what);
            if number % COMPARE_EVERY == 0 {
                pair.compare(&what);
            }
        }
        pair.compare_all(&format!("INBAND_SEED={seed}"));
        if must_meet {
            let is_missing = |reason: &&&str| !running.reasons.contains_key(**reason);
            let missing: Vec<_> = met.iter().filter(is_missing).collect();
            assert!(missing.is_empty(), "not met: {missing:?}");
        }
        running.end::<T::System>();
    }
}
