//! Checks whether a program will load the library. Programs that are linked statically or gain privileges do not, and
//! would silently run in local memory.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};

/// Maximum depth of scripts whose interpreter is itself a script.
const INTERPRETERS_MAX: usize = 4;
const PT_INTERP: u32 = 3;
/// Bytes of the header, and of a program header, in a 64-bit ELF file.
const HEADER_LEN_BYTES: usize = 64;
const SEGMENT_LEN_BYTES: usize = 56;

/// Returns an error if the program, named as on the command line, would not load the library. What cannot be determined
/// here is left to the start itself.
pub fn check_program(name: &OsStr) -> Result<()> {
    let Some(mut path) = find(name) else {
        return Ok(());
    };
    for _ in 0..INTERPRETERS_MAX {
        // The kernel may be able to execute a file that this user cannot read.
        let Ok(file) = File::open(&path) else {
            return Ok(());
        };
        match interpreter(&file).with_context(|| format!("{}", path.display()))? {
            Some(interpreter) => path = interpreter,
            None => {
                check(&path, &file)?;
                break;
            }
        }
    }
    Ok(())
}

fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = std::env::var_os("PATH")?;
    let mut candidates = std::env::split_paths(&path).map(|dir| dir.join(name));
    candidates.find(|candidate| {
        let metadata = candidate.metadata();
        metadata.is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0)
    })
}

/// Returns the interpreter of a script.
fn interpreter(file: &File) -> io::Result<Option<PathBuf>> {
    let mut start = Vec::new();
    file.take(256).read_to_end(&mut start)?;
    let Some(line) = start.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| byte.is_ascii_whitespace());
    let word = words.find(|word| !word.is_empty());
    Ok(word.map(|word| OsStr::from_bytes(word).into()))
}

fn check(path: &Path, file: &File) -> Result<()> {
    let name = path.display();
    let metadata = file.metadata()?;
    let (mode, user, group) = (metadata.mode(), metadata.uid(), metadata.gid());
    let (my_user, my_group) = (nix::unistd::geteuid(), nix::unistd::getegid());
    let changes_user = mode & 0o4000 != 0 && user != my_user.as_raw();
    let changes_group = mode & 0o2000 != 0 && group != my_group.as_raw();
    let gains = !my_user.is_root() && has_capabilities(path);
    ensure!(
        !changes_user && !changes_group && !gains,
        "{name} gains privileges (setuid, setgid or file capabilities), so it loads no library: its heap cannot be in this memory"
    );
    match is_dynamic(file) {
        Ok(false) => bail!("{name} is linked statically, so it loads no library: its heap cannot be in this memory"),
        // On an error, starting the program reports what is wrong.
        _ => Ok(()),
    }
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    let name = c"security.capability";
    // SAFETY: both strings are NUL-terminated, and a length of 0 writes nothing.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Returns whether an executable has a dynamic linker.
fn is_dynamic(file: &File) -> io::Result<bool> {
    let mut header = [0; HEADER_LEN_BYTES];
    file.read_exact_at(&mut header, 0)?;
    if header[..5] != *b"\x7fELF\x02" {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let at = u64::from_le_bytes(header[32..40].try_into().expect("8 bytes"));
    let count = u16::from_le_bytes(header[56..58].try_into().expect("2 bytes"));
    for n in 0..u64::from(count) {
        let mut segment = [0; SEGMENT_LEN_BYTES];
        file.read_exact_at(
            &mut segment,
            at.saturating_add(n * SEGMENT_LEN_BYTES as u64),
        )?;
        if u32::from_le_bytes(segment[..4].try_into().expect("4 bytes")) == PT_INTERP {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_a_dynamic_linker_may_start() {
        check_program(OsStr::new("cat")).unwrap();
        check_program(OsStr::new("/no/such/program")).unwrap();
        let script = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(script.path(), "#! /bin/cat -n\n").unwrap();
        let found = interpreter(&File::open(script.path()).unwrap()).unwrap();
        assert_eq!(found, Some("/bin/cat".into()));
    }
}
