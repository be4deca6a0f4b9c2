//! Notices that the keys of the cluster are replaced: a client, which is part of another program, gets no signal.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use inband_ground::auth::{Digest, Keys};

use crate::live_keys::LiveKeys;

/// How often the file is looked at. Between two steps of a rotation, clients need this long.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What differs when a file has been written again or replaced.
type Version = (u64, u64, i64, i64);

/// A key file that is looked at again and again.
pub struct KeyWatch {
    path: PathBuf,
    keys: LiveKeys,
    /// Of the keys in use; `None`: it may have been replaced since they were read.
    version: Option<Version>,
    /// The last file that was no good, which is logged once.
    refused: Option<Version>,
    looked_at: Instant,
}

impl KeyWatch {
    /// Watches a file that was read before, with this digest key.
    pub fn new(path: &Path, digest: Digest) -> KeyWatch {
        KeyWatch {
            path: path.to_owned(),
            keys: LiveKeys::following(path, digest),
            version: None,
            refused: None,
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
        if version.is_none() || version == self.version {
            return None;
        }
        match self.keys.read() {
            Ok(_) => self.version = version,
            Err(error) if version != self.refused => {
                self.refused = version;
                tracing::warn!("{error}; what was read before stays in use");
            }
            Err(_) => {}
        }
        self.keys.take()
    }
}

fn version_of(path: &Path) -> Option<Version> {
    let found = fs::metadata(path).ok()?;
    Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_file::KeyFile;

    struct Watched {
        watch: KeyWatch,
        path: PathBuf,
        _dir: tempfile::TempDir,
    }

    impl Watched {
        fn new(file: &KeyFile) -> Watched {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("keys.toml");
            file.save(&path).expect("saved");
            let watch = KeyWatch::new(&path, file.digest());
            Watched {
                watch,
                path,
                _dir: dir,
            }
        }

        fn changed(&mut self) -> Option<Vec<u16>> {
            self.watch.looked_at -= LOOK_INTERVAL;
            self.watch.changed().map(|keys| keys.ids())
        }
    }

    #[test]
    fn keys_that_change_are_noticed_and_files_that_are_no_good_wait() {
        let mut file = KeyFile::generate().expect("random bytes");
        let mut watched = Watched::new(&file);
        assert_eq!(watched.changed(), Some(vec![1]), "as it is by now");
        assert_eq!(watched.changed(), None);
        fs::write(&watched.path, "half of").expect("written");
        assert_eq!(watched.changed(), None, "it is no good");
        let id = file.add().expect("room for another");
        file.save(&watched.path).expect("saved");
        assert_eq!(watched.changed(), Some(vec![1, id]));
        assert_eq!(watched.changed(), None, "once");
    }

    #[test]
    fn the_keys_of_another_cluster_are_not_taken() {
        let file = KeyFile::generate().expect("random bytes");
        let mut watched = Watched::new(&file);
        watched.changed();
        let other = KeyFile::generate().expect("random bytes");
        other.save(&watched.path).expect("saved");
        assert_eq!(watched.changed(), None);
        file.save(&watched.path).expect("saved");
        assert_eq!(watched.changed(), Some(vec![1]), "the former ones are back");
    }
}
