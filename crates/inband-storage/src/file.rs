//! Small files that are replaced atomically.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::storage::TEMPORARY_SUFFIX;

/// Permissions of a file that is not secret: the umask decides.
pub const FILE_MODE: u32 = 0o666;

/// Makes what was created, renamed or removed in a directory durable.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Replaces a file atomically and durably, with at most these permissions: after a power failure it has the old or the
/// new contents, and once this returns the new ones.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(TEMPORARY_SUFFIX);
    let new = path.with_file_name(name);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    // Always a new file, so that it never has other permissions.
    let mut file = options.write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let dir = path.parent().filter(|dir| *dir != Path::new(""));
    sync_dir(dir.unwrap_or(Path::new(".")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_is_replaced_as_a_whole_with_no_more_than_the_permissions_asked_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.toml");
        for (bytes, mode) in [(&b"first, and long"[..], 0o644), (b"second", 0o600)] {
            // Leftovers of a power failure do no harm.
            fs::write(dir.path().join("a.toml.new"), "half").expect("write");
            replace(&path, bytes, mode).expect("replaced");
            assert_eq!(fs::read(&path).expect("read"), bytes);
            assert_eq!(
                fs::metadata(&path).expect("there").mode() & 0o777 & !mode,
                0
            );
            assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 1);
        }
    }
}
