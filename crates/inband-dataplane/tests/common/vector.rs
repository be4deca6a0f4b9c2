//! What the packet vectors of every protocol have in common.

use std::fs;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use inband_ground::auth::{Keys, Secret};
use serde::Deserialize;

/// To a UDP payload, or to the whole frame around it.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Damage {
    /// Keep so many bytes.
    cut: Option<usize>,
    /// Append so many zero bytes.
    pad: usize,
    /// (offset, value)
    bytes: Vec<(usize, u8)>,
}

impl Damage {
    /// What is left of the bytes.
    pub fn of(&self, mut packet: Vec<u8>) -> Vec<u8> {
        for (at, byte) in &self.bytes {
            packet[*at] = *byte;
        }
        if let Some(len) = self.cut {
            packet.truncate(len);
        }
        packet.resize(packet.len() + self.pad, 0);
        packet
    }
}

/// The keys of these ids, the last of them active: a key is its id, 16 times.
pub fn keys_of(ids: &[u16]) -> Option<Keys> {
    let keys: Vec<_> = ids
        .iter()
        .map(|id| (*id, Secret([*id as u8; 16])))
        .collect();
    let active = *ids.last()?;
    Some(Keys::new(active, &keys).unwrap())
}

/// "text", or "x*20" for twenty x.
pub fn value_of(text: &str) -> Vec<u8> {
    match text.split_once('*') {
        Some((unit, times)) => unit.repeat(times.parse().unwrap()).into_bytes(),
        None => text.as_bytes().to_vec(),
    }
}

/// The files of `dataplane/SYSTEM/vectors/`: name and text.
pub fn files(system: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dataplane");
    let folder = root.join(system).join("vectors");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    paths.sort();
    let stem = |path: &PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
    let files: Vec<_> = paths
        .iter()
        .map(|path| (stem(path), fs::read_to_string(path).unwrap()))
        .collect();
    assert!(!files.is_empty());
    files
}

/// Run a case and name it if it fails.
pub fn named(name: &str, run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        panic!("vector failed: {name}");
    }
}
