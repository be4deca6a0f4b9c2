//! RocksDB alone: an upper bound for one replica's store.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use inband_kv::limits::{
    ROCKSDB_BACKGROUND_JOBS, ROCKSDB_BLOCK_CACHE_BYTES, ROCKSDB_MEMTABLES_MAX,
    ROCKSDB_MEMTABLES_OF_FILE, ROCKSDB_WAL_BYTES_MAX, ROCKSDB_WRITE_BUFFER_BYTES,
};
use rocksdb::{BlockBasedOptions, Cache, Options, DB};

use inband_cluster::scratch::ScratchDir;

/// Puts between two reads of the clock.
const STEP: u64 = 256;

/// Puts of random keys by one thread, with the write-ahead log on and not synced.
pub fn puts_per_s(duration: Duration, value_len_bytes: usize, keys: u64) -> Result<f64> {
    let dir = ScratchDir::create(&std::env::temp_dir(), "rocksdb")?;
    let db = open(dir.path())?;
    let value = vec![b'x'; value_len_bytes];
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut puts = 0u64;
    let started = Instant::now();
    while started.elapsed() < duration {
        for _ in 0..STEP {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // The same key format as redis-benchmark -r.
            db.put(format!("key:{:012}", random % keys), &value)
                .context("a put")?;
        }
        puts += STEP;
    }
    Ok(puts as f64 / started.elapsed().as_secs_f64())
}

/// Opens a database with the store's options: write-ahead log on, not synced.
pub fn open(path: &Path) -> Result<DB> {
    DB::open(&options()?, path).context("opening a RocksDB")
}

/// Returns the options that the store uses.
fn options() -> Result<Options> {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache(ROCKSDB_BLOCK_CACHE_BYTES)?);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_max_background_jobs(ROCKSDB_BACKGROUND_JOBS);
    options.set_max_total_wal_size(ROCKSDB_WAL_BYTES_MAX);
    options.set_write_buffer_size(ROCKSDB_WRITE_BUFFER_BYTES);
    options.set_min_write_buffer_number_to_merge(ROCKSDB_MEMTABLES_OF_FILE);
    options.set_max_write_buffer_number(ROCKSDB_MEMTABLES_MAX);
    options.set_block_based_table_factory(&blocks);
    Ok(options)
}
