//! Compares the verifier's figures of this machine's kernel, for every program in every mode, with
//! `dataplane/verifier.toml`, so that large changes of instructions or stack are noticed. `tests/kernels.rs` does this
//! for other kernels.

#[path = "common/verifier.rs"]
mod figures;

use std::collections::BTreeMap;

use figures::{
    cases, hold_to_record, measure, running_release, stack_bytes, Figures, OfKernel, Record,
    VERIFIED_INSNS_MAX,
};

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
    for case in cases() {
        match measure(&case) {
            Ok(figures) => drop(now.program.insert(case.name, figures)),
            Err(reason) => refused.push(format!("{}: {reason}", case.name)),
        }
    }
    assert!(refused.is_empty(), "refused:\n{}", refused.join("\n"));
    let name = now.series();
    if let Err(jumps) = hold_to_record(&name, now, false) {
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
    let jumped = |release, now| recorded.jumps("6.18", "clang 19", &of(release, now)).len();
    assert_eq!(jumped("6.18.50", figures(1100, 192)), 0);
    assert_eq!(jumped("6.18.50", figures(1101, 128)), 1);
    assert_eq!(jumped("6.18.50", figures(1101, 193)), 2);
    assert_eq!(jumped("6.19.1", figures(1101, 128)), 0);
    assert_eq!(jumped("6.19.1", figures(2001, 128)), 1);
    assert_eq!(stack_bytes("x\nstack depth 96+8\n"), 104);
    assert_eq!(stack_bytes("stack depth max 104\n"), 104);

    // The limit is absolute, with or without a record.
    let large = of("6.18.50", figures(VERIFIED_INSNS_MAX + 1, 128));
    assert_eq!(recorded.jumps("6.18", "clang 19", &large).len(), 2);
    assert_eq!(recorded.jumps("7.3", "clang 19", &large).len(), 1);
}

/// The list includes every program that a host may load.
#[test]
fn the_programs_are_those_of_the_folders() {
    let listed = figures::objects::LOADED.map(|(folder, name)| (folder.into(), name.into()));
    assert_eq!(Vec::from(listed), figures::objects::in_folders());
}
