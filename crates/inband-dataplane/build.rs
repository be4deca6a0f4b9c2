//! Builds every program of `dataplane/` that a host may load, as the crates of the systems build them (a test compares),
//! so that verifiers check those of a new system too. `OUT_DIR/loaded.rs` is an array of folder, program, object, and the
//! folder's modes (`modes/NAME.toml`), with the values of the constants that are named there.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use inband_ground_build::{find_clang, Program};

/// Name prefixes of programs used only for measurements and tests, and definition prefixes of such variants.
const NOT_LOADED: [&str; 2] = ["bench", "race"];
const NOT_LOADED_WITH: [&str; 3] = ["IB_RACE_", "IB_MUTANT_", "IB_GIVEN_"];
const GROUND: &str = "ground";

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let (root, modes) = (here.join("../../dataplane"), here.join("modes"));
    let root = root
        .canonicalize()
        .expect("dataplane/ is in the repository");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed={}", modes.display());
    let clang = find_clang();
    let mut loaded = String::new();
    for folder in files_in(&root).into_iter().filter(|path| path.is_dir()) {
        println!("cargo::rerun-if-changed={}", folder.display());
        let name = folder.file_name().expect("a folder").to_string_lossy();
        let modes = fs::read_to_string(modes.join(format!("{name}.toml"))).unwrap_or_default();
        let modes = with_values(
            &modes,
            &[&folder, &root.join(GROUND), &root.join("ground/xdp")],
        );
        for program in Program::below(&folder).iter().filter(is_loaded) {
            let program_name = &program.name;
            let object = out.join(format!("{name}_{program_name}.bpf.o"));
            program.compile(&clang, &object);
            writeln!(
                loaded,
                "Loaded {{ folder: {name:?}, name: {program_name:?}, object: include_bytes!({object:?}), modes: {modes:?} }},"
            )
            .expect("a string grows");
        }
    }
    fs::write(out.join("loaded.rs"), format!("&[{loaded}]")).expect("OUT_DIR is writable");
}

fn is_loaded(program: &&Program) -> bool {
    let has =
        |name: &str, prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let mut definitions = program.definitions.iter();
    !has(&program.name, &NOT_LOADED) && !definitions.any(|name| has(name, &NOT_LOADED_WITH))
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of the repository");
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Modes with numbers in place of the constants in quotes.
fn with_values(modes: &str, headers: &[&Path]) -> String {
    let pieces = modes.split('"').enumerate().map(|(at, piece)| {
        let is_quoted = at % 2 == 1;
        match piece.starts_with("IB_") {
            true if is_quoted => value_of(piece, headers),
            _ if is_quoted => format!("\"{piece}\""),
            _ => piece.to_owned(),
        }
    });
    pieces.collect()
}

/// The value of a constant, as a header states it.
fn value_of(name: &str, headers: &[&Path]) -> String {
    let files = headers.iter().flat_map(|folder| files_in(folder));
    let mut files = files.filter(|path| path.extension().is_some_and(|ending| ending == "h"));
    let value = files.find_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        text.lines().find_map(|line| {
            let line = line.trim_start().trim_start_matches("#define ");
            let value = line.strip_prefix(name)?.strip_prefix(' ')?;
            let value = value.trim_start_matches("= ");
            let end = value.find(|c: char| !c.is_ascii_digit());
            let digits = &value[..end.unwrap_or(value.len())];
            (!digits.is_empty()).then(|| digits.to_owned())
        })
    });
    value.unwrap_or_else(|| {
        panic!("modes: no header of the folder or of the ground says `{name} = NUMBER`")
    })
}
