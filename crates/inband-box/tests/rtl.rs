//! The node in RTL (`dataplane/box/rtl`) against the packet vectors and, with random packets, against the native build.

use crate::common::{role, Tested};
use crate::equal::Life;
use crate::vectors::Case;
use inband_box::c::IB_BOX_TO_OTHERS;
use inband_box::registers::Registers;
use inband_box::GROUPS;
use inband_testing::frame::tag;
use inband_testing::role::Sequence;
use inband_testing::rtl::Target;
use inband_testing::script::Words;

/// `node`, or `direct`: with direct links, by which its bench (`links_bench.py`) sends the same packets.
const fn node_in_rtl(role: &'static str) -> Target<Tested> {
    Target {
        system: "box",
        role,
        words,
        is_to_group: |verdict| *verdict == IB_BOX_TO_OTHERS,
        unsupported_max: 0,
    }
}
/// Words of a line of registers.
const LINE: usize = 8;

/// Locks are only in memory, so the block has none.
fn words(registers: &Registers) -> Words {
    let mut all = registers.words().into_iter().map(|(_, words)| words);
    let mut node = all.next().expect("the node");
    node[0] = 0;
    let slots: Vec<Vec<u64>> = all.collect();
    let value = |slot: &Vec<u64>| {
        let len_bytes = slot[6] as u32 as usize;
        let bytes: Vec<u8> = slot[8..].iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes[..len_bytes].to_vec()
    };
    Words {
        values: slots.iter().map(value).collect(),
        spaces: [
            node.chunks(LINE).map(<[u64]>::to_vec).collect(),
            slots.iter().map(|slot| slot[1..LINE].to_vec()).collect(),
            Vec::new(),
        ],
    }
}

fn equals_the_native_build(role_in_rtl: &'static str) {
    let mut life = Life::default();
    node_in_rtl(role_in_rtl).equals_the_native_build(
        (role(), GROUPS),
        "box_",
        &[],
        &mut |random, registers| {
            let (mut packet, arrival) = life.packet(&random.record(), [registers, registers]);
            tag(&mut packet);
            // Some are damaged on the way.
            if random.below(40) == 0 {
                let at = random.below(packet.len() as u64) as usize;
                packet[at] ^= 1 << random.below(8);
            }
            (packet, arrival)
        },
        Registers::restart,
    );
}

#[test]
fn the_node_in_rtl_passes_every_vector() {
    node_in_rtl("node").passes_every_vector::<Case>();
}

#[test]
fn the_node_in_rtl_equals_the_native_build() {
    equals_the_native_build("node");
}

#[test]
fn the_node_in_rtl_with_direct_links_passes_every_vector() {
    node_in_rtl("direct").passes_every_vector::<Case>();
}

#[test]
fn the_node_in_rtl_with_direct_links_equals_the_native_build() {
    equals_the_native_build("direct");
}
