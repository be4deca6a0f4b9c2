//! Builds what `dataplane/` holds: the native roles (cc), their Rust bindings (bindgen).
//!
//! The bindings are made from the C headers at every build and never committed, so they cannot be
//! stale.

use std::path::{Path, PathBuf};

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dataplane");
    let root = root.canonicalize().expect("dataplane/ is part of the repository");
    for folder in ["inband", "roles", "native", "xdp"] {
        println!("cargo:rerun-if-changed={}", root.join(folder).display());
    }
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR"));

    cc::Build::new()
        .file(root.join("native/switch.c"))
        .warnings(true)
        .extra_warnings(true)
        .opt_level(2)
        .compile("inband_native");

    bindgen::Builder::default()
        .header(root.join("native/switch.h").to_string_lossy())
        .allowlist_type("ib_.*")
        .allowlist_var("IB_.*")
        .allowlist_function("ib_switch_handle|ib_reason_name")
        .prepend_enum_name(false)
        .derive_default(false)
        .layout_tests(true)
        .use_core()
        .generate()
        .expect("dataplane headers are valid C; is libclang installed (apt install libclang-19-dev)?")
        .write_to_file(out.join("bindings.rs"))
        .expect("OUT_DIR is writable");
}
