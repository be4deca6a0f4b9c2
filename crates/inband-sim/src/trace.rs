//! The hash over everything that happens, by which two runs are compared.

/// A mixing step of good quality; equal on every machine.
pub fn mix(hash: u64, word: u64) -> u64 {
    let z = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (z ^ z >> 29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        .rotate_left(27)
}
