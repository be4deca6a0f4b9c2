//! Packet vectors (`dataplane/SYSTEM/vectors/*.toml`): packet in, packet out. A case runs natively and, in real frames,
//! in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use inband_ground::auth::{Gate, Keys};
use inband_ground::soft::Arrival;
use inband_ground::xdp::rig::udp_frame;
use inband_ground::{c, System};
use serde::de::DeserializeOwned;
use serde::Deserialize;

use crate::frame::{may_load_bpf, HERE};
use crate::role::{missing, native, secret, Kernel, Outcome, Registers, UnderTest};

/// Damage to a UDP payload, or to the whole frame around it.
#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, default)]
pub struct Damage {
    /// Keep this many bytes.
    cut: Option<usize>,
    /// Append this many zero bytes.
    pad: usize,
    /// (offset, value)
    bytes: Vec<(usize, u8)>,
}

impl Damage {
    /// Returns the damaged bytes.
    pub fn of(&self, mut packet: Vec<u8>) -> Vec<u8> {
        for (at, byte) in &self.bytes {
            packet[*at] = *byte;
        }
        if let Some(len) = self.cut {
            packet.truncate(len);
        }
        packet.resize(packet.len() + self.pad, 0);
        packet
    }
}

/// Returns the keys with these ids; the last one is active. A key is its id, 16 times.
pub fn keys_of(ids: &[u16]) -> Option<Keys> {
    let keys: Vec<_> = ids.iter().map(|id| secret(*id)).collect();
    let active = *ids.last()?;
    Some(Keys::new(active, &keys).expect("they are keys"))
}

/// "text", or "x*20" for twenty x.
pub fn value_of(text: &str) -> Vec<u8> {
    match text.split_once('*') {
        Some((unit, times)) => unit.repeat(times.parse().expect("a number")).into_bytes(),
        None => text.as_bytes().to_vec(),
    }
}

/// Returns the flags with these names, from the list of all flags.
pub fn flags_of(all: &[(&str, u16)], names: &[String]) -> u16 {
    let flag = |name: &String| {
        let found = all.iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("there is no flag {name}")).1
    };
    names.iter().map(flag).fold(0, |flags, flag| flags | flag)
}

/// Returns the message type with this name, from the list of all types: `READ_REPLY` is `ReadReply`.
pub fn type_of<K: Copy + Debug>(all: &[K], name: &str) -> K {
    let called = |kind: &&K| {
        let mut upper = String::new();
        for letter in format!("{kind:?}").chars() {
            if letter.is_uppercase() && upper.ends_with(|last: char| last.is_ascii_uppercase()) {
                upper.push('_');
            }
            upper.push(letter.to_ascii_uppercase());
        }
        upper == name
    };
    let found = all.iter().find(called);
    *found.unwrap_or_else(|| panic!("there is no type {name}"))
}

/// Returns the files of `dataplane/SYSTEM/vectors/`: name and text.
pub fn files(system: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dataplane");
    let folder = root.join(system).join("vectors");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .expect("it is a folder")
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    paths.sort();
    let stem = |path: &PathBuf| path.file_stem().map(|s| s.to_string_lossy().into_owned());
    let files: Vec<_> = paths
        .iter()
        .map(|path| {
            let text = fs::read_to_string(path).expect("it can be read");
            (stem(path).expect("it has a name"), text)
        })
        .collect();
    assert!(!files.is_empty());
    files
}

/// Returns the cases of a system.
pub fn cases<C: DeserializeOwned>(system: &str) -> Vec<C> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File<C> {
        case: Vec<C>,
    }
    let cases = |(stem, text): (String, String)| {
        let file: File<C> = toml::from_str(&text).unwrap_or_else(|e| panic!("{stem}: {e}"));
        file.case
    };
    files(system).into_iter().flat_map(cases).collect()
}

/// Returns the cases that a role on this target does not pass, of those that exist: `dataplane/SYSTEM/TARGET/unsupported.toml`
/// has a table for each role, of cases and reasons. Without the file there are none.
pub fn unsupported(system: &str, target: &str, role: &str, cases: &[&str]) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dataplane");
    let path = root.join(system).join(target).join("unsupported.toml");
    if !path.exists() {
        return BTreeSet::new();
    }
    let text = fs::read_to_string(path).expect("it can be read");
    let mut all: BTreeMap<String, BTreeMap<String, String>> =
        toml::from_str(&text).expect("tables of cases");
    let listed: BTreeSet<String> = all.remove(role).unwrap_or_default().into_keys().collect();
    for name in &listed {
        assert!(cases.contains(&name.as_str()), "no such case: {name}");
    }
    listed
}

/// Runs a case; if it fails, the panic names it.
pub fn named(name: &str, run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        panic!("vector failed: {name}");
    }
}

/// A packet of a case, and its expected result.
pub struct Step<V> {
    /// The incoming UDP payload.
    pub packet: Vec<u8>,
    /// Damage to the frame around it; for the kernel only.
    pub frame: Option<Damage>,
    pub arrival: Arrival,
    pub verdict: V,
    pub reason: String,
    /// The outgoing UDP payload.
    pub out: Vec<u8>,
}

/// A case of a system's vectors.
pub trait Case: DeserializeOwned {
    type System: UnderTest;
    type Expected;

    /// Returns what it shows.
    fn name(&self) -> &str;
    /// Returns why it must be so.
    fn why(&self) -> &str {
        ""
    }
    /// Ids of the keys that the role accepts; it sends with the last.
    fn keys(&self) -> &[u16] {
        &[]
    }
    /// Returns the number of packets.
    fn packets(&self) -> usize;
    /// Returns the expected reason of packet `at`.
    fn reason(&self, at: usize) -> &str;
    /// Packet `at`, signed by a sender, and the result expected of a role with these keys.
    fn step(&self, at: usize, keys: Option<&Keys>) -> Step<<Self::System as UnderTest>::Verdict>;
    /// Returns a role for the case in this process, and its partitions.
    fn native(&self) -> (<Self::System as UnderTest>::Role, usize);
    /// Returns a role for the case in the kernel.
    fn rig(&self, keys: Option<Keys>) -> <Self::System as UnderTest>::Rig;
    /// Returns whether the case can use the [`Case::rig`] of another case, which has the same keys and was cleared.
    fn shares_rig(&self, _other: &Self) -> bool {
        true
    }
    /// Clears the registers and sets them for the first packet. Returns the expected registers.
    fn prepare(&self, registers: &Registers<Self::System>) -> Self::Expected;
    /// What happens before packet `at`, besides packets.
    fn before(&self, _at: usize, _registers: &Registers<Self::System>) {}
    /// Checks the registers after packet `at`.
    fn check(&self, at: usize, registers: &Registers<Self::System>, expected: &mut Self::Expected);
}

/// For implementations of [`Case`]: functions that only need the fields `name`, `why`, `keys` and `packet`, each of
/// which has a `reason`.
#[macro_export]
macro_rules! case_fields {
    () => {
        fn name(&self) -> &str {
            &self.name
        }

        fn why(&self) -> &str {
            &self.why
        }

        fn keys(&self) -> &[u16] {
            &self.keys
        }

        fn packets(&self) -> usize {
            self.packet.len()
        }

        fn reason(&self, at: usize) -> &str {
            &self.packet[at].reason
        }
    };
}

type Handle<'a, C> = dyn FnMut(
        &Step<<<C as Case>::System as UnderTest>::Verdict>,
    ) -> Outcome<<<C as Case>::System as UnderTest>::Verdict>
    + 'a;

fn run<C: Case>(
    case: &C,
    keys: Option<&Keys>,
    in_kernel: bool,
    registers: &Registers<C::System>,
    handle: &mut Handle<'_, C>,
) {
    let mut expected = case.prepare(registers);
    for at in 0..case.packets() {
        let step = case.step(at, keys);
        if step.frame.is_some() && !in_kernel {
            continue;
        }
        println!("packet {at} of \"{}\": {}", case.name(), case.why());
        case.before(at, registers);
        let got = handle(&step);
        let reason = (got.verdict, got.reason);
        assert_eq!(reason, (step.verdict, &*step.reason), "verdict and reason");
        assert_eq!(got.packet, step.out, "byte for byte");
        case.check(at, registers, &mut expected);
    }
}

/// Runs every vector natively.
pub fn run_natively<C: Case>(system: &str) {
    for case in cases::<C>(system) {
        named(case.name(), || {
            let keys = keys_of(case.keys());
            let (role, partitions) = case.native();
            let mut gate = Gate::of::<<C::System as UnderTest>::System>(keys, partitions);
            run(&case, keys.as_ref(), false, role.registers(), &mut |step| {
                native::<C::System>(&mut gate, &role, &step.packet, step.arrival)
            });
        });
    }
}

/// Runs every vector in the kernel. Vectors that name no keys get the key with this id.
pub fn run_in_kernel<C: Case>(system: &str, key: Option<u16>) {
    if !may_load_bpf() {
        return;
    }
    let ids = |case: &C| match (case.keys(), key) {
        ([], Some(key)) => vec![key],
        (keys, _) => keys.to_vec(),
    };
    // Loading takes longer than a case.
    let mut last: Option<(C, Kernel<C::System>)> = None;
    for case in cases::<C>(system) {
        let keys = keys_of(&ids(&case));
        let same = last.take();
        let same = same.filter(|(other, _)| ids(other) == ids(&case) && case.shares_rig(other));
        let kernel = same.map_or_else(|| Kernel(case.rig(keys)), |(_, kernel)| kernel);
        named(case.name(), || {
            run(
                &case,
                keys.as_ref(),
                true,
                kernel.registers(),
                &mut |step| {
                    let mut frame = udp_frame(step.arrival.from, HERE, &step.packet);
                    if let Some(damage) = &step.frame {
                        frame = damage.of(frame);
                    }
                    kernel.handle(&frame, &step.packet, step.arrival)
                },
            );
        });
        last = Some((case, kernel));
    }
}

/// Checks that Rust knows the reasons of a system's `reasons.h`, and no others.
pub fn reasons_are_known<S: System>(system: &str) {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dataplane");
    let header = header.join(system).join("reasons.h");
    let text = fs::read_to_string(header).expect("a system has reasons");
    let lists = text.split(" X(").skip(1);
    let listed: Vec<&str> = lists.filter_map(|rest| rest.split(')').next()).collect();
    let known: Vec<&str> = (0..c::IB_REASONS_MAX)
        .filter_map(S::own_reason_name)
        .collect();
    assert_eq!(known, listed, "{system}");
}

/// Checks that Rust knows the system's reasons, and that every one that begins with `prefix` has a vector, except those
/// that no single packet can show, which other tests cover.
pub fn every_reason_has_a_vector<C: Case>(system: &str, prefix: &str, elsewhere: &[&str]) {
    let cases = cases::<C>(system);
    let reasons = |case: &'_ C| -> Vec<String> {
        (0..case.packets())
            .map(|at| case.reason(at).to_owned())
            .collect()
    };
    let shown: BTreeSet<String> = cases.iter().flat_map(reasons).collect();
    let shown: BTreeSet<&str> = shown.iter().map(String::as_str).collect();
    type Of<C> = <<C as Case>::System as UnderTest>::System;
    reasons_are_known::<Of<C>>(system);
    let missing = missing::<Of<C>>(prefix, elsewhere, &shown);
    assert!(missing.is_empty(), "no vector shows {missing:?}");
}
