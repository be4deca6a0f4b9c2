//! Finds clang, and compiles BPF programs with it.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

/// Older ones emit code that the verifier of a supported kernel may refuse.
const CLANG_OLDEST: u32 = 19;
/// Versioned names up to this one are tried.
const CLANG_NEWEST_TRIED: u32 = 30;

/// Ends the build with one line.
pub(crate) fn fail(message: &str) -> ! {
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
fn fail_to_compile(clang: &str, source: &str, message: &str) -> ! {
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
fn fail_to_run(clang: &str, error: &std::io::Error) -> ! {
    fail(&format!(
        "{clang}: {error}; run `apt-get install clang-{CLANG_OLDEST}`"
    ))
}

/// Compile a BPF program, or end the build with what clang said.
pub fn compile_bpf(clang: &str, source: &Path, arguments: &[String], object: &Path) {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let output = Command::new(clang)
        .args([
            "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror",
        ])
        .args(arguments)
        // Debian keeps <asm/types.h> here, where the bpf target does not look.
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let message = String::from_utf8_lossy(&output.stderr);
            fail_to_compile(clang, &source.to_string_lossy(), &message)
        }
        Err(error) => fail_to_run(clang, &error),
    }
}
