//! Packet authentication: the keys of a cluster, the tags of packets, and the digests of values. docs/security.md says
//! what is protected and what is not.
//!
//! A sender signs a packet as the last step, and a receiver checks the tag as the first: in the kernel the XDP
//! programs, in user space a [`Gate`]. No other code handles keys.

use std::collections::BTreeMap;
use std::fmt;

use crate::c;
use crate::wire;
use crate::System;

/// Maximum number of keys that a host accepts at a time.
pub const KEYS_MAX: usize = c::IB_KEYS_MAX as usize;

/// A 128-bit key shared by the hosts of a cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// As two little-endian numbers, the form that SipHash takes.
    fn words(&self) -> [u64; 2] {
        let both = u128::from_le_bytes(self.0);
        [both as u64, (both >> 64) as u64]
    }
}

/// Why a set of keys was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// Key ids are 16 bits in packets; 0 means "none".
    #[error("key id 0 means \"no key\"; ids are 1 to 65535")]
    Zero,
    /// The id determines a key's slot, and two keys have the same.
    #[error("keys {0} and {1} cannot be used together: ids must differ modulo {KEYS_MAX}; number keys one after the other, and drop old ones")]
    Clash(u16, u16),
    /// The active key is missing.
    #[error("the active key {0} is not among the keys")]
    NoActive(u16),
}

/// The keys that a host accepts, and the one that it signs with.
#[derive(Clone, Copy)]
pub struct Keys {
    raw: c::ib_keys,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Keys {{ active: {}, ids: {:?} }}",
            self.active(),
            self.ids()
        )
    }
}

impl Keys {
    /// Accepts packets with any of `keys`, and signs with the key of id `active`.
    pub fn new(active: u16, keys: &[(u16, Secret)]) -> Result<Keys, KeysError> {
        let none = c::ib_key {
            id: 0,
            k0: 0,
            k1: 0,
        };
        let mut raw = c::ib_keys {
            active: u64::from(active),
            key: [none; KEYS_MAX],
        };
        for (id, secret) in keys {
            if *id == 0 {
                return Err(KeysError::Zero);
            }
            let place = &mut raw.key[usize::from(*id) % KEYS_MAX];
            if place.id != 0 {
                return Err(KeysError::Clash(place.id as u16, *id));
            }
            let [k0, k1] = secret.words();
            *place = c::ib_key {
                id: u64::from(*id),
                k0,
                k1,
            };
        }
        if !keys.iter().any(|(id, _)| *id == active) {
            return Err(KeysError::NoActive(active));
        }
        Ok(Keys { raw })
    }

    /// Id of the key that signs packets.
    pub fn active(&self) -> u16 {
        self.raw.active as u16
    }

    /// Ids of the accepted keys, ascending.
    pub fn ids(&self) -> Vec<u16> {
        let ids = self.raw.key.iter().map(|key| key.id as u16);
        let mut ids: Vec<u16> = ids.filter(|id| *id != 0).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the value for the map of the XDP programs.
    pub fn raw(&self) -> &c::ib_keys {
        &self.raw
    }

    /// Sets the key id and the tag of a packet (UDP payload).
    ///
    /// # Panics
    /// If the packet is shorter than a header.
    pub fn sign(&self, packet: &mut [u8]) {
        sign(Some(self), packet);
    }
}

/// For C: a null pointer means no keys.
pub fn raw(keys: Option<&Keys>) -> *const c::ib_keys {
    keys.map_or(std::ptr::null(), |keys| &raw const keys.raw)
}

/// Sets the key id and the tag of a packet (UDP payload). Without keys the tag is a checksum of the header.
///
/// # Panics
/// If the packet is shorter than a header.
pub fn sign(keys: Option<&Keys>, packet: &mut [u8]) {
    assert!(packet.len() >= wire::HEADER_LEN_BYTES, "a packet");
    // SAFETY: there is a whole header at the pointer, and the function touches nothing else.
    unsafe { c::ib_keys_sign(raw(keys), packet.as_mut_ptr()) };
}

/// Checks and signs packets between a host's socket and its roles and state machines. Without keys it detects only
/// accidental damage, not forgery.
#[derive(Debug, Clone)]
pub struct Gate {
    keys: Option<Keys>,
    check: fn(Option<&Keys>, &[u8], usize) -> u32,
    reason_name: fn(u32) -> Option<&'static str>,
    partitions: usize,
    dropped: BTreeMap<&'static str, u64>,
}

impl Gate {
    /// Returns the gate of a host of system `S` with this number of partitions (or the system's equivalent).
    pub fn of<S: System>(keys: Option<Keys>, partitions: usize) -> Gate {
        Gate {
            keys,
            check: S::check,
            reason_name: S::reason_name,
            partitions,
            dropped: BTreeMap::new(),
        }
    }

    /// Returns the keys, or `None` if packets are not authenticated.
    pub fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// Replaces the keys. Has no effect on a gate without keys: whether packets are authenticated is a property of the
    /// cluster.
    pub fn set_keys(&mut self, keys: Keys) {
        if self.keys.is_some() {
            self.keys = Some(keys);
        }
    }

    /// Returns whether to handle a received packet: it must be well-formed and have a valid tag. Otherwise counts the
    /// reason. The tag is checked last, so a packet dropped for any other reason was not authenticated.
    pub fn admits(&mut self, packet: &[u8]) -> bool {
        let reason = (self.check)(self.keys.as_ref(), packet, self.partitions);
        if reason == c::IB_R_none {
            return true;
        }
        let name = (self.reason_name)(reason).unwrap_or("bad_packet");
        *self.dropped.entry(name).or_default() += 1;
        false
    }

    /// Signs a packet; must be the last step before it is sent.
    pub fn sign(&self, packet: &mut [u8]) {
        sign(self.keys.as_ref(), packet);
    }

    /// Dropped packets by reason, without those that are zero.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.dropped.clone()
    }
}

/// How values are digested. The proposer computes the digest, it is carried and stored with the value, and every
/// consumer of the value checks it. With a key it also protects against forgery. The key must live as long as the
/// cluster's data, because votes and logs store digests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digest {
    key: Option<Secret>,
}

impl Digest {
    /// Cheap; detects accidental damage only.
    pub const PLAIN: Digest = Digest { key: None };

    /// Also protects against anyone who does not have the key.
    pub fn keyed(key: Secret) -> Digest {
        Digest { key: Some(key) }
    }

    pub fn of(&self, value: &[u8]) -> u64 {
        match &self.key {
            None => wire::digest(value),
            Some(key) => siphash(key, value),
        }
    }
}

fn siphash(key: &Secret, bytes: &[u8]) -> u64 {
    let [k0, k1] = key.words();
    // SAFETY: the function reads `bytes.len()` bytes at the pointer.
    unsafe { c::ib_siphash(k0, k1, bytes.as_ptr(), bytes.len() as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Secret = Secret([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

    /// Test vectors of the paper's reference implementation: the key above, inputs 0, 1, 2, ... of each length.
    #[test]
    fn siphash_is_the_one_of_the_paper() {
        let input: Vec<u8> = (0..64).collect();
        let expected = [
            (0, 0x726f_db47_dd0e_0e31),
            (1, 0x74f8_39c5_93dc_67fd),
            (7, 0xab02_00f5_8b01_d137),
            (8, 0x93f5_f579_9a93_2462),
            (15, 0xa129_ca61_49be_45e5),
            (63, 0x958a_324c_eb06_4572),
        ];
        for (len, digest) in expected {
            assert_eq!(siphash(&KEY, &input[..len]), digest, "length {len}");
        }
    }

    #[test]
    #[allow(deprecated)] // the standard library's own SipHash-2-4
    fn siphash_is_that_of_the_standard_library_at_any_length() {
        use std::hash::{Hasher, SipHasher};
        let [k0, k1] = KEY.words();
        let input: Vec<u8> = (0..wire::PACKET_LEN_MAX_BYTES).map(|i| i as u8).collect();
        for len in 0..input.len() {
            let mut theirs = SipHasher::new_with_keys(k0, k1);
            theirs.write(&input[..len]);
            assert_eq!(
                siphash(&KEY, &input[..len]),
                theirs.finish(),
                "length {len}"
            );
        }
    }

    #[test]
    fn a_checksum_notices_any_flipped_bit_and_the_length() {
        let value: Vec<u8> = (0..wire::VALUE_LEN_MAX_BYTES)
            .map(|i| (i * 7 + 1) as u8)
            .collect();
        let mut seen = std::collections::BTreeSet::new();
        for len in 0..=wire::VALUE_LEN_MAX_BYTES {
            assert!(seen.insert(wire::checksum(&value[..len])), "length {len}");
            assert!(
                len == 0 || seen.insert(wire::checksum(&vec![0; len])),
                "zeroes {len}"
            );
        }
        // From an independent implementation in Python.
        let theirs = [
            (0, 0),
            (1, 0x3509_f0c2),
            (3, 0xe14a_f0fe),
            (7, 0xeb2d_53ce),
            (8, 0x95ed_0f19),
            (31, 0x49bc_dbe8),
            (33, 0x1de2_a9c2),
            (127, 0x9aa0_9026),
            (1376, 0x0ff2_0ea1),
        ];
        for (len, checksum) in theirs {
            assert_eq!(wire::checksum(&value[..len]), checksum, "length {len}");
        }
        for len in [
            1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 32, 33, 64, 120, 121, 1375, 1376,
        ] {
            let right = wire::checksum(&value[..len]);
            for bit in 0..8 * len {
                let mut damaged = value[..len].to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(wire::checksum(&damaged), right, "bit {bit} of {len} bytes");
            }
        }
    }

    #[test]
    fn keys_that_cannot_be_are_refused() {
        assert_eq!(Keys::new(0, &[(0, KEY)]).unwrap_err(), KeysError::Zero);
        let clash = Keys::new(1, &[(1, KEY), (5, KEY)]);
        assert_eq!(clash.unwrap_err(), KeysError::Clash(1, 5));
        assert_eq!(
            Keys::new(2, &[(1, KEY)]).unwrap_err(),
            KeysError::NoActive(2)
        );
        let keys = Keys::new(5, &[(5, KEY), (4, KEY), (65_535, KEY)]).unwrap();
        assert_eq!((keys.active(), keys.ids()), (5, vec![4, 5, 65_535]));
        let shown = format!("{keys:?} {KEY:?}");
        assert!(!shown.contains("506"), "no key in a log: {shown}");
    }
}
