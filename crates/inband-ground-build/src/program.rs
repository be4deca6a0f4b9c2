//! Programs for the kernel, and their variants.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::clang::{compile_bpf, fail};
use crate::{is_program, list, variants_of};

/// The machines that this is built for, and what clang calls them in headers of BPF programs. On others the order
/// of accesses to registers is not proven: the shells rely on x86 not reordering loads with loads and
/// stores with stores (`dataplane/ground/seqlock.h`, IB_COMPILER_BARRIER), in the kernel and outside.
const ARCHITECTURES: [(&str, &str); 1] = [("x86_64", "x86")];

/// A program for the kernel: a `*.bpf.c`, or one of the variants that it declares.
pub struct Program {
    pub name: String,
    /// What its variant defines: `NAME` or `NAME=VALUE`.
    pub definitions: Vec<String>,
    source: PathBuf,
}

impl Program {
    /// Returns all programs in a folder and below it.
    pub fn below(folder: &Path) -> Vec<Program> {
        let mut sources = Vec::new();
        list(folder, &mut sources);
        Self::of(&sources)
    }

    /// Returns the programs among these files.
    pub(crate) fn of(sources: &[PathBuf]) -> Vec<Program> {
        let mut programs = Vec::new();
        for source in sources.iter().filter(|path| is_program(path)) {
            let file = source.file_name().expect("a file").to_string_lossy();
            let name = file.trim_end_matches(".bpf.c").to_owned();
            let all = [(name, Vec::new())].into_iter().chain(variants_of(source));
            programs.extend(all.map(|(name, definitions)| Program {
                name,
                definitions,
                source: source.clone(),
            }));
        }
        programs
    }

    /// Compiles it, or ends the build with the reason.
    pub fn compile(&self, clang: &str, object: &Path) {
        let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
        let Some((_, bpf_arch)) = ARCHITECTURES.iter().find(|(name, _)| *name == arch) else {
            let tried = ARCHITECTURES.map(|(name, _)| name).join(", ");
            fail(&format!(
                "Inband cannot be built for {arch}: its packet programs rely on the memory order of {tried}, and \
                 on no other machine was that order tried or proven; build it for {tried}"
            ));
        };
        let mut arguments = vec![format!("-D__TARGET_ARCH_{bpf_arch}")];
        let definitions = self.definitions.iter();
        arguments.extend(definitions.map(|definition| format!("-D{definition}")));
        // libbpf's headers come with the libbpf-sys crate; the crate of the ground hands them on.
        for from in ["DEP_BPF_INCLUDE", "DEP_INBAND_GROUND_BPF_INCLUDE"] {
            arguments.extend(env::var(from).map(|folder| format!("-I{folder}")));
        }
        compile_bpf(clang, &self.source, &arguments, object);
        // DWARF is of no use in the loaded program and most of the object; BTF stays. Without
        // llvm-strip the object is merely larger.
        let strip = clang.replace("clang", "llvm-strip");
        let _ = Command::new(strip)
            .arg("-g")
            .arg(object)
            .stderr(Stdio::null())
            .status();
    }
}
