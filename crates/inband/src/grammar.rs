//! One grammar for all systems: `inband up [kv|flair|falcon]`, and `inband status|kill|restart|down [--data DIR]`,
//! which detect from the directory which system its cluster belongs to. Each system has its own options, and therefore
//! its own commands (`inband flair up`); this module rewrites a command line into that form.

use std::ffi::{OsStr, OsString};
use std::iter;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use inband_cluster::box_cluster::{BoxCluster, BoxCommand};
use inband_cluster::command::{ClusterCommand, Entry, Registered};
use inband_cluster::falcon::Falcon;
use inband_cluster::memory::{Memory, MemoryCommand};
use inband_cluster::netpaxos::NetPaxos;
use inband_cluster::socket::socket_in;
use inband_cluster::system::System;
use inband_host::output::quoted;
use inband_host::{program, system_file};

use crate::companions;
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

/// Returns the directory in which `inband up SYSTEM` starts a cluster.
pub fn default_data(system: &str) -> &'static Path {
    let system = named(system).map(|system| system.default_data());
    system.unwrap_or(Path::new(up::DEFAULT_DATA))
}

/// Returns the systems whose clusters run in their default directories.
pub fn systems_that_run() -> Vec<&'static str> {
    let all = iter::once(STORE).chain(SYSTEMS.iter().map(|system| system.name()));
    // The socket of a supervisor that was killed is still there.
    let runs = |system: &&str| UnixStream::connect(socket_in(default_data(system))).is_ok();
    all.filter(runs).collect()
}

/// Why a command line is for no system.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// To take any of them would kill or stop another one than is meant.
    #[error("clusters of several systems run in this directory; choose one: {}", one_of(.systems))]
    SeveralRun { systems: Vec<&'static str> },
    #[error("{name:?} is not a system; `inband up` starts {STORE}, {}", names())]
    NoSystem { name: String },
}

fn one_of(systems: &[&str]) -> String {
    let data = |system: &&str| format!("--data {} ({system})", default_data(system).display());
    let all: Vec<String> = systems.iter().map(data).collect();
    all.join(", or ")
}

fn names() -> String {
    let all: Vec<&str> = SYSTEMS.iter().map(|system| system.name()).collect();
    all.join(", ")
}

/// Returns the only one of these systems, or the store if there is none.
pub fn only(systems: Vec<&'static str>) -> Result<&'static str, GrammarError> {
    match systems[..] {
        [] => Ok(STORE),
        [system] => Ok(system),
        _ => Err(GrammarError::SeveralRun { systems }),
    }
}

/// The commands that only some systems have, for the end of `inband --help`.
pub fn help() -> String {
    format!(
        "Also for running clusters:\n  {TOP:<12} Show what each host does, again and again: of a box, or of Falcon\n  \
         {QUORUM:<12} Change the quorum of a box; `inband status` shows it\n  \
         {REPLACE:<12} Replace a server of a memory\n"
    )
}

/// Returns whether a system has a command for running clusters.
fn has_command(system: &str, command: &str) -> bool {
    match named(system) {
        Some(system) => system.command().find_subcommand(command).is_some(),
        None => command == MEMBER || ABOUT_CLUSTERS.contains(&command) && command != REPLACE,
    }
}

/// `inband help up flair` is `inband up flair --help`: also for commands of companion programs.
pub fn with_help_last(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.len() > 2 && words[1] == "help" {
        words.remove(1);
        words.push("--help".into());
    }
    words
}

/// Returns the companion program for a command, if the named system has no such command: `inband NAME WORD` is
/// `inband-NAME WORD`. A system of one process is only a program: `inband up NAME` is `inband-NAME up`, and `inband status
/// --data DIR` is `inband-NAME status --data DIR` in its directory.
pub fn program_of(words: &[OsString]) -> Option<Vec<OsString>> {
    let word = |at: usize| words.get(at).and_then(|word| word.to_str());
    let (name, command) = (word(1)?, word(2)?);
    let is_there = |name: &str| program::find(&format!("{}-{name}", program::INBAND)).is_ok();
    let of_process = |system: &str, rest: usize| {
        let is_process = !is_system(system) && !companions::is_tool(system) && is_there(system);
        let words = [system.into(), name.into()]
            .into_iter()
            .chain(words[rest..].iter().cloned());
        is_process.then(|| words.collect())
    };
    if name == "up" && is_name(command) {
        return of_process(command, 3);
    }
    if ABOUT_CLUSTERS.contains(&name) {
        let system = system_file::read(&data_of(words)?).ok()??;
        return of_process(&system, 2);
    }
    let system = named(name)?;
    let is_known = command.starts_with('-')
        || command == "help"
        || system.command().find_subcommand(command).is_some();
    (!is_known && is_there(name)).then(|| words[1..].to_vec())
}

/// Returns the command line in the form that the parser knows, and a note for users of a former name.
pub fn in_order(
    words: Vec<OsString>,
    system_in: fn(&Path) -> &'static str,
    systems_that_run: fn() -> Vec<&'static str>,
) -> Result<(Vec<OsString>, Option<String>), GrammarError> {
    let word = |at: usize| words.get(at).and_then(|word| word.to_str()).unwrap_or("");
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
        Some(data) => Ok(system_in(&data)),
        None if words.iter().any(|word| is_option(word, "--config")) => Ok(STORE),
        None => {
            let mut systems = systems_that_run();
            systems.retain(|system| has_command(system, word(1)));
            // Any of them can explain itself.
            let asks_for_help = words.iter().any(|word| word == "--help" || word == "-h");
            systems.truncate(if asks_for_help { 1 } else { systems.len() });
            only(systems)
        }
    };
    Ok(match (word(1), word(2)) {
        (QUORUM, _) => (of_system(BoxCluster::COMMAND, QUORUM, 2), None),
        (MEMBER, _) if system_meant()? == BoxCluster::COMMAND => {
            (of_system(BoxCluster::COMMAND, MEMBER, 2), None)
        }
        (TOP, _) => {
            let system = match system_meant()? {
                Falcon::COMMAND => Falcon::COMMAND,
                // It says what is missing if there is no box either.
                _ => BoxCluster::COMMAND,
            };
            (of_system(system, TOP, 2), None)
        }
        ("up", system) if is_system(system) => (of_system(system, "up", 3), None),
        ("up", name) if is_name(name) => {
            let name = name.to_owned();
            return Err(GrammarError::NoSystem { name });
        }
        (command, system) if ABOUT_CLUSTERS.contains(&command) && is_system(system) => {
            (of_system(system, command, 3), None)
        }
        (command, _) if ABOUT_CLUSTERS.contains(&command) => {
            let system = system_meant()?;
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
                _ => {
                    let data = data_of(&words).unwrap_or(default_data(system).into());
                    format!("inband {command} --data {}", quoted(&data))
                }
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
    })
}

fn is_system(word: &str) -> bool {
    word == STORE || named(word).is_some()
}

/// Returns whether a word can be a system's name, and is not an option.
fn is_name(word: &str) -> bool {
    !word.is_empty() && !word.starts_with('-') && word != "help"
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
