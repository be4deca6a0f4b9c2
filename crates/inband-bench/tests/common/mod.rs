//! What the tests of the figures share.

use std::ffi::OsStr;
use std::process::Command;

use serde_json::Value;

/// Runs the shortest form of a figure of `inband bench SYSTEM`, whose processes are those of `program`, and reads the
/// results that it wrote.
pub fn bench<A: AsRef<OsStr>>(system: &str, program: &str, figure: &str, more: &[A]) -> Value {
    let dir = tempfile::tempdir().expect("a directory");
    inband_testing::build(program);
    let output = Command::new(env!("CARGO_BIN_EXE_inband-bench"))
        .args([system, figure, "--quick", "--out"])
        .arg(dir.path())
        .args(more)
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let read = |extension: &str| {
        let path = dir.path().join(format!("{system}-{figure}.{extension}"));
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    assert!(read("svg").contains("</svg>"));
    serde_json::from_str(&read("json")).expect("it is JSON")
}
