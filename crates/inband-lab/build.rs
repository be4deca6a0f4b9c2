//! Builds the lab's BPF programs with clang.

use std::env;
use std::path::{Path, PathBuf};

use inband_ground_build::{compile_bpf, find_clang};

const PROGRAMS: [&str; 2] = ["switch", "pass"];

fn main() {
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let clang = find_clang();
    for program in PROGRAMS {
        let source = format!("bpf/{program}.bpf.c");
        println!("cargo::rerun-if-changed={source}");
        compile_bpf(
            &clang,
            Path::new(&source),
            &[],
            &out.join(format!("{program}.bpf.o")),
        );
    }
}
