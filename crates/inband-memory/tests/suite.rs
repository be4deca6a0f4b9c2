//! The integration tests of this crate, as one program because each program costs seconds to build. A file is a module:
//! `equal::` selects the tests of `equal.rs`.

mod common;
mod equal;
mod network;
mod p4;
mod race;
mod vectors;
mod verifier;

/// Networks of namespaces. Another crate uses the rest of it.
#[allow(dead_code, missing_docs)]
#[path = "../../inband-dataplane/tests/common/net.rs"]
mod net;
