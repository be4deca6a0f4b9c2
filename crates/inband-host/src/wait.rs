//! Waiting for file descriptors.

use std::os::fd::RawFd;
use std::time::Duration;

/// Sleeps until one of the descriptors is readable, or `timeout` has passed.
pub fn wait(fds: &[RawFd], timeout: Duration) {
    inband_ground::socket::wait_readable(fds.iter().copied(), timeout);
}
