//! One grammar for all systems: `inband up [kv|flair|falcon]`, and `inband status|kill|restart|down [--data DIR]`, which find
//! out from the directory which system its cluster is of. Each system has its own options, and so its own commands
//! (`inband flair up`); here the words of a command line are put into that order.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use inband_cluster::socket::socket_in;

use crate::{falcon, up};

/// Commands about a cluster that runs.
const ABOUT_CLUSTERS: [&str; 4] = ["status", "kill", "restart", "down"];

/// A kind of cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    Kv,
    Flair,
    Falcon,
}

impl System {
    const ALL: [System; 3] = [System::Kv, System::Flair, System::Falcon];

    fn name(self) -> &'static str {
        match self {
            System::Kv => "kv",
            System::Flair => "flair",
            System::Falcon => "falcon",
        }
    }

    fn named(name: &OsStr) -> Option<System> {
        System::ALL.into_iter().find(|system| system.name() == name)
    }

    fn default_data(self) -> &'static Path {
        Path::new(match self {
            System::Kv => up::DEFAULT_DATA,
            System::Flair => inband_cluster::flair::DEFAULT_DATA,
            System::Falcon => falcon::DEFAULT_DATA,
        })
    }
}

/// Which system's cluster a directory holds, as far as its files tell.
pub fn system_in(data: &Path) -> System {
    if inband_cluster::flair::record::is_in(data) {
        System::Flair
    } else if falcon::is_in(data) {
        System::Falcon
    } else {
        System::Kv
    }
}

/// The system whose cluster runs in its default directory; of several, the store's.
pub fn system_that_runs() -> System {
    let runs = |system: &System| socket_in(system.default_data()).exists();
    System::ALL.into_iter().find(runs).unwrap_or(System::Kv)
}

/// A command line in the order that the parser knows, and what to tell who has used a former name.
pub fn in_order(
    words: Vec<OsString>,
    system_in: fn(&Path) -> System,
    system_that_runs: fn() -> System,
) -> (Vec<OsString>, Option<String>) {
    let word = |at: usize| words.get(at).and_then(|word| word.to_str()).unwrap_or("");
    let moved = |from: usize, system: System| {
        let mut rest = words.clone();
        rest.drain(1..from);
        match system {
            System::Kv => {}
            _ => rest.insert(1, system.name().into()),
        }
        rest
    };
    match (word(1), word(2)) {
        ("up", system) => match System::named(OsStr::new(system)) {
            Some(system) => {
                let mut rest = moved(2, system);
                let at = if system == System::Kv { 1 } else { 2 };
                rest[at] = "up".into();
                (rest, None)
            }
            None => (words, None),
        },
        (command, _) if ABOUT_CLUSTERS.contains(&command) => {
            let system = match data_of(&words) {
                Some(data) => system_in(&data),
                None if words.iter().any(|word| is_option(word, "--config")) => System::Kv,
                None => system_that_runs(),
            };
            (moved(1, system), None)
        }
        (system @ ("flair" | "falcon"), command)
            if command == "up" || ABOUT_CLUSTERS.contains(&command) =>
        {
            let now = match command {
                "up" => format!("inband up {system}"),
                _ => format!("inband {command} [--data DIR]"),
            };
            let note = format!(
                "note: `inband {system} {command}` is now `{now}`; the old form goes away with the next version"
            );
            // What runs in the background has been told at its start; JSON is for programs.
            let is_quiet = |word: &OsString| word == "--detached" || word == "--json";
            let note = (!words.iter().any(is_quiet)).then_some(note);
            (words, note)
        }
        _ => (words, None),
    }
}

fn is_option(word: &OsStr, option: &str) -> bool {
    let word = word.to_str().unwrap_or("");
    word == option
        || word
            .strip_prefix(option)
            .is_some_and(|rest| rest.starts_with('='))
}

/// The directory that `--data` names.
fn data_of(words: &[OsString]) -> Option<PathBuf> {
    let at = words.iter().position(|word| is_option(word, "--data"))?;
    match words[at].to_str()?.split_once('=') {
        Some((_, data)) => Some(data.into()),
        None => words.get(at + 1).map(PathBuf::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(line: &str, running: fn() -> System) -> (String, bool) {
        let words = line.split(' ').map(OsString::from).collect();
        let there = |data: &Path| match data.to_str() {
            Some("f") => System::Flair,
            Some("q") => System::Falcon,
            _ => System::Kv,
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
            ("inband status --config c", "inband status --config c"),
            ("inband down", "inband flair down"),
            ("inband member list", "inband member list"),
            ("inband", "inband"),
        ] {
            assert_eq!(
                ordered(line, || System::Flair),
                (expected.into(), false),
                "{line}"
            );
        }
        assert_eq!(ordered("inband down", || System::Kv).0, "inband down");
    }

    #[test]
    fn former_names_are_understood_with_a_note() {
        for line in [
            "inband flair up",
            "inband flair kill leader",
            "inband falcon down --data q",
        ] {
            assert_eq!(ordered(line, || System::Kv), (line.into(), true));
        }
        for line in [
            "inband flair status --json",
            "inband flair up --detached",
            "inband flair run --config c",
            "inband falcon submit -- ls",
        ] {
            assert_eq!(ordered(line, || System::Kv), (line.into(), false));
        }
    }
}
