//! The integration tests of this crate, as one program because each program costs seconds to build. A file is a module:
//! `broadcast::` selects the tests of `broadcast.rs`.

mod broadcast;
mod cluster;
mod common;
mod datagrams;
mod equal;
mod gathering;
mod gets;
mod gets_network;
mod holding;
mod memcached;
mod network;
mod node;
mod race;
mod rtl;
mod rtl_table;
mod sets;
mod strong_reads;
mod vectors;

/// Networks of namespaces. What another crate uses of it is not dead.
#[allow(dead_code, missing_docs)]
#[path = "../../inband-dataplane/tests/common/net.rs"]
mod net;
