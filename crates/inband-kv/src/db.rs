//! Column families and options of RocksDB.

use std::path::Path;

use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, LogLevel, Options, DB,
};

use crate::limits::{
    ROCKSDB_BACKGROUND_JOBS, ROCKSDB_BLOCK_CACHE_BYTES, ROCKSDB_MEMTABLES_MAX,
    ROCKSDB_MEMTABLES_OF_FILE, ROCKSDB_WAL_BYTES_MAX, ROCKSDB_WRITE_BUFFER_BYTES,
};
use crate::store::StoreError;

/// Keys and values: `xxh3_64(key) | key` -> record.
pub const DATA: &str = "data";
/// Keys by expiry time: `expire_at_ms | xxh3_64(key) | key` -> nothing.
pub const EXPIRY: &str = "expiry";
/// All other replicated data; RocksDB requires a column family with this name.
pub const META: &str = "default";
/// What this replica alone needs after a crash: not part of the replicated state.
pub const LOCAL: &str = "local";

/// The column families that are identical on all replicas.
pub const REPLICATED_FAMILIES: [&str; 3] = [DATA, EXPIRY, META];
pub const COLUMN_FAMILIES: [&str; 4] = [DATA, EXPIRY, META, LOCAL];

const BLOOM_BITS_PER_KEY: f64 = 10.0;
const MEMTABLE_BLOOM_RATIO: f64 = 0.1;
/// Length of the hash at the start of each data key.
pub const HASH_LEN_BYTES: usize = 8;
/// Number of RocksDB info logs kept beside the data.
const INFO_LOGS_KEPT: usize = 2;
/// Only what RocksDB says when it opens a database. It may write to its info log at any time, also while the disk is
/// full, and where it is built with assertions, as by Debian, the next line after one that it could not write aborts the
/// process. Errors are returned or counted.
const INFO_LOG_LEVEL: LogLevel = LogLevel::Header;
const SMALL_WRITE_BUFFER_BYTES: usize = 8 * 1024 * 1024;

/// The column families of an open database.
#[derive(Clone, Copy)]
pub struct Columns<'a> {
    pub data: &'a ColumnFamily,
    pub expiry: &'a ColumnFamily,
    pub meta: &'a ColumnFamily,
    pub local: &'a ColumnFamily,
}

impl<'a> Columns<'a> {
    /// Looks up the handles.
    pub fn of(db: &'a DB) -> Result<Self, StoreError> {
        Ok(Self {
            data: family(db, DATA)?,
            expiry: family(db, EXPIRY)?,
            meta: family(db, META)?,
            local: family(db, LOCAL)?,
        })
    }
}

pub fn family<'a>(db: &'a DB, name: &'static str) -> Result<&'a ColumnFamily, StoreError> {
    db.cf_handle(name)
        .ok_or(StoreError::ColumnFamilyMissing(name))
}

/// Returns the block cache shared by all databases of a replica.
pub fn block_cache() -> Result<Cache, StoreError> {
    Ok(Cache::new_lru_cache(ROCKSDB_BLOCK_CACHE_BYTES)?)
}

/// Opens the database in `path`; `create` it if there is none.
pub fn open_database(path: &Path, cache: &Cache, create: bool) -> Result<DB, StoreError> {
    let mut options = Options::default();
    options.create_if_missing(create);
    options.create_missing_column_families(true);
    options.set_max_background_jobs(ROCKSDB_BACKGROUND_JOBS);
    options.set_max_total_wal_size(ROCKSDB_WAL_BYTES_MAX);
    options.set_keep_log_file_num(INFO_LOGS_KEPT);
    options.set_log_level(INFO_LOG_LEVEL);
    let families = COLUMN_FAMILIES.map(|name| {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(cache);
        blocks.set_bloom_filter(BLOOM_BITS_PER_KEY, false);
        let mut family = Options::default();
        if name == DATA {
            family.set_write_buffer_size(ROCKSDB_WRITE_BUFFER_BYTES);
            family.set_min_write_buffer_number_to_merge(ROCKSDB_MEMTABLES_OF_FILE);
            family.set_max_write_buffer_number(ROCKSDB_MEMTABLES_MAX);
            // Most memtable lookups are for keys that are not in the memtable.
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

/// Opens the database in `path` read-only.
pub fn open_database_to_read(path: &Path) -> Result<DB, StoreError> {
    let mut options = Options::default();
    options.set_log_level(INFO_LOG_LEVEL);
    // A database written by an earlier version lacks a column family.
    let families = DB::list_cf(&options, path)?;
    Ok(DB::open_cf_for_read_only(&options, path, families, false)?)
}
