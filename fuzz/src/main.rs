//! One program for all targets: `INBAND_FUZZ=<target>` selects one, and the arguments are libFuzzer's.
#![no_main]
// libFuzzer's two entry points are C.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use inband_fuzz::TARGETS;

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

/// The target that `INBAND_FUZZ` names.
fn chosen() -> fn(&[u8]) {
    let name = std::env::var("INBAND_FUZZ").unwrap_or_default();
    match TARGETS.iter().find(|(target, _)| *target == name) {
        Some((_, run)) => *run,
        None => {
            let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            eprintln!("set INBAND_FUZZ to one of: {}", names.join(" "));
            std::process::exit(1);
        }
    }
}

/// Called by libFuzzer for every input. A panic ends the process, which libFuzzer reports as a crash.
// The pointer is libFuzzer's.
#[allow(clippy::not_unsafe_ptr_arg_deref)]
#[no_mangle]
pub extern "C" fn LLVMFuzzerTestOneInput(data: *const u8, len_bytes: usize) -> i32 {
    let bytes = match len_bytes {
        0 => &[],
        // SAFETY: libFuzzer hands over as many bytes as it says, unchanged during the call.
        _ => unsafe { std::slice::from_raw_parts(data, len_bytes) },
    };
    TARGET.get_or_init(chosen)(bytes);
    0
}
