//! The targets, one file each.

pub mod c_api;
pub mod checkpoint;
pub mod config;
pub mod connection;
pub mod control;
pub mod export;
pub mod falcon;
pub mod flair;
pub mod flair_hosts;
pub mod host;
pub mod journal;
pub mod machine;
pub mod memcached;
pub mod raft;
pub mod records;
pub mod resp;
pub mod roles;
pub mod scripts;
pub mod values;
