//! Integration tests. They need bmv2's programs and root, and report otherwise that they did not run.

mod cluster;
mod mixed_cluster;
mod process;
