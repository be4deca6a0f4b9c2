//! Builds the lab's BPF programs with clang.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../inband-dataplane/clang.rs"]
mod clang;
use clang::{fail_to_compile, fail_to_run, find_clang};

const PROGRAMS: [&str; 2] = ["switch", "pass"];
fn main() {
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed=../inband-dataplane/clang.rs");
    let clang = find_clang();
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
        Ok(output) => fail_to_compile(clang, source, &String::from_utf8_lossy(&output.stderr)),
        Err(error) => fail_to_run(clang, &error),
    }
}
