//! What clusters of the store need beyond the supervisor.

use std::path::PathBuf;

use anyhow::{Context, Result};
use inband_kv::limits;
use inband_kv::machine::{Machine, MachineConfig};
use inband_paxos::config::logs_of;

/// Approximate memory of a replica's store, in addition to its rings: the cache, and each log's write buffers.
pub fn store_memory_bytes(partitions: u32) -> u64 {
    let memtables = limits::ROCKSDB_MEMTABLES_OF_FILE as usize * limits::ROCKSDB_WRITE_BUFFER_BYTES;
    let write_buffers = logs_of(partitions) * memtables;
    (limits::ROCKSDB_BLOCK_CACHE_BYTES + write_buffers) as u64
}

/// Returns a summary of a replica's data directories. No process may have them open.
pub fn summary(dirs: &[PathBuf]) -> Result<serde_json::Value> {
    // Opening would create an empty store in its place.
    let first = &dirs[0];
    let partitions = Machine::partitions_in(first)?
        .with_context(|| format!("{} holds no data of a replica", first.display()))?;
    let machine = Machine::open(MachineConfig {
        dirs: dirs.to_vec(),
        partitions,
        sync: false,
    })
    .with_context(|| first.display().to_string())?;
    Ok(serde_json::json!({
        "applied": machine.applied(),
        "partitions": partitions,
        "keys": machine.keys(),
        "time_ms": machine.stores().map(|store| store.time_ms()).max(),
        "digest": format!("{:016x}", machine.digest()?),
    }))
}
