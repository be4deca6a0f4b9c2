//! Test support: reporting tests that could not run, the fuzzer's corpora, programs of other crates, and roles under
//! test ([`role`], [`vector`]).
//!
//! Rust's test harness has no "skipped": a test that returns has passed. A test that cannot run calls [`not_run`] and
//! returns. `make test` lists all of these at its end, by name and with the reason. With `INBAND_REQUIRE_ALL=1` they
//! fail instead.

pub mod answering;
pub mod frame;
pub mod p4;
pub mod port;
pub mod process;
pub mod race;
pub mod random;
pub mod role;
pub mod rtl;
pub mod script;
pub mod vector;

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// If set and not empty, tests that cannot run fail.
const REQUIRE_ALL: &str = "INBAND_REQUIRE_ALL";
/// Path of the file that `make test` lists at its end.
const LIST: &str = "INBAND_NOT_RUN";

/// Reports that the current thread's test cannot run, for this reason. Panics if all tests are required to run.
pub fn not_run(why: impl Display) {
    let thread = std::thread::current();
    if let Err(line) = note(thread.name().unwrap_or("a test"), why) {
        panic!("{line}");
    }
}

/// The same for a test with this name, for harnesses with their own reporting. Returns the line to print, as `Err` if
/// all tests are required to run.
pub fn note(test: &str, why: impl Display) -> Result<String, String> {
    let line = format!("NOT RUN: {test}: {why}");
    if std::env::var_os(REQUIRE_ALL).is_some_and(|value| !value.is_empty()) {
        return Err(line);
    }
    list(&line);
    Ok(line)
}

/// Reports that the current thread's test cannot run, even if all tests are required to run: it needs programs that no
/// package has, and its caller checks whether they are required.
pub fn not_run_optional(why: impl Display) {
    let thread = std::thread::current();
    list(&format!(
        "NOT RUN: {}: {why}",
        thread.name().unwrap_or("a test")
    ));
}

fn list(line: &str) {
    println!("{line}");
    if let Some(path) = std::env::var_os(LIST) {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        // One write per line, because many processes append to this file.
        let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        written.unwrap_or_else(|error| panic!("{LIST}={}: {error}", path.to_string_lossy()));
    }
}

/// Returns the entries of the fuzzer's corpus for this target (`fuzz/corpus/TARGET.tar.gz`), sorted by name: a name for
/// messages, and the bytes. Panics if there are none.
pub fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let archive = format!("fuzz/corpus/{target}.tar.gz");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let unpacked = tempfile::tempdir().expect("a temporary directory");
    let mut tar = Command::new("tar");
    tar.current_dir(root)
        .args(["--extract", "--gzip", "--file"]);
    tar.arg(&archive).arg("--directory").arg(unpacked.path());
    let status = tar.status().expect("tar is on the PATH");
    assert!(status.success(), "{archive}: tar cannot unpack it");
    let files = std::fs::read_dir(unpacked.path()).expect("it was just made");
    let mut entries: Vec<_> = files
        .map(|file| file.expect("it can be listed"))
        .map(|file| {
            let name = format!("{archive}: {}", file.file_name().to_string_lossy());
            (
                name,
                std::fs::read(file.path()).expect("it was just unpacked"),
            )
        })
        .collect();
    entries.sort();
    assert!(!entries.is_empty(), "{archive} is empty");
    entries
}

/// Writes a script that anyone can execute at once. Another process writes it: what this one has open for writing is also
/// open in each process that another thread is just starting, and cannot be executed meanwhile (`ETXTBSY`).
pub fn write_script(path: &Path, text: &str) {
    let mut shell = Command::new("sh");
    shell
        .args(["-ec", "cat >\"$0\"; chmod 755 \"$0\""])
        .arg(path);
    let mut writer = shell.stdin(Stdio::piped()).spawn().expect("sh runs");
    let mut pipe = writer.stdin.take().expect("it is piped");
    pipe.write_all(text.as_bytes()).expect("it reads");
    drop(pipe);
    let status = writer.wait().expect("it ends");
    assert!(status.success(), "{} is not written", path.display());
}

/// Builds a program of another crate from the current sources into the directory of this test's programs, and returns its
/// path: `cargo test -p CRATE` builds only those of CRATE. `make test` has already built everything, and unsets `CARGO`
/// to say so.
pub fn build(program: &str) -> PathBuf {
    // target/release/deps/TEST
    let test = std::env::current_exe().expect("this test is a file");
    let release = test.parent().and_then(Path::parent).expect("two parents");
    let built = release.join(program);
    let Some(cargo) = std::env::var_os("CARGO") else {
        return built;
    };
    let target = release.parent().expect("a target directory");
    let mut cargo = Command::new(cargo);
    // What cargo says of this test's package would make it run build scripts again that ask for it (ring's), and then
    // build whatever is above them, here and again for the next test.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    let status = cargo
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .args(["build", "--quiet", "--release", "--locked"])
        .args(["--package", program, "--bin", program])
        .arg("--target-dir")
        .arg(target)
        .status();
    let is_built = status.expect("cargo runs").success();
    assert!(is_built, "{program} cannot be built");
    built
}
