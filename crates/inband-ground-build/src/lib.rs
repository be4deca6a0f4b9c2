//! Builds a folder of `dataplane/`, from a crate's build script: its native code (cc), its XDP programs
//! (clang) and their Rust bindings (bindgen). Nothing is listed by hand:
//!
//! - every `*.bpf.c` is a program, and `objects.rs` has a constant with the object of each;
//! - `native.c` or `native/*.c` is the native build;
//! - a line `/* variant: NAME DEFINITION... */` in one of them builds it once more, with these
//!   definitions: a program as the object NAME, native code with IB_VARIANT=NAME;
//! - `bindings.rs` has what the folder's headers define that Rust sees: `native.h`, `settings.h`, and
//!   those named to [`Folder::header`]. What they only include is the ground's, and comes from there.
//!
//! Bindings are made at every build and never committed, so they cannot be stale.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

mod clang;
mod program;
use clang::fail;
pub use clang::{compile_bpf, find_clang};
pub use program::Program;

/// What a crate's build script builds.
pub struct Folder {
    name: String,
    root: PathBuf,
    headers: Vec<String>,
}

impl Folder {
    /// Returns the folder of this name in `dataplane/`.
    pub fn new(name: &str) -> Folder {
        let crate_folder = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
        let root = Path::new(&crate_folder).join("../../dataplane");
        let root = root
            .canonicalize()
            .expect("dataplane/ is part of the repository");
        Folder {
            name: name.to_owned(),
            root,
            headers: Vec::new(),
        }
    }

    /// Rust also sees this header of the folder.
    #[must_use]
    pub fn header(mut self, name: &str) -> Folder {
        self.headers.push(name.to_owned());
        self
    }

    /// Builds all of it into `OUT_DIR`, as `FOLDER.rs` (bindings), `FOLDER_objects.rs` and `*.bpf.o`.
    pub fn build(self) {
        for watched in ["ground", &self.name] {
            println!(
                "cargo::rerun-if-changed={}",
                self.root.join(watched).display()
            );
        }
        let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
        let mut sources = Vec::new();
        list(&self.root.join(&self.name), &mut sources);
        self.native(&sources);
        self.bindings(&out);
        self.programs(&sources, &out);
    }

    fn native(&self, sources: &[PathBuf]) {
        let native: Vec<&PathBuf> = sources
            .iter()
            .filter(|path| path.extension().is_some_and(|e| e == "c") && !is_program(path))
            .collect();
        let build = |files: &[&PathBuf], library: &str, definitions: &[String]| {
            let mut build = cc::Build::new();
            build.files(files).warnings(true).extra_warnings(true);
            build.opt_level(2);
            for definition in definitions {
                let (name, value) = split_definition(definition);
                build.define(name, value);
            }
            build.compile(library);
        };
        if native.is_empty() {
            return;
        }
        build(&native, &format!("inband_{}_native", self.name), &[]);
        for file in native {
            for (variant, mut definitions) in variants_of(file) {
                definitions.push(format!("IB_VARIANT={variant}"));
                let library = format!("inband_{}_{variant}", self.name);
                build(&[file], &library, &definitions);
            }
        }
    }

    fn bindings(&self, out: &Path) {
        let folder = self.root.join(&self.name);
        let usual = ["native.h", "settings.h"].map(str::to_owned);
        let usual = usual.iter().filter(|name| folder.join(name).exists());
        let mut builder = bindgen::Builder::default();
        for header in usual.chain(&self.headers) {
            builder = builder.header(folder.join(header).to_string_lossy());
        }
        builder
            // Clang calls what another folder's header includes ".../folder/../ground/frame.h".
            .allowlist_file(format!(".*/{0}/[^./]+\\.h|.*/{0}/(xdp|native)/[^/]+\\.h|.*/{0}/(xdp|native)/\\.\\./[^./]+\\.h", self.name))
            .allowlist_recursively(false)
            .parse_callbacks(Box::new(PlainTypes))
            .prepend_enum_name(false)
            .derive_default(false)
            .layout_tests(true)
            .use_core()
            .generate()
            .expect(
                "dataplane headers are valid C; is libclang installed (apt install libclang-19-dev)?",
            )
            .write_to_file(out.join(format!("{}.rs", self.name)))
            .expect("OUT_DIR is writable");
    }

    fn programs(&self, sources: &[PathBuf], out: &Path) {
        let clang = find_clang();
        let mut constants = String::new();
        let mut all = String::new();
        for program in Program::of(sources) {
            let object = &program.name;
            program.compile(&clang, &out.join(format!("{object}.bpf.o")));
            writeln!(
                constants,
                "#[allow(dead_code, missing_docs)]\npub const {}: &[u8] = include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{object}.bpf.o\"));",
                object.to_uppercase()
            )
            .expect("a string grows");
            write!(all, "(\"{object}\", {}), ", object.to_uppercase()).expect("a string grows");
        }
        writeln!(
            constants,
            "/// Every one of them, by name.\npub const ALL: &[(&str, &[u8])] = &[{all}];"
        )
        .expect("a string grows");
        fs::write(out.join(format!("{}_objects.rs", self.name)), constants)
            .expect("OUT_DIR is writable");
    }
}

/// The types of other folders' headers are plain C structs and numbers.
#[derive(Debug)]
struct PlainTypes;

impl bindgen::callbacks::ParseCallbacks for PlainTypes {
    fn blocklisted_type_implements_trait(
        &self,
        _name: &str,
        _trait: bindgen::callbacks::DeriveTrait,
    ) -> Option<bindgen::callbacks::ImplementsTrait> {
        Some(bindgen::callbacks::ImplementsTrait::Yes)
    }
}

fn is_program(path: &Path) -> bool {
    path.to_string_lossy().ends_with(".bpf.c")
}

/// All files below a folder, in order.
fn list(folder: &Path, into: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder)
        .unwrap_or_else(|error| fail(&format!("{}: {error}", folder.display())));
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            list(&path, into);
        } else {
            into.push(path);
        }
    }
}

/// Returns the variants that a source declares: name and definitions.
fn variants_of(source: &Path) -> Vec<(String, Vec<String>)> {
    let text = fs::read_to_string(source)
        .unwrap_or_else(|error| fail(&format!("{}: {error}", source.display())));
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("/* variant: ")?.strip_suffix(" */"));
    lines
        .map(|line| {
            let mut words = line.split_whitespace().map(str::to_owned);
            let name = words
                .next()
                .unwrap_or_else(|| fail(&format!("{}: a variant has no name", source.display())));
            (name, words.collect())
        })
        .collect()
}

fn split_definition(definition: &str) -> (&str, Option<&str>) {
    match definition.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (definition, None),
    }
}
