//! Shared by `inband` and its companion programs: logging, error output, and how they find each other.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{bail, Context, Error, Result};
use nix::sys::stat::{umask, Mode};

use crate::{logging, output};

/// Exit status of a host whose next start would fail in the same way (`EX_CONFIG` of sysexits.h): neither systemd
/// (`RestartPreventExitStatus=78` in docs/deploy.md) nor a supervisor restarts it.
pub const EXIT_CONFIGURATION: u8 = 78;

/// The program that runs hosts and clusters. The companion programs are called `inband-NAME`.
pub const INBAND: &str = "inband";

/// Returns the exit status of a command. An error is printed; `status_of` determines its exit status.
pub fn conclude(
    program: &str,
    result: Result<()>,
    status_of: impl FnOnce(&Error) -> ExitCode,
) -> ExitCode {
    match result {
        Ok(()) if output::is_complete() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            match logging::is_json() {
                true => tracing::error!("{program}: {}", in_words(&error)),
                false => output::error(format_args!("{program}: {}\n", in_words(&error))),
            }
            status_of(&error)
        }
    }
}

/// Returns an error with its causes. Messages of typed errors often include their cause's message, which is not
/// repeated.
pub fn in_words(error: &Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text += ": ";
        }
        text += &cause;
    }
    text
}

/// Bits of new files' and directories' modes that only their owner gets, whatever the umask: who can write into a
/// directory can replace its keys and sockets.
const UMASK: Mode = Mode::from_bits_truncate(0o022);

/// Call it first in `main`, before there are threads.
pub fn start() {
    logging::start();
    let given = umask(UMASK);
    umask(given | UMASK);
}

/// `main` of a companion program.
pub fn main(program: &str, run: impl FnOnce() -> Result<()>) -> ExitCode {
    start();
    conclude(program, run(), |_| ExitCode::FAILURE)
}

/// Parses the command line.
pub fn parse<P: clap::Parser>() -> P {
    P::try_parse().unwrap_or_else(|error| usage(&error))
}

/// Ends the process with what the parser prints: help, the version, or what is wrong with the command line. Like
/// [`clap::Error::exit`], but help that cannot be printed is a failure.
pub fn usage(error: &clap::Error) -> ! {
    let printed = error.print().and_then(|()| io::stdout().flush());
    let status = match error.use_stderr() || output::is_good(printed) {
        true => error.exit_code(),
        false => 1,
    };
    std::process::exit(status)
}

/// For commands that only print: end quietly when the output is closed (`inband status | head`). Not for processes that
/// others depend on.
pub fn end_with_reader() {
    sigpipe::reset();
}

/// Path of another program of the project: next to this one, otherwise on `PATH`.
pub fn find(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe().context("finding this program")?;
    let beside = this.with_file_name(name);
    if beside.is_file() {
        return Ok(beside);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&path).map(|dir| dir.join(name));
    match candidates.find(|candidate| candidate.is_file()) {
        Some(found) => Ok(found),
        None => bail!(
            "there is no {name} in {} or on PATH; `make build`, or `cargo build --release --locked -p {name}`, builds it",
            this.parent().unwrap_or(&this).display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{path}: {source}; check the disk")]
    struct Unreadable {
        path: String,
        source: std::io::Error,
    }

    #[test]
    fn a_cause_is_said_once() {
        let unreadable = Unreadable {
            path: "a".into(),
            source: std::io::Error::from_raw_os_error(5),
        };
        let error = Error::from(unreadable).context("starting one");
        assert_eq!(
            in_words(&error),
            "starting one: a: Input/output error (os error 5); check the disk"
        );
    }
}
