//! Compares the verifier's figures of this machine's kernel, for every program in every mode, with
//! `dataplane/verifier.toml`, so that large changes of instructions or stack are noticed. `tests/kernels.rs` does this
//! for other kernels.

#[path = "common/verifier.rs"]
mod figures;

use std::collections::{BTreeMap, BTreeSet};

use libbpf_rs::ObjectBuilder;

use figures::{
    cases, hold_to_record, measure, running_release, stack_bytes, Figures, Modes, OfKernel, Record,
    VERIFIED_INSNS_MAX,
};

/// How much more than in the short form a program may be walked in other modes.
const SHORT_FORM_MAX_PERCENT: u64 = 5;

#[test]
fn what_the_verifier_says_does_not_jump_unnoticed() {
    if !inband_testing::frame::may_load_bpf() {
        return;
    }
    let mut now = OfKernel {
        release: running_release(),
        program: BTreeMap::new(),
    };
    let mut refused = Vec::new();
    for case in cases(Modes::All) {
        match measure(&case) {
            Ok(figures) => drop(now.program.insert(case.name, figures)),
            Err(reason) => refused.push(format!("{}: {reason}", case.name)),
        }
    }
    assert!(refused.is_empty(), "refused:\n{}", refused.join("\n"));
    let name = now.series();
    if let Err(jumps) = hold_to_record(&name, now, Modes::All, false) {
        panic!("{jumps}");
    }
}

#[test]
fn a_jump_is_noticed() {
    let figures = |verified_insns, stack_bytes| Figures {
        verified_insns,
        insns: 100,
        stack_bytes,
    };
    let of = |release: &str, figures| OfKernel {
        release: release.into(),
        program: BTreeMap::from([("leader".to_owned(), figures)]),
    };
    let recorded = Record {
        compiler: "clang 19".into(),
        kernel: BTreeMap::from([("6.18".to_owned(), of("6.18.44-x", figures(1000, 128)))]),
    };
    let again: Record = toml::from_str(&recorded.text()).unwrap();
    assert_eq!(again, recorded);
    let jumped = |release, now| {
        let now = of(release, now);
        recorded.jumps("6.18", "clang 19", &now, Modes::All).len()
    };
    assert_eq!(jumped("6.18.50", figures(1100, 192)), 0);
    assert_eq!(jumped("6.18.50", figures(1101, 128)), 1);
    assert_eq!(jumped("6.18.50", figures(1101, 193)), 2);
    assert_eq!(jumped("6.19.1", figures(1101, 128)), 0);
    assert_eq!(jumped("6.19.1", figures(2001, 128)), 1);
    assert_eq!(stack_bytes("x\nstack depth 96+8\n"), 104);
    assert_eq!(stack_bytes("stack depth max 104\n"), 104);

    // The limit is absolute, with or without a record.
    let large = of("6.18.50", figures(VERIFIED_INSNS_MAX + 1, 128));
    let jumps = |kernel| recorded.jumps(kernel, "clang 19", &large, Modes::All).len();
    assert_eq!((jumps("6.18"), jumps("7.3")), (2, 1));
}

/// What `make test` leaves out on other kernels gives their verifiers less work than what it tries.
#[test]
fn the_short_form_has_the_most_work_of_every_program() {
    let short: BTreeSet<String> = names(Modes::Short);
    let all = names(Modes::All);
    assert!(short.len() < all.len() / 2 && short.is_subset(&all));
    let record = Record::read();
    let most = |kernel: &OfKernel, program: &str, modes: &BTreeSet<String>| {
        let of_program = modes.iter().filter(|name| program_of(name) == program);
        let walked = of_program.filter_map(|name| kernel.program.get(name));
        walked.map(|figures| figures.verified_insns).max()
    };
    for (name, kernel) in &record.kernel {
        for program in all.iter().map(|name| program_of(name)) {
            let (least, most) = (most(kernel, program, &short), most(kernel, program, &all));
            let least = least.map(|insns| insns + insns * SHORT_FORM_MAX_PERCENT / 100);
            assert!(least >= most, "{name}: {program}: {least:?} of {most:?}");
        }
    }
}

fn names(modes: Modes) -> BTreeSet<String> {
    cases(modes).into_iter().map(|case| case.name).collect()
}

/// The program that a case loads.
fn program_of(case: &str) -> &str {
    let end = case.find("-native").or(case.find("-generic"));
    &case[..end.unwrap_or(case.len())]
}

/// What is checked here is what the crates of the systems build and hosts load.
#[test]
fn programs_are_built_as_in_the_crates_of_their_systems() {
    let in_crates = [
        ("ground", inband_ground::objects::ALL),
        ("paxos", inband_paxos::dataplane::objects::ALL),
        ("flair", inband_flair::dataplane::objects::ALL),
        ("falcon", inband_falcon::dataplane::objects::ALL),
    ];
    for (folder, objects) in in_crates {
        let here = figures::modes::LOADED.iter();
        let here: Vec<_> = here.filter(|program| program.folder == folder).collect();
        assert!(!here.is_empty(), "{folder}");
        for program in here {
            let object = objects.iter().find(|(name, _)| *name == program.name);
            let (name, object) = object.expect("it is built there too");
            let (there, here) = (instructions(object), instructions(program.object));
            assert!(!here.is_empty() && there == here, "{folder}/{name} differs");
        }
    }
}

/// The functions of an object, by name; its debug information depends on the place where it was compiled.
fn instructions(object: &[u8]) -> Vec<(String, Vec<u8>)> {
    let object = ObjectBuilder::default().open_memory(object).unwrap();
    let code = object.progs().map(|program| {
        let name = program.name().to_string_lossy().into_owned();
        let instructions = program.insns().iter().flat_map(|insn| {
            let registers = insn.dst_reg() | insn.src_reg() << 4;
            let (offset, immediate) = (insn.off.to_le_bytes(), insn.imm.to_le_bytes());
            [&[insn.code, registers][..], &offset, &immediate].concat()
        });
        (name, instructions.collect())
    });
    code.collect()
}
