//! Builds what `dataplane/` holds: the native roles (cc), the XDP programs (clang), their Rust
//! bindings (bindgen).
//!
//! The bindings are made from the C headers at every build and never committed, so they cannot be
//! stale.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

mod clang;
use clang::{fail, fail_to_compile, fail_to_run, find_clang};

/// The machines that this is built for, and what clang calls them in headers of BPF programs. On others the order
/// of accesses to registers is not proven: the shells rely on x86 not reordering loads with loads and
/// stores with stores (`dataplane/inband/exclusive.h`, IB_COMPILER_BARRIER), in the kernel and outside.
const ARCHITECTURES: [(&str, &str); 1] = [("x86_64", "x86")];

/// XDP programs: `dataplane/xdp/<name>.bpf.c`.
const PROGRAMS: [&str; 16] = [
    "dispatch",
    "leader",
    "acceptor",
    "quorum",
    "copies",
    "generic",
    "flair",
    "falcon",
    "bare",
    "trial",
    "lost",
    "race",
    "bench",
    "bench_feed",
    "bench_forward",
    "bench_plain",
];

/// Roles that are alone on their host, variants for tests, and the bare roles for measurements: object name, source, definitions.
const VARIANTS: [(&str, &str, &[&str]); 19] = [
    ("leader_alone", "leader", &["IB_ALONE"]),
    ("acceptor_alone", "acceptor", &["IB_ALONE"]),
    ("quorum_alone", "quorum", &["IB_ALONE"]),
    ("leader_slow", "leader", &["IB_RACE_DELAY"]),
    (
        "leader_round_read_once",
        "leader",
        &["IB_RACE_DELAY", "IB_MUTANT_ROUND_READ_ONCE"],
    ),
    ("acceptor_slow", "acceptor", &["IB_RACE_DELAY"]),
    (
        "acceptor_no_exclusivity",
        "acceptor",
        &["IB_MUTANT_NO_EXCLUSIVITY"],
    ),
    (
        "acceptor_promise_before_slot",
        "acceptor",
        &["IB_RACE_DELAY", "IB_MUTANT_PROMISE_BEFORE_SLOT"],
    ),
    (
        "acceptor_no_second_read",
        "acceptor",
        &["IB_RACE_DELAY", "IB_MUTANT_NO_SECOND_READ"],
    ),
    ("flair_slow", "flair", &["IB_RACE_DELAY"]),
    (
        "flair_seq_outside_group",
        "flair",
        &["IB_RACE_DELAY", "IB_MUTANT_SEQ_OUTSIDE_GROUP"],
    ),
    (
        "flair_torn_copies",
        "flair",
        &["IB_RACE_DELAY", "IB_MUTANT_TORN_COPIES"],
    ),
    (
        "flair_heartbeat_takes_nothing",
        "flair",
        &["IB_RACE_DELAY", "IB_MUTANT_HEARTBEAT_TAKES_NOTHING"],
    ),
    ("flair_given", "flair", &["IB_GIVEN_ARRIVAL"]),
    ("falcon_given", "falcon", &["IB_GIVEN_ARRIVAL"]),
    // vround lies where Falcon has pull_seq: every PULL is a new one.
    ("bench_falcon", "bench", &["IB_COUNTED=vround"]),
    ("bench_bare_leader", "bench_bare", &["IB_BARE_LEADER"]),
    ("bench_bare_acceptor", "bench_bare", &["IB_BARE_ACCEPTOR"]),
    ("bench_bare_quorum", "bench_bare", &["IB_BARE_QUORUM"]),
];

/// Builds of the Falcon role with race windows, right and wrong, for `tests/falcon_race.rs`:
/// `ib_falcon_handle_<name>`. Nothing else refers to them, so no program holds them.
const FALCON_RACES: [(&str, Option<&str>); 7] = [
    ("slow", None),
    ("pop_before_filled", Some("IB_MUTANT_POP_BEFORE_FILLED")),
    (
        "push_without_sequence",
        Some("IB_MUTANT_PUSH_WITHOUT_SEQUENCE"),
    ),
    ("park_without_look", Some("IB_MUTANT_PARK_WITHOUT_LOOK")),
    (
        "released_before_task",
        Some("IB_MUTANT_RELEASED_BEFORE_TASK"),
    ),
    ("repeated_pops_again", Some("IB_MUTANT_REPEATED_POPS_AGAIN")),
    ("bit_not_taken", Some("IB_MUTANT_BIT_NOT_TAKEN")),
];

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dataplane");
    let root = root
        .canonicalize()
        .expect("dataplane/ is part of the repository");
    for folder in ["inband", "roles", "native", "xdp"] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=clang.rs");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let Some((_, bpf_arch)) = ARCHITECTURES.iter().find(|(name, _)| *name == arch) else {
        let tried = ARCHITECTURES.map(|(name, _)| name).join(", ");
        fail(&format!(
            "Inband cannot be built for {arch}: its packet programs rely on the memory order of {tried}, and \
             on no other machine was that order tried or proven; build it for {tried}"
        ));
    };

    cc::Build::new()
        .file(root.join("native/switch.c"))
        .file(root.join("native/keys.c"))
        .file(root.join("native/flair.c"))
        .file(root.join("native/falcon.c"))
        .warnings(true)
        .extra_warnings(true)
        .opt_level(2)
        .compile("inband_native");

    for (name, mutant) in FALCON_RACES {
        let mut build = cc::Build::new();
        build
            .file(root.join("native/falcon.c"))
            .define("IB_RACE_DELAY", None)
            .define(
                "ib_falcon_switch_handle",
                format!("ib_falcon_handle_{name}").as_str(),
            )
            .warnings(true)
            .extra_warnings(true)
            .opt_level(2);
        if let Some(mutant) = mutant {
            build.define(mutant, None);
        }
        build.compile(&format!("inband_falcon_{name}"));
    }

    bindgen::Builder::default()
        .header(root.join("native/switch.h").to_string_lossy())
        .header(root.join("native/keys.h").to_string_lossy())
        .header(root.join("native/flair.h").to_string_lossy())
        .header(root.join("native/falcon.h").to_string_lossy())
        .header(root.join("xdp/settings.h").to_string_lossy())
        .header(root.join("xdp/trial.h").to_string_lossy())
        .header(root.join("xdp/lost.h").to_string_lossy())
        .header(root.join("xdp/bench.h").to_string_lossy())
        .allowlist_type("ib_.*")
        .allowlist_var("IB_.*")
        .allowlist_function(
            "ib_switch_handle|ib_reason_name|ib_keys_check|ib_keys_sign|ib_siphash|ib_checksum_of",
        )
        .allowlist_function("ib_flair_(switch_handle|keys_check|group_of_hash)")
        .allowlist_function("ib_falcon_(switch_handle|keys_check|queues_of)")
        .prepend_enum_name(false)
        .derive_default(false)
        .layout_tests(true)
        .use_core()
        .generate()
        .expect(
            "dataplane headers are valid C; is libclang installed (apt install libclang-19-dev)?",
        )
        .write_to_file(out.join("bindings.rs"))
        .expect("OUT_DIR is writable");

    let clang = find_clang();
    for name in PROGRAMS {
        let object = out.join(format!("{name}.bpf.o"));
        compile(&clang, bpf_arch, &root, name, &object, &[]);
    }
    for (object, source, definitions) in VARIANTS {
        compile(
            &clang,
            bpf_arch,
            &root,
            source,
            &out.join(format!("{object}.bpf.o")),
            definitions,
        );
    }
}

fn compile(
    clang: &str,
    bpf_arch: &str,
    root: &Path,
    name: &str,
    object: &Path,
    definitions: &[&str],
) {
    let source = root.join(format!("xdp/{name}.bpf.c"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let output = Command::new(clang)
        .args([
            "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror",
        ])
        .arg(format!("-D__TARGET_ARCH_{bpf_arch}"))
        .args(definitions.iter().map(|d| format!("-D{d}")))
        // libbpf's headers come with the libbpf-sys crate; the kernel's from the distribution,
        // which keeps <asm/types.h> where the bpf target does not look.
        .args(env::var("DEP_BPF_INCLUDE").map(|folder| format!("-I{folder}")))
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg("-c")
        .arg(&source)
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
    // DWARF is of no use in the loaded program and most of the object; BTF stays. Without
    // llvm-strip the object is merely larger.
    let strip = clang.replace("clang", "llvm-strip");
    let _ = Command::new(strip)
        .arg("-g")
        .arg(object)
        .stderr(Stdio::null())
        .status();
}
