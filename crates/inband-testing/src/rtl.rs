//! Roles in RTL (`dataplane/SYSTEM/rtl`) under test: `scripts/rtl replay` runs a script under Verilator.
//!
//! `make test` runs a short form. `INBAND_RTL=all` (`make rtl-test`) runs every width and 10,000 packets per role.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::Command;

use inband_ground::auth::Gate;
use inband_ground::soft::Arrival;
use inband_ground::xdp::rig::udp_frame;

use crate::frame::HERE;
use crate::random::{seed, Prng};
use crate::role::{missing, native, Outcome, Registers, UnderTest};
use crate::script::{Op, Script, To, Words};
use crate::vector::{cases, named, unsupported, Case};

/// Exit status of `scripts/rtl`.
const CANNOT_RUN: i32 = 77;
/// Random packets per role.
const PACKETS: usize = 400;
/// ... in a long run.
const PACKETS_OF_ALL: usize = 10_000;
/// Packets between two comparisons of registers.
const COMPARE_EVERY: usize = 40;
/// Packets after which the registers are cleared.
const RESTART_EVERY: usize = 2_000;

fn is_long() -> bool {
    std::env::var("INBAND_RTL").is_ok_and(|value| value == "all")
}

/// Returns how many random packets to compare, and whether they must meet all that they can.
pub fn packets() -> (usize, bool) {
    match is_long() {
        true => (PACKETS_OF_ALL, true),
        false => (PACKETS, false),
    }
}

/// Returns the widths of the stream to test, in bits.
pub fn widths() -> &'static [usize] {
    match is_long() {
        true => &[64, 128, 512],
        false => &[128],
    }
}

/// Runs a script on a role, at every width. Reports the test as not run if what it needs cannot be had.
pub fn replay(system: &str, role: &str, name: &str, ops: &[Op]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = root.join("target/rtl");
    fs::create_dir_all(&folder).expect("it can be made");
    for width in widths() {
        // scripts/portability knows these names.
        let path = folder.join(format!("{name}-{system}-{role}-{width}.jsonl"));
        let mut file = BufWriter::new(File::create(&path).expect("it can be made"));
        for op in ops {
            serde_json::to_writer(&mut file, op).expect("it can be written");
            file.write_all(b"\n").expect("it can be written");
        }
        file.into_inner().expect("it can be written");
        let mut replay = Command::new(root.join("scripts/rtl"));
        replay.args(["replay", system, role, &width.to_string()]);
        let status = replay.arg(&path).status().expect("it can be run");
        if status.code() == Some(CANNOT_RUN) {
            crate::not_run("Verilator or the RTL's Python packages cannot be had (see above)");
            return;
        }
        assert!(status.success(), "{role}, {width} bits: {path:?}");
    }
}

/// A role in RTL.
pub struct Target<T: UnderTest> {
    /// Its folder in `dataplane/`.
    pub system: &'static str,
    /// Its name in `rtl/roles.py` there.
    pub role: &'static str,
    /// The registers, as the host's port has them.
    pub words: fn(&Registers<T>) -> Words,
    /// Whether packets with this verdict go to the group.
    pub is_to_group: fn(&T::Verdict) -> bool,
    /// The number of cases that it may fail. May only become smaller.
    pub unsupported_max: usize,
}

/// Makes the next random packet, and may change the registers.
pub type NextPacket<'a, T> = dyn FnMut(&mut Prng, &Registers<T>) -> (Vec<u8>, Arrival) + 'a;

impl<T: UnderTest> Target<T> {
    fn to(&self, verdict: T::Verdict) -> To {
        match verdict {
            _ if verdict == T::DROP => To::Nobody,
            _ if verdict == T::PASS => To::Host,
            _ if verdict == T::REPLY => To::Sender,
            _ if (self.is_to_group)(&verdict) => To::Group,
            _ => panic!("a block has no such output: {verdict:?}"),
        }
    }

    fn frame(&self, script: &mut Script, frame: &[u8], got: &Outcome<T::Verdict>) {
        script.frame(frame, self.to(got.verdict), &got.packet, got.reason);
    }

    /// Runs every case of the vectors that is not listed as unsupported.
    pub fn passes_every_vector<C: Case<System = T>>(&self) {
        let cases = cases::<C>(self.system);
        let names: Vec<&str> = cases.iter().map(Case::name).collect();
        let listed = unsupported(self.system, "rtl", self.role, &names);
        assert!(listed.len() <= self.unsupported_max, "it may only shrink");
        let mut script: Option<Script> = None;
        for case in cases.iter().filter(|case| !listed.contains(case.name())) {
            named(case.name(), || {
                let (role, partitions) = case.native();
                let script = script.get_or_insert_with(|| Script::new(partitions));
                let mut gate = Gate::of::<T::System>(None, partitions);
                let mut expected = case.prepare(role.registers());
                for at in 0..case.packets() {
                    script.note(format!("{}, packet {at}: {}", case.name(), case.why()));
                    case.before(at, role.registers());
                    script.set((self.words)(role.registers()));
                    let step = case.step(at, None);
                    let now_ns = step.arrival.now_ns;
                    script.ops.push(Op::Clock { now_ns });
                    let got = native::<T>(&mut gate, &role, &step.packet, step.arrival);
                    let right = (step.verdict, &*step.reason, &step.out);
                    assert_eq!((got.verdict, got.reason, &got.packet), right);
                    assert!(step.frame.is_none(), "no damaged frames");
                    let frame = udp_frame(step.arrival.from, HERE, &step.packet);
                    self.frame(script, &frame, &got);
                    case.check(at, role.registers(), &mut expected);
                    script.compare((self.words)(role.registers()));
                }
                script.compare_all((self.words)(role.registers()));
            });
        }
        let ops = script.expect("there are cases").ops;
        replay(self.system, self.role, "vectors", &ops);
        let (passed, total) = (cases.len() - listed.len(), cases.len());
        println!(
            "RTL {} {}: {passed} of {total} vectors",
            self.system, self.role
        );
    }

    /// Compares random packets with the native build. `next` makes them, and may change the registers as the host's
    /// process does; the clock only advances when it has. A long run must meet all reasons that begin with `prefix`,
    /// except those `elsewhere`.
    pub fn equals_the_native_build(
        &self,
        (native_role, partitions): (T::Role, usize),
        prefix: &str,
        elsewhere: &[&str],
        next: &mut NextPacket<'_, T>,
        clear: fn(&Registers<T>),
    ) {
        let seed = seed();
        eprintln!("INBAND_SEED={seed}");
        let registers = native_role.registers();
        let mut gate = Gate::of::<T::System>(None, partitions);
        let mut script = Script::new(partitions);
        let (prng, mut now_ns) = (&mut Prng(seed), 0);
        let (packets, must_meet) = packets();
        for number in 0..packets {
            script.note(format!("packet {number} of INBAND_SEED={seed}"));
            let before = (self.words)(registers);
            if number % RESTART_EVERY == 0 {
                clear(registers);
            }
            let (packet, arrival) = next(prng, registers);
            let after = (self.words)(registers);
            if after != before || number == 0 {
                if number > 0 {
                    script.compare(before);
                }
                script.set(after);
                now_ns = arrival.now_ns;
                script.ops.push(Op::Clock { now_ns });
            }
            let arrival = Arrival { now_ns, ..arrival };
            let got = native::<T>(&mut gate, &native_role, &packet, arrival);
            self.frame(&mut script, &udp_frame(arrival.from, HERE, &packet), &got);
            if number % COMPARE_EVERY == 0 {
                script.compare((self.words)(registers));
            }
        }
        script.compare_all((self.words)(registers));
        replay(self.system, self.role, "random", &script.ops);
        if must_meet {
            let met = script.reasons.keys().map(String::as_str).collect();
            let missing = missing::<T::System>(prefix, elsewhere, &met);
            assert!(missing.is_empty(), "not met: {missing:?}");
        }
    }
}
