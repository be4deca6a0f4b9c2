//! How a thread waits for what it serves.

use std::os::fd::RawFd;
use std::time::Duration;

/// Sleep until one of the descriptors has something to read, or for so long.
pub fn wait(fds: &[RawFd], timeout: Duration) {
    inband_ground::socket::wait_readable(fds.iter().copied(), timeout);
}
