//! Compiles the C program that calls the C library.

fn main() {
    for file in ["src/targets/c_api.c", "../bindings/c/inband.h"] {
        println!("cargo::rerun-if-changed={file}");
    }
    cc::Build::new()
        .file("src/targets/c_api.c")
        .std("c11")
        .warnings(true)
        .extra_warnings(true)
        .compile("inband_fuzz_c_api");
}
