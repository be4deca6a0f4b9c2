//! Notices that the keys of the cluster are replaced: a client, which is part of another program, gets no signal.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use inband_ground::auth::Keys;
use inband_host::key_file::KeyFile;

/// How often the file is looked at. Between two steps of a rotation, clients need this long.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What differs when a file has been written again or replaced.
type Version = (u64, u64, i64, i64);

pub struct KeyWatch {
    path: PathBuf,
    version: Option<Version>,
    looked_at: Instant,
}

impl KeyWatch {
    /// Watches a file that was read just now.
    pub fn new(path: &Path) -> KeyWatch {
        KeyWatch {
            path: path.to_owned(),
            version: version_of(path),
            looked_at: Instant::now(),
        }
    }

    /// Returns the keys if the file has changed. A file that is no good, as when it is just being written, is read again
    /// the next time.
    pub fn changed(&mut self) -> Option<Keys> {
        if self.looked_at.elapsed() < LOOK_INTERVAL {
            return None;
        }
        self.looked_at = Instant::now();
        let version = version_of(&self.path);
        if version == self.version {
            return None;
        }
        let keys = KeyFile::load(&self.path).ok()?.keys();
        self.version = version;
        Some(keys)
    }
}

fn version_of(path: &Path) -> Option<Version> {
    let found = fs::metadata(path).ok()?;
    Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_change_are_noticed_and_files_that_are_no_good_wait() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("keys.toml");
        let mut file = KeyFile::generate().expect("random bytes");
        file.save(&path).expect("saved");
        let mut watch = KeyWatch::new(&path);
        let mut changed = || {
            watch.looked_at -= LOOK_INTERVAL;
            watch.changed().map(|keys| keys.ids())
        };
        assert_eq!(changed(), None);
        fs::write(&path, "half of").expect("written");
        assert_eq!(changed(), None, "it is no good");
        let id = file.add().expect("room for another");
        file.save(&path).expect("saved");
        assert_eq!(changed(), Some(vec![1, id]));
        assert_eq!(changed(), None, "once");
    }
}
