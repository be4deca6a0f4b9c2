//! Records of an acceptor's journal: whatever they contain, they are refused or fit the registers.

use inband_paxos::dataplane::soft::{Geometry, Registers, Roles};
use inband_paxos::journal::Restored;

use crate::input::Input;

const GEOMETRY: Geometry = Geometry {
    partitions: 2,
    ring_slots: 64,
};

/// Records, each preceded by its length.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut restored = Restored::default();
    while !input.is_empty() {
        let len_bytes = input.below(1 << 16);
        if restored.replay(input.piece(len_bytes)).is_none() {
            return;
        }
    }
    if restored.check(GEOMETRY).is_ok() {
        let roles = Roles {
            acceptor: true,
            ..Roles::default()
        };
        let registers = Registers::new(GEOMETRY, roles);
        restored.install(GEOMETRY, &registers);
        for partition in 0..GEOMETRY.partitions {
            let epoch = registers.acceptor.acceptor(partition).epoch;
            assert!(epoch <= restored.epoch());
        }
    }
}
