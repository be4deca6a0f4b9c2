//! A real directory.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::file::sync_dir;
use crate::storage::{Storage, StorageError};

/// A directory in the file system. Keeps the files that it writes open.
#[derive(Debug)]
pub struct Disk {
    dir: PathBuf,
    handle: File,
    open: HashMap<String, File>,
}

impl Disk {
    /// Opens the directory, creating it if necessary.
    pub fn open(dir: &Path) -> Result<Disk, StorageError> {
        let result = || -> io::Result<Disk> {
            fs::create_dir_all(dir)?;
            if let Some(parent) = dir.canonicalize()?.parent() {
                sync_dir(parent)?;
            }
            Ok(Disk {
                dir: dir.to_owned(),
                handle: File::open(dir)?,
                open: HashMap::new(),
            })
        };
        result().map_err(|source| StorageError::from_io(&dir.display().to_string(), source))
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    fn sort(&self, file: &str, source: io::Error) -> StorageError {
        StorageError::from_io(&self.path(file).display().to_string(), source)
    }

    /// Calls a function with the open file of this name, opening it if necessary.
    fn with_file<T>(
        &mut self,
        file: &str,
        act: impl FnOnce(&File) -> io::Result<T>,
    ) -> Result<T, StorageError> {
        if !self.open.contains_key(file) {
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .open(self.path(file))
                .map_err(|e| self.sort(file, e))?;
            self.open.insert(file.to_owned(), opened);
        }
        act(&self.open[file]).map_err(|e| self.sort(file, e))
    }

    fn sync_dir(&self) -> Result<(), StorageError> {
        self.handle.sync_all().map_err(|e| self.sort("", e))
    }
}

impl Storage for Disk {
    fn list(&self) -> Result<Vec<String>, StorageError> {
        let names = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(&self.dir)? {
                let entry = entry?;
                if let (true, Ok(name)) = (
                    entry.file_type()?.is_file(),
                    entry.file_name().into_string(),
                ) {
                    names.push(name);
                }
            }
            names.sort();
            Ok(names)
        };
        names().map_err(|e| self.sort("", e))
    }

    fn len_bytes(&self, file: &str) -> Result<u64, StorageError> {
        let metadata = match self.open.get(file) {
            Some(open) => open.metadata(),
            None => fs::metadata(self.path(file)),
        };
        metadata.map(|m| m.len()).map_err(|e| self.sort(file, e))
    }

    fn read_range(
        &self,
        file: &str,
        offset: u64,
        len_bytes: usize,
    ) -> Result<Vec<u8>, StorageError> {
        let result = || -> io::Result<Vec<u8>> {
            let opened = File::open(self.path(file))?;
            let rest = opened.metadata()?.len().saturating_sub(offset);
            let mut bytes = vec![0; len_bytes.min(usize::try_from(rest).unwrap_or(usize::MAX))];
            opened.read_exact_at(&mut bytes, offset)?;
            Ok(bytes)
        };
        result().map_err(|e| self.sort(file, e))
    }

    fn create(&mut self, file: &str) -> Result<(), StorageError> {
        let created = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(self.path(file))
            .map_err(|e| self.sort(file, e))?;
        self.open.insert(file.to_owned(), created);
        self.sync_dir()
    }

    fn write_at(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        self.with_file(file, |open| open.write_all_at(bytes, offset))
    }

    fn truncate(&mut self, file: &str, len_bytes: u64) -> Result<(), StorageError> {
        self.with_file(file, |open| open.set_len(len_bytes))
    }

    fn sync(&mut self, file: &str) -> Result<(), StorageError> {
        self.with_file(file, |open| open.sync_data())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        fs::rename(self.path(from), self.path(to)).map_err(|e| self.sort(from, e))?;
        self.open.remove(to);
        if let Some(moved) = self.open.remove(from) {
            self.open.insert(to.to_owned(), moved);
        }
        self.sync_dir()
    }

    fn remove(&mut self, file: &str) -> Result<(), StorageError> {
        self.open.remove(file);
        fs::remove_file(self.path(file)).map_err(|e| self.sort(file, e))?;
        self.sync_dir()
    }
}
