//! Builds the lab's BPF programs with clang.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAMS: [&str; 2] = ["switch", "pass"];
/// Older ones emit code that the verifier of a supported kernel may refuse.
const OLDEST_CLANG: u32 = 19;
const NEWEST_CLANG_TRIED: u32 = 30;

fn major_version(clang: &str) -> Option<u32> {
    let output = Command::new(clang)
        .arg("-dumpversion")
        .stderr(Stdio::null())
        .output()
        .ok()?;
    String::from_utf8(output.stdout)
        .ok()?
        .trim()
        .split('.')
        .next()?
        .parse()
        .ok()
}

fn clang() -> String {
    println!("cargo::rerun-if-env-changed=CLANG");
    if let Ok(clang) = env::var("CLANG") {
        return clang;
    }
    let versioned = (OLDEST_CLANG..=NEWEST_CLANG_TRIED).map(|v| format!("clang-{v}"));
    // The version that everything was tested with comes first.
    for clang in versioned.chain(["clang".to_owned()]) {
        if major_version(&clang).is_some_and(|v| v >= OLDEST_CLANG) {
            return clang;
        }
    }
    eprintln!(
        "error: no clang {OLDEST_CLANG} or newer found; run `apt-get install clang-{OLDEST_CLANG}` \
         or set CLANG to one"
    );
    std::process::exit(1);
}

fn main() {
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let clang = clang();
    for program in PROGRAMS {
        compile(
            &clang,
            &format!("bpf/{program}.bpf.c"),
            &out.join(format!("{program}.bpf.o")),
        );
    }
}

fn compile(clang: &str, source: &str, object: &Path) {
    println!("cargo::rerun-if-changed={source}");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let output = Command::new(clang)
        .args([
            "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror",
        ])
        // Debian keeps <asm/types.h> here, where the bpf target does not look.
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .args(["-c", source, "-o"])
        .arg(object)
        .output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let message = String::from_utf8_lossy(&output.stderr);
            eprintln!("error: {clang} could not compile {source}:\n{message}");
            if message.contains("bpf/bpf_helpers.h") {
                eprintln!("hint: run `apt-get install libbpf-dev`");
            } else if message.contains("asm/types.h") {
                eprintln!("hint: run `apt-get install linux-libc-dev`");
            }
            std::process::exit(1);
        }
        Err(error) => {
            eprintln!("error: {clang}: {error}; run `apt-get install clang-{OLDEST_CLANG}`");
            std::process::exit(1);
        }
    }
}
