//! A replicated key-value store over RocksDB that speaks RESP.
//!
//! [`replica::Replica`] ties everything together: client sockets, an [`inband_host::log::ReplicatedLog`] and a
//! [`machine::Machine`] in one thread. From the outside in:
//!
//! * [`connection`], and [`inband_resp`]: sockets, requests and replies;
//! * [`table`], [`parse`], [`local`], [`info`]: the command table, parsing, and commands answered by one replica;
//! * [`command`], [`value`], [`packer`], [`chunks`]: commands for the log: many packed in one value, or one split over
//!   many values;
//! * `lock`: `INBAND.LOCK`;
//! * `bits`: strings as arrays of bits;
//! * [`types`]: hashes, lists, sets and sorted sets;
//! * [`partition`], [`machine`]: the partition of a key, and the replicated state machine over all partitions;
//! * [`store`], [`client_sessions`]: the part of the state machine that one log drives;
//! * [`checkpoint`], [`checkpoint_server`], [`checkpoint_client`], [`loader`]: state transfer;
//! * [`syncer`]: durability across power failures;
//! * [`cluster_clock`], [`clock_exchange`]: the source of replicated time;
//! * [`peer_exchange`], [`discovery`]: which replicas are alive, and the answers to clients that look for them;
//! * [`changes`], [`events`]: what clients that watch keys, or subscribe to keyspace events, are told;
//! * [`export`], [`import`]: all keys as one stream, out of a replica and into a cluster;
//! * [`control`]: monitoring and controlling a replica from other threads;
//! * [`starting`]: serving clients before the store is open;
//! * [`space`]: free space on the disks;
//! * [`workers`]: threads that take part in a turn of the replica's loop;
//! * [`latencies`]: how long requests take;
//! * [`limits`]: every limit.

pub mod access;
pub mod awaited_keys;
mod bits;
pub mod changes;
pub mod checkpoint;
pub mod checkpoint_client;
pub mod checkpoint_server;
pub mod chunks;
pub mod client_sessions;
pub mod clock_exchange;
pub mod cluster_clock;
pub mod command;
pub mod connection;
pub mod control;
pub mod cut;
mod db;
pub mod discovery;
mod engine;
pub mod events;
pub mod export;
mod float;
pub mod glob;
mod guard;
pub mod import;
pub mod info;
mod keyspace;
pub mod latencies;
mod layout;
pub mod limit_hits;
pub mod limits;
pub mod loader;
pub mod local;
mod lock;
pub mod machine;
pub mod packer;
pub mod parse;
pub mod partition;
pub mod peer_exchange;
pub mod replica;
mod script;
pub mod script_cache;
pub mod space;
pub mod starting;
pub mod store;
pub mod subscriptions;
pub mod syncer;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod types;
pub mod value;
pub mod waiting_clients;
pub mod workers;
