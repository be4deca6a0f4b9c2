//! Paxos in the data plane: packets, registers, the soft switch and the XDP programs of its roles
//! (`dataplane/paxos`).

// Calls into the native roles, registers shared with packet programs, BPF maps.
#![allow(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

inband_ground::bindings!("paxos");

pub mod bench;
pub mod registers;
pub mod round;
pub mod soft;
pub mod wire;
pub mod xdp;

inband_ground::system!(
    /// Its partitions are those of the cluster.
    Paxos,
    c::ib_paxos_keys_check,
    c::ib_paxos_reason_name
);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use inband_ground::auth::{Gate, Keys, Secret};
    use inband_ground::System as _;

    use super::wire::{emit, Header, Type, HEADER_LEN_BYTES};
    use super::{c, Paxos};

    const KEY: Secret = Secret([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

    fn packet(header: &Header) -> Vec<u8> {
        let mut packet = Vec::new();
        emit(header, b"value", &mut packet);
        packet
    }

    #[test]
    fn a_gate_admits_what_a_key_of_its_own_has_signed_and_nothing_else() {
        let other = Secret([7; 16]);
        let keys = Keys::new(2, &[(1, other), (2, KEY)]).unwrap();
        let mut gate = Gate::of::<Paxos>(Some(keys), 4);
        let header = Header::new(Type::Phase2A, 9, 3);
        let unsigned = packet(&header);
        assert!(!gate.admits(&unsigned));
        let mut signed = unsigned.clone();
        gate.sign(&mut signed);
        assert!(gate.admits(&signed));
        let mut older = unsigned.clone();
        Keys::new(1, &[(1, other)]).unwrap().sign(&mut older);
        assert!(gate.admits(&older));
        let mut unknown = unsigned.clone();
        Keys::new(3, &[(3, KEY)]).unwrap().sign(&mut unknown);
        assert!(!gate.admits(&unknown));
        assert_eq!(gate.counters(), BTreeMap::from([("bad_key", 2)]));
        // A flipped bit anywhere in the header. Damage that makes it an invalid packet is detected before the tag is
        // checked.
        let mut dropped = 0;
        for bit in 0..8 * HEADER_LEN_BYTES {
            let mut forged = signed.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            let reason = Paxos::check(Some(&keys), &forged, 4);
            assert_ne!(reason, c::IB_R_none, "bit {bit}");
            dropped += u64::from(reason == c::IB_R_bad_tag);
            assert!(!gate.admits(&forged), "bit {bit}");
        }
        assert_eq!(gate.counters()["bad_tag"], dropped);
        assert!(dropped > 500, "{dropped}");
    }

    #[test]
    fn a_gate_without_keys_keeps_damage_out() {
        let mut open = Gate::of::<Paxos>(None, 4);
        let mut whole = packet(&Header::new(Type::Phase2A, 9, 3));
        assert!(!open.admits(&whole), "no tag");
        open.sign(&mut whole);
        assert!(open.admits(&whole));
        let mut keyed = whole.clone();
        Keys::new(1, &[(1, KEY)]).unwrap().sign(&mut keyed);
        assert!(!open.admits(&keyed), "of a cluster with a key");
        for bit in 0..8 * HEADER_LEN_BYTES {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Paxos::check(None, &damaged, 4), c::IB_R_none, "bit {bit}");
            // And two bits of a byte.
            damaged[bit / 8] ^= 1 << ((bit + 3) % 8);
            assert_ne!(Paxos::check(None, &damaged, 4), c::IB_R_none, "bits {bit}");
        }
    }
}
