//! Builds `src/heap.c`, the library itself.

fn main() {
    println!("cargo:rerun-if-changed=src/heap.c");
    println!("cargo:rerun-if-changed=inband_memory_heap.h");
    cc::Build::new()
        .file("src/heap.c")
        .include(".")
        .flag("-std=gnu11")
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .compile("inband_memory_heap_c");
}
