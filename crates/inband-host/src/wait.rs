//! How a thread waits for what it serves.

use std::os::fd::RawFd;
use std::time::Duration;

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

/// Sleep until one of the descriptors has something to read, or for so long.
pub fn wait(fds: &[RawFd], timeout: Duration) {
    let fds: Vec<_> = fds
        .iter()
        .filter_map(|fd| inband_ground::socket::borrow(*fd))
        .collect();
    let mut polled: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::new(*fd, PollFlags::POLLIN))
        .collect();
    let timeout_ms = u16::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
    // An interrupted wait is a short one.
    let _ = poll(&mut polled, PollTimeout::from(timeout_ms));
}
