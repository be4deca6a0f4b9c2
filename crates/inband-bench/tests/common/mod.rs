//! What the tests of the figures share.

use std::ffi::OsStr;
use std::process::Command;

use serde_json::Value;

/// A machine that pauses for longer than the shortest form takes measures nothing; then it is measured again.
const ATTEMPTS: usize = 3;
/// What benchmarks say then.
const NOTHING_MEASURED: [&str; 3] = [
    "does not answer",
    "no access ended",
    "nothing was delivered",
];

/// Runs the shortest form of a figure of `inband bench SYSTEM`, whose processes are those of `program`, and reads the
/// results that it wrote, until something was measured.
pub fn bench<A: AsRef<OsStr>>(
    system: &str,
    program: &str,
    figure: &str,
    more: &[A],
    is_measured: impl Fn(&Value) -> bool,
) -> Value {
    inband_testing::build(program);
    let mut last = Err(String::new());
    for _ in 0..ATTEMPTS {
        last = run(system, figure, more);
        let measured_nothing = match &last {
            Ok(results) => !is_measured(results),
            Err(said) => NOTHING_MEASURED.iter().any(|what| said.contains(what)),
        };
        if !measured_nothing {
            break;
        }
    }
    last.unwrap_or_else(|said| panic!("{said}"))
}

/// Runs the shortest form once. Returns its results, or what it said.
fn run<A: AsRef<OsStr>>(system: &str, figure: &str, more: &[A]) -> Result<Value, String> {
    let dir = tempfile::tempdir().expect("a directory");
    let output = Command::new(env!("CARGO_BIN_EXE_inband-bench"))
        .args([system, figure, "--quick", "--out"])
        .arg(dir.path())
        .args(more)
        .output()
        .expect("the program runs");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let read = |extension: &str| {
        let path = dir.path().join(format!("{system}-{figure}.{extension}"));
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    assert!(read("svg").contains("</svg>"));
    Ok(serde_json::from_str(&read("json")).expect("it is JSON"))
}
