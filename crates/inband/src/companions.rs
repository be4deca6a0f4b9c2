//! Companion programs: `inband NAME ...` runs `inband-NAME ...` if NAME is not a built-in command.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{bail, Context, Result};
use inband_host::program;

/// This project's companions, with their descriptions in `inband --help`.
const COMPANIONS: [(&str, &str); 4] = [
    (
        "bench",
        "Run benchmarks, each compared with a baseline from the same run",
    ),
    (
        "chaos",
        "Inject faults into a real cluster under load, and check that it stays linearizable",
    ),
    (
        "console",
        "Show a cluster in a browser, generate load, and inject faults",
    ),
    (
        "sim",
        "Simulate the real roles and host code under seeded fault schedules",
    ),
];
/// Systems of one process, with their descriptions in `inband --help`.
const OF_ONE_PROCESS: [(&str, &str); 1] = [(
    "gate",
    "Connect a network segment that has no key, such as a P4 switch's, to a cluster that has one",
)];
/// Former names, accepted for one more version.
const RENAMED: [(&str, &str); 1] = [("torment", "chaos")];

/// Text for the end of `inband --help`.
pub fn help() -> String {
    let mut text = String::from("Companion programs (`make build` builds them):\n");
    for (name, about) in COMPANIONS.iter().chain(&OF_ONE_PROCESS) {
        text += &format!("  {name:<12} {about}\n");
    }
    text
}

/// Returns whether a program is a tool: it starts no system.
pub fn is_tool(name: &str) -> bool {
    COMPANIONS.iter().any(|(ours, _)| *ours == name)
}

/// Replaces this process with the program that a command names.
pub fn run(command: Vec<OsString>) -> Result<()> {
    let mut words = command.into_iter();
    let given = words.next().unwrap_or_default();
    let name = given.to_string_lossy().into_owned();
    let name = match RENAMED.iter().find(|(old, _)| *old == name) {
        Some((old, new)) => {
            eprintln!("note: `inband {old}` is now `inband {new}`; the old name goes away with the next version");
            (*new).to_owned()
        }
        None => name,
    };
    let file = format!("inband-{name}");
    let found = program::find(&file);
    let path = match found {
        Ok(path) => path,
        Err(error) if is_tool(&name) => return Err(error),
        Err(_) => bail!("{name:?} is not a command, and there is no program {file} beside `inband` or on PATH; `inband --help` lists the commands"),
    };
    let error = Command::new(&path).args(words).exec();
    Err(error).with_context(|| format!("cannot run {}", path.display()))
}
