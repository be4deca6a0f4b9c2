//! The packet vectors of `dataplane/paxos/vectors/` through the native roles and, as real frames, through
//! the XDP programs.

use crate::common;
use std::collections::BTreeSet;

use crate::common::vectors::{cases, roles_of, run, GEOMETRY};
use crate::common::Kernel;
use inband_ground::auth::Gate;
use inband_ground::System as _;
use inband_paxos::dataplane::soft::SoftSwitch;
use inband_paxos::dataplane::Paxos;
use inband_testing::vector::{keys_of, named};

/// Reasons that a single packet cannot trigger, and the test that does.
const ELSEWHERE: [(&str, &str); 8] = [
    ("none", "is no reason"),
    ("contended", "tests/race.rs: needs two CPUs at one slot"),
    (
        "no_room",
        "a frame that cannot shrink: no driver is known to refuse",
    ),
    (
        "value_io_failed",
        "a driver without room behind the frame: no test run is like that",
    ),
    (
        "copy_unresolved",
        "tests/network.rs: copies leave by a device",
    ),
    ("tag_removed", "a gate's: tests of inband-gate"),
    ("tag_made", "a gate's: tests of inband-gate"),
    ("frame_refused", "a gate's: tests of inband-gate"),
];

#[test]
fn every_vector_runs_natively() {
    for (name, case) in cases() {
        named(&name, || {
            let mut switch = SoftSwitch::new(common::NODE, roles_of(&case.roles), GEOMETRY);
            // Either all steps of a case have this or none, so the first one decides.
            switch.set_hand_off_fails(case.packet.iter().any(|step| step.hand_off_fails));
            let mut gate = Gate::of::<inband_paxos::dataplane::Paxos>(
                keys_of(&case.keys),
                GEOMETRY.partitions,
            );
            run(&case, switch.registers(), false, &mut |_, packet| {
                common::native_behind(&mut gate, &switch, packet)
            });
        });
    }
}

#[test]
fn every_vector_runs_in_the_kernel() {
    if !common::may_load_bpf() {
        return;
    }
    for (name, case) in cases() {
        named(&name, || {
            let kernel = Kernel::load_with_keys(
                roles_of(&case.roles),
                GEOMETRY,
                keys_of(&case.keys).as_ref(),
            );
            run(&case, kernel.registers(), true, &mut |step, packet| {
                if step.hand_off_fails {
                    kernel.fill_ring_buffer(&case.before.members);
                }
                match &step.frame {
                    None => kernel.handle(packet),
                    Some(damage) => kernel.handle_frame(&damage.of(kernel.frame(packet)), packet),
                }
            });
        });
    }
}

#[test]
fn every_reason_has_a_vector_or_an_exception() {
    inband_testing::vector::reasons_are_known::<Paxos>("paxos");
    let shown: BTreeSet<String> = cases()
        .into_iter()
        .flat_map(|(_, case)| case.packet)
        .map(|step| step.reason)
        .collect();
    let all = Paxos::reasons().map(str::to_owned);
    let all: BTreeSet<String> = all.collect();
    let excused: BTreeSet<String> = ELSEWHERE
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let missing: Vec<_> = all
        .iter()
        .filter(|r| !shown.contains(*r) && !excused.contains(*r))
        .collect();
    assert!(missing.is_empty(), "no vector shows {missing:?}");
    let needless: Vec<_> = excused.iter().filter(|r| shown.contains(*r)).collect();
    assert!(needless.is_empty(), "{needless:?} need no exception");
    assert!(excused.is_subset(&all));
}
