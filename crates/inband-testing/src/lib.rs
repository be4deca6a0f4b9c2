//! For tests only: one way to say that a test could not run here.
//!
//! Rust's test harness knows no "skipped": a test that returns has passed. A test that cannot run calls
//! [`not_run`] and returns. `make test` lists all of these at its end, by name and with the reason. With
//! `INBAND_REQUIRE_ALL=1` they fail instead.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// Set to anything but "": what cannot run fails.
const REQUIRE_ALL: &str = "INBAND_REQUIRE_ALL";
/// The file that `make test` lists at its end.
const LIST: &str = "INBAND_NOT_RUN";

/// The test of this thread cannot run, for this reason. Panics if everything is required to run.
pub fn not_run(why: impl Display) {
    let thread = std::thread::current();
    if let Err(line) = note(thread.name().unwrap_or("a test"), why) {
        panic!("{line}");
    }
}

/// The same for a test with this name, for harnesses that have an answer of their own to it: the line
/// that says so, `Err` if everything is required to run.
pub fn note(test: &str, why: impl Display) -> Result<String, String> {
    let line = format!("NOT RUN: {test}: {why}");
    if std::env::var_os(REQUIRE_ALL).is_some_and(|value| !value.is_empty()) {
        return Err(line);
    }
    println!("{line}");
    if let Some(path) = std::env::var_os(LIST) {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        // One write a line: many processes append to this file.
        let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        written.unwrap_or_else(|error| panic!("{LIST}={}: {error}", path.to_string_lossy()));
    }
    Ok(line)
}
