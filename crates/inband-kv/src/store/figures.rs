//! What RocksDB says about a database.

use std::sync::Arc;
use std::time::Duration;

use rocksdb::properties::{
    num_files_at_level, ACTUAL_DELAYED_WRITE_RATE, BACKGROUND_ERRORS, BLOCK_CACHE_USAGE,
    CUR_SIZE_ALL_MEM_TABLES, DBSTATS, ESTIMATE_LIVE_DATA_SIZE, ESTIMATE_PENDING_COMPACTION_BYTES,
    IS_WRITE_STOPPED, NUM_RUNNING_COMPACTIONS, NUM_RUNNING_FLUSHES, TOTAL_SST_FILES_SIZE,
};
use rocksdb::DB;

use super::SharedDbs;
use crate::db::{family, COLUMN_FAMILIES};

/// The state of the database of one log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreFigures {
    /// Written and not in files yet, apart from the write-ahead log.
    pub memtable_bytes: u64,
    pub file_bytes: u64,
    /// Of the files, what is not superseded: an estimate.
    pub live_bytes: u64,
    /// Files that are not sorted into levels yet; many of them stall writes.
    pub level0_files: u64,
    /// What compactions have to rewrite: an estimate. Too much stalls writes.
    pub pending_compaction_bytes: u64,
    pub running_compactions: u64,
    pub running_flushes: u64,
    pub is_write_stopped: bool,
    /// The rate to which writes are slowed down now; 0: not at all.
    pub delayed_write_bytes_per_s: u64,
    pub background_errors: u64,
    /// How long writes were slowed down or stopped since the start.
    pub stalled: Duration,
    /// Use of the cache that all databases share.
    pub block_cache_bytes: u64,
}

impl StoreFigures {
    fn of(db: &DB) -> Self {
        let families = || {
            COLUMN_FAMILIES
                .into_iter()
                .filter_map(|name| family(db, name).ok())
        };
        // A property that this RocksDB does not have counts as 0.
        let sum = |property: &std::ffi::CStr| -> u64 {
            let of = |family| db.property_int_value_cf(family, property).ok().flatten();
            families().filter_map(of).sum()
        };
        let whole = |property: &std::ffi::CStr| {
            let value = db.property_int_value(property).ok().flatten();
            value.unwrap_or(0)
        };
        let level0 = num_files_at_level(0);
        let level0_files = families().filter_map(|family| {
            let count = db.property_value_cf(family, &*level0).ok()??;
            count.parse::<u64>().ok()
        });
        let stats = db.property_value(DBSTATS).ok().flatten();
        Self {
            memtable_bytes: sum(CUR_SIZE_ALL_MEM_TABLES),
            file_bytes: sum(TOTAL_SST_FILES_SIZE),
            live_bytes: sum(ESTIMATE_LIVE_DATA_SIZE),
            level0_files: level0_files.sum(),
            pending_compaction_bytes: sum(ESTIMATE_PENDING_COMPACTION_BYTES),
            running_compactions: whole(NUM_RUNNING_COMPACTIONS),
            running_flushes: whole(NUM_RUNNING_FLUSHES),
            is_write_stopped: whole(IS_WRITE_STOPPED) != 0,
            delayed_write_bytes_per_s: whole(ACTUAL_DELAYED_WRITE_RATE),
            background_errors: sum(BACKGROUND_ERRORS),
            stalled: stats.and_then(|text| stalled(&text)).unwrap_or_default(),
            block_cache_bytes: whole(BLOCK_CACHE_USAGE),
        }
    }
}

/// The cumulative time in the text of `rocksdb.dbstats`. RocksDB has it nowhere else unless it collects statistics, which
/// slows down every write.
fn stalled(stats: &str) -> Option<Duration> {
    let (_, rest) = stats.split_once("Cumulative stall: ")?;
    let (time, _) = rest.split_once(" H:M:S")?;
    let mut seconds = 0.0;
    for part in time.split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>().ok()?;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

impl SharedDbs {
    /// Returns the state of all databases, one per log.
    pub(crate) fn figures(&self) -> Vec<StoreFigures> {
        let dbs = self.dbs();
        dbs.iter()
            .map(|db: &Arc<DB>| StoreFigures::of(db))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{block_cache, open_database, DATA};

    #[test]
    fn the_time_of_stalls_is_read() {
        let text = "Cumulative writes: 0\nCumulative stall: 01:02:3.500 H:M:S, 0.0 percent\n\
                    Interval stall: 00:00:9.000 H:M:S, 0.0 percent\n";
        assert_eq!(stalled(text), Some(Duration::from_millis(3_723_500)));
        assert_eq!(stalled("Cumulative stall: none H:M:S"), None);
        assert_eq!(stalled(""), None);
    }

    #[test]
    fn a_database_tells_how_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = block_cache().expect("a cache");
        let db = open_database(dir.path(), &cache, true).expect("a database");
        let stats = db.property_value(DBSTATS).expect("a property");
        assert!(stalled(&stats.expect("a text")).is_some());
        let data = family(&db, DATA).expect("a family");
        for i in 0..1000u32 {
            db.put_cf(data, i.to_be_bytes(), [b'x'; 100]).expect("put");
        }
        let before = StoreFigures::of(&db);
        assert!(before.memtable_bytes > 100_000, "{before:?}");
        assert_eq!((before.file_bytes, before.level0_files), (0, 0));
        db.flush_cf(data).expect("flushed");
        let after = StoreFigures::of(&db);
        assert_eq!(after.level0_files, 1, "{after:?}");
        assert!(after.file_bytes > 0 && after.live_bytes > 0, "{after:?}");
        assert!(after.memtable_bytes < before.memtable_bytes, "{after:?}");
        assert!(!after.is_write_stopped && after.stalled == Duration::ZERO);
    }
}
