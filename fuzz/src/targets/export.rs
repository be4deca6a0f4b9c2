//! Export files: any file is read or refused; no key of a block with a wrong hash is returned, and a file that is read
//! to its end is complete.

use inband_kv::export::{block_hash, BLOCK, END, MAGIC};
use inband_kv::import::{read, ImportError};
use xxhash_rust::xxh3::Xxh3;

use crate::input::Input;

/// First byte even: a raw file. Odd: blocks with correct hashes.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.byte() % 2 {
        0 => drop(read_all(input.rest())),
        _ => hashed(&mut input),
    }
}

fn read_all(file: &[u8]) -> Result<u64, ImportError> {
    let mut keys = 0;
    let summary = read(file, &mut |key| {
        keys += 1;
        assert!(key.key.len() + key.value.len() <= file.len());
        Ok(())
    })?;
    assert_eq!((summary.keys, summary.len_bytes), (keys, file.len() as u64));
    Ok(keys)
}

/// Blocks that state their number of records, and a total number of keys at the end.
fn hashed(input: &mut Input<'_>) {
    let mut file = MAGIC.to_vec();
    file.extend_from_slice(&[0; 16]);
    let (mut keys, mut hashes) = (0u64, Xxh3::new());
    for _ in 0..input.below(4) {
        let count = input.below(8) as u32;
        let len_bytes = input.below(256);
        let records = input.piece(len_bytes);
        let mut header = [BLOCK; 9];
        header[1..5].copy_from_slice(&count.to_be_bytes());
        header[5..].copy_from_slice(&(records.len() as u32).to_be_bytes());
        let hash = block_hash(&header, records);
        hashes.update(&hash.to_be_bytes());
        file.extend_from_slice(&header);
        file.extend_from_slice(records);
        file.extend_from_slice(&hash.to_be_bytes());
        keys += u64::from(count);
    }
    file.push(END);
    file.extend_from_slice(&keys.to_be_bytes());
    file.extend_from_slice(&hashes.digest().to_be_bytes());
    if let Ok(read) = read_all(&file) {
        assert_eq!(read, keys);
    }
    let damaged = input.below(1 << 16) % file.len();
    file[damaged] ^= 1 << (input.byte() % 8);
    // The origin of the data is not checked: nothing depends on it.
    let is_where_from = (8..24).contains(&damaged);
    assert!(
        is_where_from || read_all(&file).is_err(),
        "damage at {damaged} is not seen"
    );
}
