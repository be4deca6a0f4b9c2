//! Checks that the structs as clang laid them out for BPF (from the object's BTF) match those in Rust.

use std::collections::BTreeMap;
use std::mem::offset_of;

use crate::common::objects::object;

/// Bindings for all systems.
mod c {
    pub use inband_falcon::dataplane::c::*;
    pub use inband_flair::dataplane::c::*;
    pub use inband_paxos::dataplane::c::*;
}

use libbpf_rs::btf::types::{MemberAttr, Struct};
use libbpf_rs::btf::Btf;
use libbpf_rs::HasSize as _;

/// Byte offsets of the members by name, and the size of the struct.
type Layout = (BTreeMap<String, usize>, usize);

fn in_object(btf: &Btf<'_>, name: &str) -> Layout {
    let found: Struct<'_> = btf
        .type_by_name(name)
        .unwrap_or_else(|| panic!("no {name} in the object"));
    let members = found.iter().map(|member| {
        let MemberAttr::Normal { offset } = member.attr else {
            panic!("{name} has bit fields")
        };
        (
            member.name.unwrap().to_string_lossy().into_owned(),
            offset as usize / 8,
        )
    });
    (members.collect(), found.size())
}

macro_rules! in_rust {
    ($type:ty: $($field:ident $(as $name:literal)?),*) => {{
        let mut members = BTreeMap::new();
        $(
            #[allow(unused_mut, unused_assignments)]
            let mut name = stringify!($field);
            $(name = $name;)?
            members.insert(name.to_owned(), offset_of!($type, $field));
        )*
        (members, size_of::<$type>())
    }};
}

#[test]
fn the_kernel_and_rust_see_the_same_structs() {
    let acceptor = Btf::from_raw("acceptor", object("acceptor"))
        .unwrap()
        .unwrap();
    let leader = Btf::from_raw("leader", object("leader")).unwrap().unwrap();
    let quorum = Btf::from_raw("quorum", object("quorum")).unwrap().unwrap();
    let copies = Btf::from_raw("copies", object("copies")).unwrap().unwrap();
    let race = Btf::from_raw("race", object("race")).unwrap().unwrap();
    let flair = Btf::from_raw("flair", object("flair")).unwrap().unwrap();
    let falcon = Btf::from_raw("falcon", object("falcon")).unwrap().unwrap();
    let structs: [(&Btf<'_>, &str, Layout); 23] = [
        (
            &acceptor,
            "ib_acceptor_regs",
            in_rust!(c::ib_acceptor_regs: promise, floor, highest, epoch, voting, reserved),
        ),
        (
            &acceptor,
            "ib_vote",
            in_rust!(c::ib_vote: instance, promise, vround, digest, client_id, client_seq,
                client_low, value_len_bytes, flags, checksum),
        ),
        (
            &acceptor,
            "ib_slot",
            in_rust!(c::ib_slot: sequence, vote, value),
        ),
        (&acceptor, "ib_tail", in_rust!(c::ib_tail: value)),
        (
            &leader,
            "ib_leader_regs",
            in_rust!(c::ib_leader_regs: round, next, floor, epoch, reserved),
        ),
        (
            &quorum,
            "ib_quorum_config",
            in_rust!(c::ib_quorum_config: epoch, majority, member_bit),
        ),
        (
            &quorum,
            "ib_count",
            in_rust!(c::ib_count: instance, epoch, round, digest, members, done),
        ),
        (
            &quorum,
            "ib_count_slot",
            in_rust!(c::ib_count_slot: sequence, count, reserved),
        ),
        (
            &acceptor,
            "ib_settings",
            in_rust!(c::ib_settings: node, partitions, address, loop_ifindex, generic, port,
                authenticated),
        ),
        (
            &acceptor,
            "ib_paxos_settings",
            in_rust!(c::ib_paxos_settings: ring_slots, reserved),
        ),
        (
            &flair,
            "ib_flair_settings",
            in_rust!(c::ib_flair_settings: incarnation, groups, reserved),
        ),
        (
            &copies,
            "ib_member",
            in_rust!(c::ib_member: known, ifindex, to_address, from_address, to_port, from_port,
                to_mac, from_mac),
        ),
        (
            &copies,
            "ib_group",
            in_rust!(c::ib_group: count, has_local, local, member),
        ),
        (
            &flair,
            "ib_flair_session",
            in_rust!(c::ib_flair_session: sequence, session, log_index, weights, step_down_ns,
                deadline_ns, route, reserved, seq, replied, reserved_too),
        ),
        (
            &flair,
            "ib_flair_group",
            in_rust!(c::ib_flair_group: sequence, session, seq, stable, log_index, followers,
                reserved),
        ),
        (
            &falcon,
            "ib_falcon_config",
            in_rust!(c::ib_falcon_config: policy, slots_log2, workers, user_tasks_max,
                locality_wait_ns, incarnation),
        ),
        (
            &falcon,
            "ib_falcon_set",
            in_rust!(c::ib_falcon_set: queue, waiting, turn, given, woken, reserved, user_tasks),
        ),
        (
            &falcon,
            "ib_falcon_slot",
            in_rust!(c::ib_falcon_slot: sequence, came_ns, task, reserved),
        ),
        (
            &falcon,
            "ib_falcon_worker",
            in_rust!(c::ib_falcon_worker: parked, incarnation, resources, turn),
        ),
        (
            &falcon,
            "ib_falcon_executor",
            in_rust!(c::ib_falcon_executor: sequence, pull_seq, state, address, task),
        ),
        (&leader, "ib_key", in_rust!(c::ib_key: id, k0, k1)),
        (&leader, "ib_keys", in_rust!(c::ib_keys: active, key)),
        (
            &race,
            "ib_paxos_header",
            in_rust!(c::ib_paxos_header: magic, version, type_ as "type", flags, partition, node,
                value_len_bytes, key_id, epoch, checksum, instance, floor, round, vround,
                client_id, client_seq, client_low, digest, tag),
        ),
    ];
    for (btf, name, rust) in structs {
        assert_eq!(in_object(btf, name), rust, "{name}");
    }
}
