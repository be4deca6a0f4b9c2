//! Which system a command line is for.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use inband_program::grammar::in_order;

fn ordered(line: &str, running: fn() -> &'static str) -> (String, bool) {
    let words = line.split(' ').map(OsString::from).collect();
    let there = |data: &Path| match data.to_str() {
        Some("f") => "flair",
        Some("q") => "falcon",
        _ => "kv",
    };
    let (words, note) = in_order(words, there, running);
    (
        words.join(OsStr::new(" ")).into_string().expect("text"),
        note.is_some(),
    )
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
            ordered(line, || "flair"),
            (expected.into(), false),
            "{line}"
        );
    }
    assert_eq!(ordered("inband down", || "kv").0, "inband down");
    let line = "inband member remove node/4";
    assert_eq!(ordered(line, || "kv").0, line);
    let expected = "inband box member remove node/4";
    assert_eq!(ordered(line, || "box").0, expected);
    assert_eq!(
        ordered("inband replace server/1", || "kv").0,
        "inband memory replace server/1"
    );
}

#[test]
fn former_names_are_understood_with_a_note() {
    for line in [
        "inband flair up",
        "inband flair kill leader",
        "inband falcon down --data q",
    ] {
        assert_eq!(ordered(line, || "kv"), (line.into(), true));
    }
    for line in [
        "inband flair status --json",
        "inband flair up --detached",
        "inband flair run --config c",
        "inband falcon submit -- ls",
    ] {
        assert_eq!(ordered(line, || "kv"), (line.into(), false));
    }
}
