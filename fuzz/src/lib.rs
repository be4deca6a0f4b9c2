//! The fuzzer's targets: what parses input from others (fuzz/README.md says what is not covered yet).
//!
//! A *target* is a function of bytes that panics if a rule is broken. The same functions are run by the fuzzer (`make
//! fuzz`, see `fuzz/README.md`) and, over the corpora in `fuzz/corpus`, by a test.

mod input;
pub mod targets;

/// A target's name, which is also that of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: [Target; 19] = [
    ("c_api", targets::c_api::run),
    ("checkpoint", targets::checkpoint::run),
    ("config", targets::config::run),
    ("connection", targets::connection::run),
    ("control", targets::control::run),
    ("export", targets::export::run),
    ("falcon", targets::falcon::run),
    ("flair", targets::flair::run),
    ("flair_hosts", targets::flair_hosts::run),
    ("host", targets::host::run),
    ("journal", targets::journal::run),
    ("machine", targets::machine::run),
    ("memcached", targets::memcached::run),
    ("raft", targets::raft::run),
    ("records", targets::records::run),
    ("resp", targets::resp::run),
    ("roles", targets::roles::run),
    ("scripts", targets::scripts::run),
    ("values", targets::values::run),
];

/// A temporary directory, in memory if there is a file system for that.
fn scratch() -> tempfile::TempDir {
    let in_memory = tempfile::Builder::new()
        .prefix("inband-fuzz-")
        .tempdir_in("/dev/shm");
    in_memory.unwrap_or_else(|_| tempfile::tempdir().expect("a temporary directory"))
}
