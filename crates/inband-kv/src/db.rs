//! RocksDB as this store uses it: column families, options, and the directory it lives in.
//!
//! Layout of a store's directory:
//!
//! ```text
//! ACTIVE        name of the sub-directory in use, replaced atomically
//! db-<n>/       a RocksDB database
//! incoming/     a checkpoint being received; no part of the store until ACTIVE names it
//! outgoing/     checkpoints being sent
//! ```
//!
//! Installing a checkpoint renames `incoming` to the next `db-<n>` and then replaces `ACTIVE`, so a
//! crash at any moment leaves a directory that opens: with the old database or with the new one.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rocksdb::{BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, Options, DB};

use crate::limits::{
    ROCKSDB_BACKGROUND_JOBS, ROCKSDB_BLOCK_CACHE_BYTES, ROCKSDB_WAL_BYTES_MAX,
    ROCKSDB_WRITE_BUFFER_BYTES,
};
use crate::store::StoreError;

/// Keys and values: `xxh3_64(key) | key` -> `expire_at_ms | value`.
pub const DATA: &str = "data";
/// Keys by the time they expire: `expire_at_ms | xxh3_64(key) | key` -> nothing.
pub const EXPIRY: &str = "expiry";
/// Everything else that is replicated; RocksDB insists on a column family of this name.
pub const META: &str = "default";

/// All column families.
pub const COLUMN_FAMILIES: [&str; 3] = [DATA, EXPIRY, META];

const ACTIVE_FILE: &str = "ACTIVE";
const ACTIVE_FILE_NEXT: &str = "ACTIVE.next";
const DATABASE_PREFIX: &str = "db-";
const INCOMING_DIR: &str = "incoming";
const OUTGOING_DIR: &str = "outgoing";

const BLOOM_BITS_PER_KEY: f64 = 10.0;
const MEMTABLE_BLOOM_RATIO: f64 = 0.1;
/// Length of the hash that every data key starts with.
pub const HASH_LEN_BYTES: usize = 8;
/// Info logs of RocksDB kept beside the data.
const INFO_LOGS_KEPT: usize = 2;
const SMALL_WRITE_BUFFER_BYTES: usize = 8 * 1024 * 1024;

/// The column families of an open database.
#[derive(Clone, Copy)]
pub struct Columns<'a> {
    /// See [`DATA`].
    pub data: &'a ColumnFamily,
    /// See [`EXPIRY`].
    pub expiry: &'a ColumnFamily,
    /// See [`META`].
    pub meta: &'a ColumnFamily,
}

impl<'a> Columns<'a> {
    /// Look the handles up.
    pub fn of(db: &'a DB) -> Result<Self, StoreError> {
        let handle = |name| {
            db.cf_handle(name)
                .ok_or(StoreError::ColumnFamilyMissing(name))
        };
        Ok(Self {
            data: handle(DATA)?,
            expiry: handle(EXPIRY)?,
            meta: handle(META)?,
        })
    }
}

/// Open the database in `path`, creating it if there is none.
pub fn open_database(path: &Path) -> Result<DB, StoreError> {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_max_background_jobs(ROCKSDB_BACKGROUND_JOBS);
    options.set_max_total_wal_size(ROCKSDB_WAL_BYTES_MAX);
    options.set_keep_log_file_num(INFO_LOGS_KEPT);
    let cache = Cache::new_lru_cache(ROCKSDB_BLOCK_CACHE_BYTES)?;
    let families = COLUMN_FAMILIES.map(|name| {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&cache);
        blocks.set_bloom_filter(BLOOM_BITS_PER_KEY, false);
        let mut family = Options::default();
        if name == DATA {
            family.set_write_buffer_size(ROCKSDB_WRITE_BUFFER_BYTES);
            // Most lookups of a memtable are for keys that are not in it.
            family.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_RATIO);
            family.set_memtable_whole_key_filtering(true);
        } else {
            family.set_write_buffer_size(SMALL_WRITE_BUFFER_BYTES);
        }
        family.set_block_based_table_factory(&blocks);
        ColumnFamilyDescriptor::new(name, family)
    });
    Ok(DB::open_cf_descriptors(&options, path, families)?)
}

/// Open the database in `path` without changing anything in it.
pub fn open_database_to_read(path: &Path) -> Result<DB, StoreError> {
    Ok(DB::open_cf_for_read_only(
        &Options::default(),
        path,
        COLUMN_FAMILIES,
        false,
    )?)
}

/// The directory of a store.
#[derive(Debug, Clone)]
pub struct Directory {
    base: PathBuf,
}

impl Directory {
    /// Use `base`, creating it if it does not exist.
    pub fn new(base: &Path) -> Result<Self, StoreError> {
        fs::create_dir_all(base).map_err(|source| io_error(base, source))?;
        Ok(Self {
            base: base.to_path_buf(),
        })
    }

    /// Where the database in use is. Removes whatever an interrupted installation left behind.
    pub fn active(&self) -> Result<PathBuf, StoreError> {
        let file = self.base.join(ACTIVE_FILE);
        let name = match fs::read_to_string(&file) {
            Ok(name) if database_number(name.trim()).is_some() => name.trim().to_owned(),
            Ok(name) => return Err(StoreError::ActiveFile { path: file, name }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let name = format!("{DATABASE_PREFIX}0");
                self.set_active(&name)?;
                name
            }
            Err(source) => return Err(io_error(&file, source)),
        };
        let entries = fs::read_dir(&self.base).map_err(|source| io_error(&self.base, source))?;
        for entry in entries.flatten() {
            let other = entry.file_name();
            let other = other.to_string_lossy();
            let is_temporary = other == INCOMING_DIR || other == OUTGOING_DIR;
            if is_temporary || (database_number(&other).is_some() && other != name) {
                fs::remove_dir_all(entry.path()).map_err(|e| io_error(&entry.path(), e))?;
            }
        }
        Ok(self.base.join(name))
    }

    /// Where a checkpoint is to be received: an empty directory that is no part of the store.
    pub fn incoming(&self) -> PathBuf {
        self.base.join(INCOMING_DIR)
    }

    /// Where checkpoints for peers are made.
    pub fn outgoing(&self) -> PathBuf {
        self.base.join(OUTGOING_DIR)
    }

    /// Make the complete, closed database in `incoming` the one in use; its new place.
    pub fn install(&self, incoming: &Path, active: &Path) -> Result<PathBuf, StoreError> {
        let number = active
            .file_name()
            .and_then(|n| database_number(&n.to_string_lossy()));
        let name = format!("{DATABASE_PREFIX}{}", number.unwrap_or(0) + 1);
        let place = self.base.join(&name);
        sync_directory(incoming)?;
        fs::rename(incoming, &place).map_err(|source| io_error(incoming, source))?;
        sync_directory(&self.base)?;
        self.set_active(&name)?;
        Ok(place)
    }

    fn set_active(&self, name: &str) -> Result<(), StoreError> {
        let next = self.base.join(ACTIVE_FILE_NEXT);
        let write = || -> io::Result<()> {
            let mut file = fs::File::create(&next)?;
            file.write_all(name.as_bytes())?;
            file.sync_all()?;
            fs::rename(&next, self.base.join(ACTIVE_FILE))
        };
        write().map_err(|source| io_error(&next, source))?;
        sync_directory(&self.base)
    }
}

fn database_number(name: &str) -> Option<u64> {
    name.strip_prefix(DATABASE_PREFIX)?.parse().ok()
}

/// Sync all files of `directory` and the directory itself.
fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    let sync = || -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::File::open(entry.path())?.sync_all()?;
            }
        }
        fs::File::open(directory)?.sync_all()
    };
    sync().map_err(|source| io_error(directory, source))
}

/// An I/O error that names its path.
pub fn io_error(path: &Path, source: io::Error) -> StoreError {
    StoreError::Io {
        path: path.to_path_buf(),
        source,
    }
}
