//! A disk that a test can fill.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use nix::mount::{mount, umount2, MntFlags, MsFlags};

/// A small in-memory file system, mounted on a directory.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` if mounting is not allowed here; the test is then reported as skipped.
    pub fn mount(dir: PathBuf) -> Option<SmallDisk> {
        fs::create_dir_all(&dir).expect("a directory");
        let (flags, options) = (MsFlags::empty(), Some("size=16m"));
        match mount(Some("tmpfs"), &dir, Some("tmpfs"), flags, options) {
            Ok(()) => Some(SmallDisk(dir)),
            Err(error) => {
                inband_testing::not_run(format!("mounting a small file system: {error}"));
                None
            }
        }
    }

    /// Uses all free space.
    pub fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = File::create(&path).expect("a file");
        for piece in [64 * 1024, 1] {
            while file.write_all(&vec![1; piece]).is_ok() {}
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}
