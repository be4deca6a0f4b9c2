//! The lines that clients use, and their contents. Few lines are in use at a time, and they are replaced every few
//! seconds, so that a line is checked in milliseconds. A value fills its line in such a way that a torn line is not a
//! value.

use inband_memory::lines::{CHUNK_LINES, LINE_LEN_BYTES};

/// Chunks in use at a time. They are consecutive, so some share a block's counter of writes.
const CHUNKS: u64 = 3;
/// Lines in use of each chunk: few, so that clients collide, and not adjacent.
const LINES: [usize; 4] = [0, 1, 7, CHUNK_LINES - 1];
/// How long a chunk is used.
const CHUNK_FOR_NS: u64 = 5_000_000_000;

const WORD_LEN_BYTES: usize = 8;
/// Consecutive words of a line differ by this.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

pub type Line = [u8; LINE_LEN_BYTES];

/// Chunks change at different times. Past the end of the memory, the first ones are used again.
fn chunk(index: u64, window: u64, chunks: u64) -> u64 {
    (window * CHUNKS + index) % chunks
}

fn window(index: u64, now_ns: u64) -> u64 {
    (now_ns + CHUNK_FOR_NS / CHUNKS * index) / CHUNK_FOR_NS
}

/// Returns a random number below `count`, but 0 in every second case: most defects show where clients collide most
/// often.
fn hot(random: u64, count: u64) -> u64 {
    (random / 2 % count) * (random % 2)
}

/// Picks one of the chunks in use.
pub fn one(random: u64, now_ns: u64, chunks: u64) -> u64 {
    let index = hot(random, CHUNKS);
    chunk(index, window(index, now_ns), chunks)
}

/// Picks some of the lines in use of a chunk, at least one. Returns a bitmap.
pub fn some(random: u64, most: usize) -> u16 {
    let count = 1 + (random >> 32) as usize % most;
    let first = hot(random, LINES.len() as u64) as usize;
    let lines = LINES.iter().cycle().skip(first).take(count);
    lines.fold(0, |all, line| all | 1 << line)
}

/// Returns all lines in use of a chunk.
pub fn all() -> u16 {
    LINES.iter().fold(0, |all, line| all | 1 << line)
}

/// Returns all chunks that were ever in use.
pub fn chunks_until(now_ns: u64, chunks: u64) -> Vec<u64> {
    let of = |index| {
        let windows = window(index, 0)..=window(index, now_ns);
        windows.map(move |window| chunk(index, window, chunks))
    };
    let mut all: Vec<u64> = (0..CHUNKS).flat_map(of).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns a line's name in the history.
pub fn name(chunk: u64, line: usize) -> String {
    format!("line{}", chunk * CHUNK_LINES as u64 + line as u64)
}

/// Returns a line full of a value, which is not 0.
pub fn stored(value: u64) -> Line {
    let mut line = [0; LINE_LEN_BYTES];
    for (n, word) in (0..).zip(line.chunks_exact_mut(WORD_LEN_BYTES)) {
        word.copy_from_slice(&value.wrapping_add(STEP.wrapping_mul(n)).to_le_bytes());
    }
    line
}

/// Returns the value that fills a line; `None` is zeros. Content that is not a value is returned unchanged, and equals
/// no written value.
pub fn value_of(line: &Line) -> Option<String> {
    if *line == [0; LINE_LEN_BYTES] {
        return None;
    }
    let value = line
        .first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word));
    if stored(value) == *line {
        return Some(value.to_string());
    }
    let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("torn:{hex}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_line_is_one_value_or_none() {
        assert_eq!(value_of(&[0; LINE_LEN_BYTES]), None);
        for value in [1, 77_001, u64::MAX] {
            assert_eq!(value_of(&stored(value)), Some(value.to_string()));
        }
        let mut torn = stored(1_001);
        torn[32..].copy_from_slice(&stored(2_001)[32..]);
        assert!(value_of(&torn).is_some_and(|text| text.starts_with("torn:")));
    }

    #[test]
    fn every_chunk_in_use_is_among_all() {
        for chunks in [7, 4_096] {
            let all = chunks_until(20_000_000_000, chunks);
            for now_ns in (0..20_000_000_000).step_by(100_000_000) {
                for random in 0..2 * CHUNKS {
                    assert!(all.contains(&one(random, now_ns, chunks)));
                }
            }
        }
        assert_ne!(one(3, 0, 4_096), one(3, CHUNK_FOR_NS, 4_096));
    }

    #[test]
    fn vectors_have_lines_in_use_and_of_all_sizes() {
        let mut rng = inband_sim::Rng::new(1, 0);
        let mut draw = |most| some(rng.next_u64(), most);
        let vectors: Vec<u16> = (0..64).map(|_| draw(LINES.len())).collect();
        assert!(vectors.iter().all(|lines| lines & !all() == 0));
        let sizes: BTreeSet<u32> = vectors.iter().map(|lines| lines.count_ones()).collect();
        assert_eq!(sizes, BTreeSet::from([1, 2, 3, 4]));
        assert!((0..64).all(|_| draw(1).count_ones() == 1));
    }
}
