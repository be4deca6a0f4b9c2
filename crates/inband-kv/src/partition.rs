//! Which partition a key belongs to: Redis Cluster's hash slot, modulo the number of partitions.
//!
//! A key's slot is `CRC16(key) mod 16384`, with the XMODEM CRC. If the key contains a `{` and a later `}` with
//! something between the first such pair, only the part between them is hashed: keys with the same *hash tag* are
//! always in one partition. The partition is `slot mod P`.

use crc::{Crc, CRC_16_XMODEM};

/// Hash slots, as in Redis Cluster.
pub const SLOTS: usize = 16384;

/// Most partitions; with more, a slot modulo their number distributes keys too unevenly.
pub const PARTITIONS_MAX: usize = 1024;

static CRC16: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

pub fn slot(key: &[u8]) -> usize {
    usize::from(CRC16.checksum(hashed_part(key))) % SLOTS
}

pub fn partition_of(key: &[u8], partitions: usize) -> usize {
    if partitions == 1 {
        return 0;
    }
    slot(key) % partitions
}

/// Returns how many logs a store with this many partitions needs: several partitions need an additional log for
/// cross-partition commands.
pub fn logs_of(partitions: usize) -> usize {
    if partitions == 1 {
        1
    } else {
        partitions + 1
    }
}

/// Returns the number of partitions for this many logs.
pub fn partitions_of_logs(logs: usize) -> usize {
    if logs > 2 {
        logs - 1
    } else {
        1
    }
}

/// Returns the hash tag, or the whole key if it has none.
fn hashed_part(key: &[u8]) -> &[u8] {
    let tag = key.iter().position(|b| *b == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|b| *b == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    tag.unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_as_redis_cluster_has_them() {
        // From the Redis Cluster specification and from CLUSTER KEYSLOT.
        assert_eq!(CRC16.checksum(b"123456789"), 0x31c3);
        for (key, expected) in [
            (&b"foo"[..], 12182),
            (b"bar", 5061),
            (b"hello", 866),
            (b"somekey", 11058),
            (b"foo{hash_tag}", 2515),
            (b"bar{hash_tag}", 2515),
            (b"", 0),
        ] {
            assert_eq!(slot(key), expected, "{:?}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn hash_tags() {
        for (key, part) in [
            (&b"{user1000}.following"[..], &b"user1000"[..]),
            (b"foo{}{bar}", b"foo{}{bar}"),
            (b"foo{{bar}}zap", b"{bar"),
            (b"foo{bar}{zap}", b"bar"),
            (b"foo}{bar}", b"bar"),
            (b"foo{bar", b"foo{bar"),
        ] {
            assert_eq!(hashed_part(key), part, "{:?}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn logs_and_partitions() {
        for (partitions, logs) in [(1, 1), (2, 3), (3, 4), (8, 9)] {
            assert_eq!(logs_of(partitions), logs);
            assert_eq!(partitions_of_logs(logs), partitions);
        }
        let mut counts = [0; 4];
        (0..4000).for_each(|i| counts[partition_of(format!("key:{i}").as_bytes(), 4)] += 1);
        assert!(counts.iter().all(|c| (900..1100).contains(c)), "{counts:?}");
    }
}
