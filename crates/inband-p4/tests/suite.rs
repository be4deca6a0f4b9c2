//! Integration tests. They need bmv2's programs and root, and report otherwise that they did not run.

mod mixed_cluster;
