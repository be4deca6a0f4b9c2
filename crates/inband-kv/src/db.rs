//! RocksDB as this store uses it: column families and options.

use std::path::Path;

use rocksdb::{BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, Options, DB};

use crate::limits::{
    ROCKSDB_BACKGROUND_JOBS, ROCKSDB_BLOCK_CACHE_BYTES, ROCKSDB_WAL_BYTES_MAX,
    ROCKSDB_WRITE_BUFFER_BYTES,
};
use crate::store::StoreError;

/// Keys and values: `xxh3_64(key) | key` -> record.
pub const DATA: &str = "data";
/// Keys by the time they expire: `expire_at_ms | xxh3_64(key) | key` -> nothing.
pub const EXPIRY: &str = "expiry";
/// Everything else that is replicated; RocksDB insists on a column family of this name.
pub const META: &str = "default";
/// What this replica needs after a crash, at its own times: no part of the replicated state.
pub const LOCAL: &str = "local";

/// The column families that are equal on all replicas.
pub const REPLICATED_FAMILIES: [&str; 3] = [DATA, EXPIRY, META];
/// All column families.
pub const COLUMN_FAMILIES: [&str; 4] = [DATA, EXPIRY, META, LOCAL];

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
    /// See [`LOCAL`].
    pub local: &'a ColumnFamily,
}

impl<'a> Columns<'a> {
    /// Look the handles up.
    pub fn of(db: &'a DB) -> Result<Self, StoreError> {
        Ok(Self {
            data: family(db, DATA)?,
            expiry: family(db, EXPIRY)?,
            meta: family(db, META)?,
            local: family(db, LOCAL)?,
        })
    }
}

/// One column family.
pub fn family<'a>(db: &'a DB, name: &'static str) -> Result<&'a ColumnFamily, StoreError> {
    db.cf_handle(name)
        .ok_or(StoreError::ColumnFamilyMissing(name))
}

/// The block cache that all databases of a replica share.
pub fn block_cache() -> Result<Cache, StoreError> {
    Ok(Cache::new_lru_cache(ROCKSDB_BLOCK_CACHE_BYTES)?)
}

/// Open the database in `path`; `create` it if there is none.
pub fn open_database(path: &Path, cache: &Cache, create: bool) -> Result<DB, StoreError> {
    let mut options = Options::default();
    options.create_if_missing(create);
    options.create_missing_column_families(true);
    options.set_max_background_jobs(ROCKSDB_BACKGROUND_JOBS);
    options.set_max_total_wal_size(ROCKSDB_WAL_BYTES_MAX);
    options.set_keep_log_file_num(INFO_LOGS_KEPT);
    let families = COLUMN_FAMILIES.map(|name| {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(cache);
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
    let options = Options::default();
    // A database of an earlier version lacks a family.
    let families = DB::list_cf(&options, path)?;
    Ok(DB::open_cf_for_read_only(&options, path, families, false)?)
}
