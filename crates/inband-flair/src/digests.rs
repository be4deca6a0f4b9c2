//! Digests of the key and the data in a packet. The packet's tag covers the digests instead of the bytes.
//!
//! Without a cluster key both are xxh3, which detects only accidental damage. With one they are SipHash-2-4 under the
//! digest key, so that an attacker on the path cannot put other bytes under the same tag.

use crate::dataplane::wire::NO_DATA_DIGEST;
use inband_ground::auth::Digest;

/// Computes digests. All hosts of a cluster must use the same.
#[derive(Debug, Clone, Copy, Default)]
pub struct Digests(Digest);

impl Digests {
    /// Creates the digests that the cluster's key file defines.
    pub fn new(digest: Digest) -> Digests {
        Digests(digest)
    }

    /// Returns the hash of a key. Its highest bits select the group.
    pub fn of_key(&self, key: &[u8]) -> u64 {
        self.0.of(key)
    }

    /// Returns the digest of data. Empty data has the digest that the switch writes, with or without a key; the tag
    /// covers the length too, which is in the header.
    pub fn of_data(&self, data: &[u8]) -> u64 {
        match data {
            [] => NO_DATA_DIGEST,
            data => self.0.of(data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::wire;
    use inband_ground::auth::Secret;

    #[test]
    fn a_key_changes_all_but_the_digest_of_nothing() {
        let (plain, keyed) = (
            Digests::default(),
            Digests::new(Digest::keyed(Secret([7; 16]))),
        );
        assert_eq!(plain.of_key(b"k"), wire::key_hash(b"k"));
        assert_eq!(plain.of_data(b"data"), wire::digest(b"data"));
        assert_ne!(keyed.of_key(b"k"), plain.of_key(b"k"));
        assert_ne!(keyed.of_data(b"data"), plain.of_data(b"data"));
        assert_eq!(keyed.of_data(b""), plain.of_data(b""));
        assert_eq!(plain.of_data(b""), wire::digest(b""));
    }
}
