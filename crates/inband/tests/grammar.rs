//! Which system a command line is for.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use inband_program::grammar::{in_order, with_help_last};

fn in_words(
    line: &str,
    running: fn() -> Vec<&'static str>,
) -> Result<(String, Option<String>), String> {
    let words = line.split(' ').map(OsString::from).collect();
    let there = |data: &Path| match data.to_str() {
        Some("f") => "flair",
        Some("q") => "falcon",
        _ => "kv",
    };
    let (words, note) = in_order(words, there, running).map_err(|error| error.to_string())?;
    let words = words.join(OsStr::new(" ")).into_string().expect("text");
    Ok((words, note))
}

fn ordered(line: &str, running: fn() -> Vec<&'static str>) -> (String, bool) {
    let (words, note) = in_words(line, running).expect("it is clear");
    (words, note.is_some())
}

#[test]
fn a_command_is_of_the_system_that_it_names_or_finds() {
    for (line, expected) in [
        ("inband up", "inband up"),
        ("inband up --detach", "inband up --detach"),
        ("inband up kv --detach", "inband up --detach"),
        ("inband up flair --detach", "inband flair up --detach"),
        ("inband up falcon", "inband falcon up"),
        ("inband status --data f", "inband flair status --data f"),
        (
            "inband status --json --data=q",
            "inband falcon status --json --data=q",
        ),
        ("inband kill leader --data x", "inband kill leader --data x"),
        (
            "inband kill leader --data f",
            "inband flair kill leader --data f",
        ),
        (
            "inband pause leader --data f",
            "inband flair pause leader --data f",
        ),
        (
            "inband resume leader --data x",
            "inband resume leader --data x",
        ),
        ("inband status --config c", "inband status --config c"),
        ("inband down", "inband flair down"),
        ("inband member list", "inband member list"),
        (
            "inband replace server/1 --data x",
            "inband memory replace server/1 --data x",
        ),
        ("inband quorum all", "inband box quorum all"),
        ("inband top --data q", "inband falcon top --data q"),
        ("inband top --count 1", "inband box top --count 1"),
        ("inband", "inband"),
    ] {
        assert_eq!(
            ordered(line, || vec!["flair"]),
            (expected.into(), false),
            "{line}"
        );
    }
    assert_eq!(ordered("inband down", || vec!["kv"]).0, "inband down");
    let line = "inband member remove node/4";
    assert_eq!(ordered(line, || vec!["kv"]).0, line);
    let expected = "inband box member remove node/4";
    assert_eq!(ordered(line, || vec!["box"]).0, expected);
    assert_eq!(
        ordered("inband replace server/1", || vec!["kv"]).0,
        "inband memory replace server/1"
    );
}

#[test]
fn help_may_come_first() {
    for (line, expected) in [
        ("inband help up flair", "inband flair up --help"),
        ("inband help up", "inband up --help"),
        ("inband help sim", "inband sim --help"),
        ("inband help", "inband help"),
    ] {
        let words = line.split(' ').map(OsString::from).collect();
        let words = with_help_last(words).join(OsStr::new(" "));
        let line = words.into_string().expect("text");
        assert_eq!(ordered(&line, Vec::new).0, expected);
    }
}

#[test]
fn former_names_are_understood_with_a_note() {
    for line in [
        "inband flair up",
        "inband flair kill leader",
        "inband falcon down --data q",
    ] {
        assert_eq!(ordered(line, || vec!["kv"]), (line.into(), true));
    }
    for line in [
        "inband flair status --json",
        "inband flair up --detached",
        "inband flair run --config c",
        "inband falcon submit -- ls",
    ] {
        assert_eq!(ordered(line, || vec!["kv"]), (line.into(), false));
    }
}

#[test]
fn the_note_about_a_former_name_names_the_directory() {
    for (line, now) in [
        ("inband flair status", "inband status --data .inband-flair"),
        ("inband falcon down --data q", "inband down --data q"),
        ("inband flair up", "inband up flair"),
    ] {
        let (_, note) = in_words(line, Vec::new).expect("it is clear");
        let note = note.expect("a note");
        assert!(note.contains(&format!("is now `{now}`;")), "{note}");
    }
}

#[test]
fn one_of_several_clusters_must_be_named() {
    let several = || vec!["kv", "flair", "box"];
    for line in ["inband status", "inband kill leader", "inband down --json"] {
        let why = in_words(line, several).expect_err("which?");
        for data in [".inband (kv)", ".inband-flair (flair)", ".inband-box (box)"] {
            assert!(why.contains(&format!("--data {data}")), "{line}: {why}");
        }
    }
    let why = in_words("inband member list", several).expect_err("which?");
    assert!(why.contains("(kv)") && why.contains("(box)"), "{why}");
    assert!(!why.contains("flair"), "it has no members: {why}");
    for (line, expected) in [
        ("inband down --data f", "inband flair down --data f"),
        ("inband top", "inband box top"),
        ("inband quorum all", "inband box quorum all"),
        ("inband replace server/1", "inband memory replace server/1"),
        ("inband status --config c", "inband status --config c"),
        ("inband up", "inband up"),
        ("inband kill --help", "inband kill --help"),
        ("inband status flair --json", "inband flair status --json"),
        ("inband kill kv leader", "inband kill leader"),
    ] {
        assert_eq!(ordered(line, several), (expected.into(), false), "{line}");
    }
}

#[test]
fn what_is_no_system_is_not_started_and_the_systems_are_named() {
    let why = in_words("inband up nosuch --detach", Vec::new).expect_err("nothing");
    for name in [
        "\"nosuch\"",
        "kv",
        "flair",
        "falcon",
        "box",
        "memory",
        "netpaxos",
    ] {
        assert!(why.contains(name), "{why}");
    }
}
