//! One grammar for all systems: `inband up [kv|flair|falcon]`, and `inband status|kill|restart|down [--data DIR]`,
//! which detect from the directory which system its cluster belongs to. Each system has its own options, and therefore
//! its own commands (`inband flair up`); this module rewrites a command line into that form.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use inband_cluster::box_cluster::{BoxCluster, BoxCommand};
use inband_cluster::command::{ClusterCommand, Entry, Registered};
use inband_cluster::falcon::Falcon;
use inband_cluster::memory::{Memory, MemoryCommand};
use inband_cluster::netpaxos::NetPaxos;
use inband_cluster::socket::socket_in;
use inband_cluster::system::System;
use inband_host::program;

use crate::falcon::FalconCommand;
use crate::flair::FlairCommand;
use crate::up;

/// The systems besides the store. Register a new one here with its commands; one without commands of its own as
/// `&Entry::<ClusterCommand<NAME>>::new()`.
pub const SYSTEMS: &[&dyn Registered] = &[
    &Entry::<FlairCommand>::new(),
    &Entry::<FalconCommand>::new(),
    // Before memory, which would claim the directory of one node of either.
    &Entry::<BoxCommand>::new(),
    &Entry::<MemoryCommand>::new(),
    &Entry::<ClusterCommand<NetPaxos>>::new(),
];

/// The store: its commands are at the top level.
const STORE: &str = inband_cluster::paxos::COMMAND;
/// Commands for a running cluster.
const ABOUT_CLUSTERS: [&str; 8] = [
    "status", "kill", "restart", "pause", "resume", "link", REPLACE, "down",
];
const REPLACE: &str = "replace";
/// Changes the members of a store or a box.
const MEMBER: &str = "member";
/// What hosts do, again and again: of a box, or of Falcon.
const TOP: &str = "top";
/// Only a box has it.
const QUORUM: &str = "quorum";

/// The system with this name, except the store.
pub fn named(name: &str) -> Option<&'static dyn Registered> {
    let found = SYSTEMS.iter().find(|system| system.name() == name);
    found.copied()
}

/// Returns the system whose cluster is in a directory, judging by its files.
pub fn system_in(data: &Path) -> &'static str {
    let found = SYSTEMS.iter().find(|system| system.is_in(data));
    found.map_or(STORE, |system| system.name())
}

/// Returns the system whose cluster runs in its default directory; if there are several, the store.
pub fn system_that_runs() -> &'static str {
    let runs = |data: &Path| socket_in(data).exists();
    if runs(Path::new(up::DEFAULT_DATA)) {
        return STORE;
    }
    let found = SYSTEMS.iter().find(|system| runs(system.default_data()));
    found.map_or(STORE, |system| system.name())
}

/// Returns the companion program for a command, if the named system has no such command: `inband NAME WORD` is
/// `inband-NAME WORD`.
pub fn program_of(words: &[OsString]) -> Option<Vec<OsString>> {
    let word = |at: usize| words.get(at).and_then(|word| word.to_str());
    let (name, command) = (word(1)?, word(2)?);
    let system = named(name)?;
    let is_known = command.starts_with('-')
        || command == "help"
        || system.command().find_subcommand(command).is_some();
    let is_there = || program::find(&format!("{}-{name}", program::INBAND)).is_ok();
    (!is_known && is_there()).then(|| words[1..].to_vec())
}

/// Returns the command line in the form that the parser knows, and a note for users of a former name.
pub fn in_order(
    words: Vec<OsString>,
    system_in: fn(&Path) -> &'static str,
    system_that_runs: fn() -> &'static str,
) -> (Vec<OsString>, Option<String>) {
    let word = |at: usize| words.get(at).and_then(|word| word.to_str()).unwrap_or("");
    let is_system = |word: &str| word == STORE || named(word).is_some();
    // A command and its arguments, after the system's name unless that is the store.
    let of_system = |system: &str, command: &str, from: usize| {
        let mut ordered: Vec<OsString> = words[..1].to_vec();
        if system != STORE {
            ordered.push(system.into());
        }
        ordered.push(command.into());
        ordered.extend_from_slice(&words[from..]);
        ordered
    };
    let system_meant = || match data_of(&words) {
        Some(data) => system_in(&data),
        None if words.iter().any(|word| is_option(word, "--config")) => STORE,
        None => system_that_runs(),
    };
    match (word(1), word(2)) {
        (QUORUM, _) => (of_system(BoxCluster::COMMAND, QUORUM, 2), None),
        (MEMBER, _) if system_meant() == BoxCluster::COMMAND => {
            (of_system(BoxCluster::COMMAND, MEMBER, 2), None)
        }
        (TOP, _) => {
            let system = match system_meant() {
                Falcon::COMMAND => Falcon::COMMAND,
                // It says what is missing if there is no box either.
                _ => BoxCluster::COMMAND,
            };
            (of_system(system, TOP, 2), None)
        }
        ("up", system) if is_system(system) => (of_system(system, "up", 3), None),
        (command, _) if ABOUT_CLUSTERS.contains(&command) => {
            let system = system_meant();
            // The store has its own `inband member replace`, so a bare `replace` is for a memory cluster; the command
            // reports it if none is running.
            let system = match (command, system) {
                (REPLACE, STORE) => Memory::COMMAND,
                _ => system,
            };
            (of_system(system, command, 2), None)
        }
        (system, command)
            if named(system).is_some()
                && (command == "up" || ABOUT_CLUSTERS.contains(&command)) =>
        {
            let now = match command {
                "up" => format!("inband up {system}"),
                _ => format!("inband {command} [--data DIR]"),
            };
            let note = format!(
                "note: `inband {system} {command}` is now `{now}`; the old form goes away with the next version"
            );
            // Not for the background process of --detach, whose parent has printed it, and not with JSON output, which
            // programs read.
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

/// Returns the directory given with `--data`.
fn data_of(words: &[OsString]) -> Option<PathBuf> {
    let at = words.iter().position(|word| is_option(word, "--data"))?;
    match words[at].to_str()?.split_once('=') {
        Some((_, data)) => Some(data.into()),
        None => words.get(at + 1).map(PathBuf::from),
    }
}
