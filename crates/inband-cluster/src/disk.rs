//! The free space of a cluster's directory.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

/// Free space that a cluster's directory must have at the start.
const DISK_FREE_MIN_BYTES: u64 = 256 << 20;

/// The disk of a directory is full, or nearly so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "disk full: {} has {} MiB free, {} are needed; free some or choose another --data directory",
    path.display(), free_bytes >> 20, DISK_FREE_MIN_BYTES >> 20
)]
pub struct DiskFull {
    pub path: PathBuf,
    pub free_bytes: u64,
}

/// Checks the free space for a cluster's directory. A file system that does not report it is assumed to have room.
pub fn check_disk(path: &Path) -> Result<(), DiskFull> {
    let Ok(fs) = statvfs(path) else { return Ok(()) };
    let free_bytes = fs.blocks_available() * fs.fragment_size();
    if free_bytes < DISK_FREE_MIN_BYTES {
        return Err(DiskFull {
            path: path.to_owned(),
            free_bytes,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_one_line() {
        let full = DiskFull {
            path: "/data".into(),
            free_bytes: 3 << 20,
        };
        assert_eq!(
            full.to_string(),
            "disk full: /data has 3 MiB free, 256 are needed; free some or choose another --data \
             directory"
        );
        check_disk(Path::new("/")).expect("this machine has room");
    }
}
