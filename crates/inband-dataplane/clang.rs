//! Finds clang for the build scripts that compile BPF programs: this crate's and inband-lab's.

use std::env;
use std::process::{Command, Stdio};

/// Older ones emit code that the verifier of a supported kernel may refuse.
pub const CLANG_OLDEST: u32 = 19;
/// Versioned names up to this one are tried.
const CLANG_NEWEST_TRIED: u32 = 30;

/// End the build with one line.
pub fn fail(message: &str) -> ! {
    eprintln!("error: {message}");
    std::process::exit(1);
}

/// $CLANG, or the first of clang-19, clang-20, ..., clang that is new enough.
pub fn find_clang() -> String {
    println!("cargo::rerun-if-env-changed=CLANG");
    if let Ok(clang) = env::var("CLANG") {
        return clang;
    }
    let versioned = (CLANG_OLDEST..=CLANG_NEWEST_TRIED).map(|v| format!("clang-{v}"));
    // The version that everything was tested with comes first.
    versioned
        .chain(["clang".to_owned()])
        .find(|clang| clang_version(clang).is_some_and(|v| v >= CLANG_OLDEST))
        .unwrap_or_else(|| {
            fail(&format!(
                "no clang {CLANG_OLDEST} or newer found: run `apt-get install \
                 clang-{CLANG_OLDEST}`, or set CLANG to one"
            ))
        })
}

fn clang_version(clang: &str) -> Option<u32> {
    let output = Command::new(clang)
        .arg("-dumpversion")
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    version.trim().split('.').next()?.parse().ok()
}

/// A program that could not be compiled: what clang said, and which package may be missing.
pub fn fail_to_compile(clang: &str, source: &str, message: &str) -> ! {
    let hint = if message.contains("bpf_helpers.h") {
        "\nhint: run `apt-get install libbpf-dev`"
    } else if message.contains("'asm/") || message.contains("'linux/") {
        "\nhint: run `apt-get install linux-libc-dev`"
    } else {
        ""
    };
    fail(&format!(
        "{clang} could not compile {source}:\n{message}{hint}"
    ))
}

/// A clang that could not be run.
pub fn fail_to_run(clang: &str, error: &std::io::Error) -> ! {
    fail(&format!(
        "{clang}: {error}; run `apt-get install clang-{CLANG_OLDEST}`"
    ))
}
