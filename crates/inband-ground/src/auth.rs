//! Packet authentication: the keys of a cluster, the tags of packets, the digests of values. What is
//! protected, and what is not, is in docs/security.md.
//!
//! Whoever sends packets signs them last, and whoever receives some checks them first: XDP programs
//! in the kernel, a [`Gate`] in user space. What lies between knows of no keys.

use std::collections::BTreeMap;
use std::fmt;

use crate::c;
use crate::wire;
use crate::System;

/// Keys that a host accepts at once, at most.
pub const KEYS_MAX: usize = c::IB_KEYS_MAX as usize;

/// 128 bits that only a cluster's own hosts know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// As two little-endian numbers, as SipHash takes it.
    fn words(&self) -> [u64; 2] {
        let both = u128::from_le_bytes(self.0);
        [both as u64, (both >> 64) as u64]
    }
}

/// Why keys were not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// Ids are in packets, 16 bits, and 0 means "none".
    #[error("key id 0 means \"no key\"; ids are 1 to 65535")]
    Zero,
    /// The place of a key follows from its id.
    #[error("keys {0} and {1} cannot be used together: ids must differ modulo {KEYS_MAX}; number keys one after the other, and drop old ones")]
    Clash(u16, u16),
    /// Nothing to send with.
    #[error("the active key {0} is not among the keys")]
    NoActive(u16),
}

/// The keys that a host accepts, and the one it sends with.
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
    /// Accept packets with these keys, send with the one of id `active`.
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

    /// Id of the key that packets are sent with.
    pub fn active(&self) -> u16 {
        self.raw.active as u16
    }

    /// Ids of the keys that are accepted, ascending.
    pub fn ids(&self) -> Vec<u16> {
        let ids = self.raw.key.iter().map(|key| key.id as u16);
        let mut ids: Vec<u16> = ids.filter(|id| *id != 0).collect();
        ids.sort_unstable();
        ids
    }

    /// The map value of the XDP programs.
    pub fn raw(&self) -> &c::ib_keys {
        &self.raw
    }

    /// Set key id and tag of a packet (UDP payload).
    ///
    /// # Panics
    /// If it is shorter than a header.
    pub fn sign(&self, packet: &mut [u8]) {
        sign(Some(self), packet);
    }
}

/// For C: NULL says that there are none.
pub fn raw(keys: Option<&Keys>) -> *const c::ib_keys {
    keys.map_or(std::ptr::null(), |keys| &raw const keys.raw)
}

/// Set key id and tag of a packet (UDP payload). Without keys the tag is a checksum of the header.
///
/// # Panics
/// If it is shorter than a header.
pub fn sign(keys: Option<&Keys>, packet: &mut [u8]) {
    assert!(packet.len() >= wire::HEADER_LEN_BYTES, "a packet");
    // SAFETY: there is a whole header at the pointer, and the function touches nothing else.
    unsafe { c::ib_keys_sign(raw(keys), packet.as_mut_ptr()) };
}

/// What stands between a host's socket and its roles and state machines. Without keys it keeps out
/// what was damaged on the way, not what was forged.
#[derive(Debug, Clone)]
pub struct Gate {
    keys: Option<Keys>,
    check: fn(Option<&Keys>, &[u8], usize) -> u32,
    reason_name: fn(u32) -> Option<&'static str>,
    partitions: usize,
    dropped: BTreeMap<&'static str, u64>,
}

impl Gate {
    /// Of a host of system `S` that has so many partitions, or what else it has several of.
    pub fn of<S: System>(keys: Option<Keys>, partitions: usize) -> Gate {
        Gate {
            keys,
            check: S::check,
            reason_name: S::reason_name,
            partitions,
            dropped: BTreeMap::new(),
        }
    }

    /// The keys, if packets are authenticated.
    pub fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    /// How many partitions it was made with.
    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// Other keys from now on. A gate without keys stays without: that is the cluster's to say.
    pub fn set_keys(&mut self, keys: Keys) {
        if self.keys.is_some() {
            self.keys = Some(keys);
        }
    }

    /// May a packet that was received be handled? Only if it is whole and its tag is right; any other is counted under the
    /// reason's name. The tag is checked last, so a packet with any other reason was not authenticated.
    pub fn admits(&mut self, packet: &[u8]) -> bool {
        let reason = (self.check)(self.keys.as_ref(), packet, self.partitions);
        if reason == c::IB_R_none {
            return true;
        }
        let name = (self.reason_name)(reason).unwrap_or("bad_packet");
        *self.dropped.entry(name).or_default() += 1;
        false
    }

    /// Make a packet ready to leave.
    pub fn sign(&self, packet: &mut [u8]) {
        sign(self.keys.as_ref(), packet);
    }

    /// Packets dropped, by the name of the reason; those that are not zero.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.dropped.clone()
    }
}

/// How values are digested. Made once by the proposer, carried and stored with the value, checked by
/// whoever consumes it. With a key it holds against forgers as well as against damage; the key lives
/// as long as the cluster's data, since votes and logs keep digests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digest {
    key: Option<Secret>,
}

impl Digest {
    /// Against damage on the way only, and cheap.
    pub const PLAIN: Digest = Digest { key: None };

    /// Also against whoever does not have the key.
    pub fn keyed(key: Secret) -> Digest {
        Digest { key: Some(key) }
    }

    /// The digest of a value.
    pub fn of(&self, value: &[u8]) -> u64 {
        match &self.key {
            None => wire::digest(value),
            Some(key) => siphash(key, value),
        }
    }
}

/// SipHash-2-4.
fn siphash(key: &Secret, bytes: &[u8]) -> u64 {
    let [k0, k1] = key.words();
    // SAFETY: the function reads `bytes.len()` bytes at the pointer.
    unsafe { c::ib_siphash(k0, k1, bytes.as_ptr(), bytes.len() as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Secret = Secret([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

    /// From the paper's reference implementation: the key above, inputs 0, 1, 2, ... of each length.
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
        // Of a second implementation, in Python.
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
