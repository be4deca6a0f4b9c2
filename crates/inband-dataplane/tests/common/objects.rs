//! Compiled programs by name.
#![allow(dead_code, missing_docs)]

use std::path::Path;

type Objects = &'static [(&'static str, &'static [u8])];

/// The folders of `dataplane/` and their programs.
const FOLDERS: [(&str, Objects); 8] = [
    ("ground/xdp", inband_ground::objects::ALL),
    ("paxos", inband_paxos::dataplane::objects::ALL),
    ("flair", inband_flair::dataplane::objects::ALL),
    ("falcon", inband_falcon::dataplane::objects::ALL),
    ("sequencer", inband_sequencer::objects::ALL),
    ("memory", inband_memory::objects::ALL),
    ("box", inband_box::objects::ALL),
    ("netpaxos", inband_netpaxos::objects::ALL),
];

/// The program with this name, of the ground or of any system; the first one if there are several.
pub fn object(name: &str) -> &'static [u8] {
    let mut all = FOLDERS.into_iter().flat_map(|(_, objects)| objects);
    let found = all.find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no program {name}")).1
}

/// Name prefixes of sources used only for measurements and tests, and definition prefixes of such variants.
const NOT_LOADED: [&str; 2] = ["bench", "race"];
const NOT_LOADED_WITH: [&str; 3] = ["IB_RACE_", "IB_MUTANT_", "IB_GIVEN_"];

/// Every program that a host may load: folder and name. This is a list because the source folders are not available
/// where other kernels are tested; `tests/verifier.rs` compares it with the folders.
pub const LOADED: [(&str, &str); 25] = [
    ("box", "box"),
    ("box", "box_direct"),
    ("box", "box_gets"),
    ("box", "copies"),
    ("falcon", "falcon"),
    ("flair", "flair"),
    ("ground/xdp", "bare"),
    ("ground/xdp", "generic"),
    ("ground/xdp", "lost"),
    ("ground/xdp", "trial"),
    ("memory", "copies"),
    ("memory", "server"),
    ("memory", "switch"),
    ("netpaxos", "copies"),
    ("netpaxos", "minion"),
    ("netpaxos", "serializer"),
    ("paxos", "acceptor"),
    ("paxos", "acceptor_alone"),
    ("paxos", "copies"),
    ("paxos", "dispatch"),
    ("paxos", "leader"),
    ("paxos", "leader_alone"),
    ("paxos", "quorum"),
    ("paxos", "quorum_alone"),
    ("sequencer", "sequencer"),
];

/// The program with this name in a folder.
pub fn object_in(folder: &str, name: &str) -> &'static [u8] {
    let objects = FOLDERS.into_iter().find(|(known, _)| *known == folder);
    let (_, objects) = objects.unwrap_or_else(|| panic!("no folder {folder}"));
    let found = objects.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no program {name}")).1
}

/// The correct contents of [`LOADED`], determined from the sources.
pub fn in_folders() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dataplane");
    let mut loaded = Vec::new();
    for entry in std::fs::read_dir(&root).unwrap() {
        let entry = entry.unwrap();
        let folder = entry.file_name().into_string().unwrap();
        match folder.as_str() {
            _ if entry.path().is_file() => {}
            "ground" => programs_in(&root, "ground/xdp", &mut loaded),
            _ => programs_in(&root, &folder, &mut loaded),
        }
    }
    loaded.sort();
    loaded
}

fn programs_in(root: &Path, folder: &str, loaded: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(root.join(folder)).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some(name) = file.strip_suffix(".bpf.c") else {
            continue;
        };
        if NOT_LOADED.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        loaded.push((folder.to_owned(), name.to_owned()));
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let variant = line.strip_prefix("/* variant: ");
            let Some(variant) = variant.and_then(|v| v.strip_suffix(" */")) else {
                continue;
            };
            let (name, definitions) = variant.split_once(' ').unwrap();
            let is_test = |definition: &str| {
                let mut prefixes = NOT_LOADED_WITH.iter();
                prefixes.any(|prefix| definition.starts_with(prefix))
            };
            if !definitions.split(' ').any(is_test) {
                loaded.push((folder.to_owned(), name.to_owned()));
            }
        }
    }
}
