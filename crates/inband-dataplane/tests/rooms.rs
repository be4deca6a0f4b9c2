//! Checks that number spaces shared by all systems have no collisions: reasons and message types. The systems are the
//! folders of `dataplane/`.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use inband_falcon::dataplane::wire as falcon;
use inband_flair::dataplane::wire as flair;
use inband_ground::c;
use inband_paxos::dataplane::wire as paxos;

const PER_SYSTEM: u32 = 64;

fn folder_of(system: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../dataplane");
    root.join(system)
}

/// The folders of `dataplane/`, without the ground's.
fn systems() -> Vec<(String, PathBuf)> {
    let folders = fs::read_dir(folder_of(""))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let folders = folders.filter(|path| path.is_dir() && !path.ends_with("ground"));
    let mut systems: Vec<_> = folders
        .map(|path| {
            (
                path.file_name().unwrap().to_string_lossy().into_owned(),
                path,
            )
        })
        .collect();
    systems.sort();
    assert!(systems.len() >= 3, "{systems:?}");
    systems
}

#[test]
fn every_system_has_a_range_of_reasons_of_its_own() {
    let mut ranges: BTreeMap<u32, String> = BTreeMap::from([(0, "ground".to_owned())]);
    for (system, folder) in systems() {
        let header = fs::read_to_string(folder.join("reasons.h")).unwrap();
        let label = format!("#define IB_{}_REASONS_FIRST ", system.to_uppercase());
        let first = header.lines().find_map(|line| line.strip_prefix(&label));
        let first: u32 = first
            .unwrap_or_else(|| panic!("{system}: no {label}"))
            .trim()
            .parse()
            .unwrap();
        assert_eq!(first % PER_SYSTEM, 0, "{system}");
        let other = ranges.insert(first, system.clone());
        assert_eq!(other, None, "{system} has the range of another");
    }
}

/// The names in a header's `X(...)` list.
fn names_in(header: &std::path::Path) -> Vec<String> {
    let text = fs::read_to_string(header).unwrap();
    let lists = text.split(" X(").skip(1);
    let names = lists.map(|rest| rest.split(')').next().unwrap().to_owned());
    names.collect()
}

#[test]
fn every_reason_has_a_name_of_its_own() {
    let mut taken: BTreeMap<String, String> = BTreeMap::new();
    let ground = ("ground".to_owned(), folder_of("ground").join("verdict.h"));
    let systems = systems().into_iter();
    let headers = systems.map(|(system, folder)| (system, folder.join("reasons.h")));
    for (system, header) in headers.chain([ground]) {
        let names = names_in(&header);
        assert!(names.len() > 3, "{system}");
        for name in names {
            let other = taken.insert(name.clone(), system.clone());
            assert_eq!(other, None, "{system}: {name} is taken");
        }
    }
}

/// The numbers of the enum `ib_<system>_type`.
fn types(system: &str, folder: &std::path::Path) -> Range<u32> {
    let header = fs::read_to_string(folder.join("wire.h")).unwrap();
    let start = format!("enum ib_{system}_type {{");
    let body = header
        .split(&start)
        .nth(1)
        .unwrap_or_else(|| panic!("{system}: no {start}"));
    let body = body.split("};").next().unwrap();
    let numbers = body.split('=').skip(1).map(|rest| {
        let number = rest
            .trim()
            .split(|c: char| !c.is_ascii_digit())
            .next()
            .unwrap();
        number.parse().unwrap()
    });
    let numbers: Vec<u32> = numbers.collect();
    let (first, last) = (numbers.iter().min().unwrap(), numbers.iter().max().unwrap());
    *first..*last + 1
}

#[test]
fn a_packet_of_one_system_is_of_no_type_of_another() {
    let mut packet = Vec::new();
    let header = flair::Header::new(flair::Type::Write, 1, 9);
    flair::emit(&header, b"key", b"data", &mut packet);
    assert_eq!(paxos::parse(&packet), Err(paxos::ParseError::Type(33)));
    assert_eq!(
        falcon::parse(&packet).unwrap_err(),
        falcon::ParseError::Type(33)
    );
}

#[test]
fn every_system_has_message_types_of_its_own() {
    let mut taken: BTreeMap<u32, String> = BTreeMap::new();
    for (system, folder) in systems() {
        for number in types(&system, &folder) {
            let other = taken.insert(number, system.clone());
            assert_eq!(other, None, "{system}: type {number} is taken");
            assert!(
                number < c::IB_TYPES_MAX,
                "{system}: type {number} is beyond the maps of types"
            );
        }
    }
    assert!(!taken.contains_key(&0), "no type is 0");
}
