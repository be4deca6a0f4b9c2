//! Builds the library itself, which is in C, and takes jemalloc for it from the system: building a copy from source
//! took longer than any crate of Inband.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where jemalloc's static library is, if the linker's usual directories do not have it.
const JEMALLOC_VARIABLE: &str = "INBAND_JEMALLOC";
/// Position-independent: it becomes part of a shared library.
const JEMALLOC_FILE: &str = "libjemalloc_pic.a";
const SOURCES: [&str; 3] = ["src/heap.c", "src/allocator.c", "src/refused.c"];
/// What `allocator.c` calls or defines for jemalloc, and jemalloc's functions whose names `lib.rs` defines for programs:
/// all get this prefix.
const PREFIX: &str = "_rjem_";
const PREFIXED: [&str; 15] = [
    "aligned_alloc",
    "calloc",
    "free",
    "mallctl",
    "malloc",
    "malloc_conf_2_conf_harder",
    "malloc_usable_size",
    "mallocx",
    "memalign",
    "posix_memalign",
    "pvalloc",
    "rallocx",
    "realloc",
    "secure_getenv",
    "valloc",
];

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=inband_memory_heap.h");
    println!("cargo::rerun-if-env-changed={JEMALLOC_VARIABLE}");
    cc::Build::new()
        .files(SOURCES)
        .include(".")
        .flag("-std=gnu11")
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .compile("inband_memory_heap_c");
    link_jemalloc();
}

/// Links a copy of jemalloc whose functions have a prefix, after `allocator.c`, which calls them.
fn link_jemalloc() {
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let mut objcopy = Command::new("objcopy");
    for name in PREFIXED {
        objcopy.arg(format!("--redefine-sym={name}={PREFIX}{name}"));
    }
    let jemalloc = jemalloc();
    let copied = objcopy
        .arg(&jemalloc)
        .arg(out.join("libinband_jemalloc.a"))
        .status();
    match copied {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("objcopy {}: {status}", jemalloc.display())),
        Err(error) => fail(&format!("objcopy: {error}; run `apt-get install binutils`")),
    }
    println!("cargo::rerun-if-changed={}", jemalloc.display());
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static=inband_jemalloc");
}

fn jemalloc() -> PathBuf {
    if let Some(path) = env::var_os(JEMALLOC_VARIABLE) {
        return PathBuf::from(path);
    }
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let folders = [
        format!("/usr/lib/{arch}-linux-gnu"),
        "/usr/lib64".to_owned(),
        "/usr/lib".to_owned(),
        "/usr/local/lib".to_owned(),
    ];
    let files = folders.map(|folder| Path::new(&folder).join(JEMALLOC_FILE));
    let found = files.into_iter().find(|file| file.exists());
    found.unwrap_or_else(|| {
        fail(&format!(
            "no {JEMALLOC_FILE}: run `apt-get install libjemalloc-dev`, or set {JEMALLOC_VARIABLE} to its path"
        ))
    })
}

/// Ends the build with one line.
fn fail(message: &str) -> ! {
    eprintln!("error: {message}");
    std::process::exit(1);
}
