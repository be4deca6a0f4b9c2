//! A replicated key-value store over RocksDB, spoken to in RESP.

pub mod client_sessions;
pub mod command;
mod db;
mod engine;
pub mod glob;
mod keyspace;
pub mod limits;
pub mod parse;
pub mod reply;
pub mod resp;
pub mod store;
pub mod table;
pub mod value;
