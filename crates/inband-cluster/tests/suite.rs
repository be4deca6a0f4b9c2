//! The integration tests of this crate, as one program because each program costs seconds to build. A file is a module:
//! `memory::` selects the tests of `memory.rs`.

mod box_clients;
#[path = "box.rs"]
mod box_cluster;
mod box_members;
mod box_options;
mod box_rolling;
mod box_sizes;
#[path = "common/boxes.rs"]
mod boxes;
mod key_rotation;
mod memory;
mod netpaxos;
mod netpaxos_directories;
mod netpaxos_slow_disk;
mod supervisor;
