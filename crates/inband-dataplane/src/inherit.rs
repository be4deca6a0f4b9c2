//! Listening sockets inherited from whoever started this process.

use std::net::TcpListener;
use std::os::fd::FromRawFd;
use std::sync::Once;

/// Take over the inherited listening sockets that `variable` of the environment names, as
/// comma-separated `NUMBER:USE`. Returns each with its use. A second call returns nothing: each
/// socket has one owner.
pub fn listeners(variable: &str) -> Vec<(String, TcpListener)> {
    static TAKEN: Once = Once::new();
    let mut taken = Vec::new();
    TAKEN.call_once(|| {
        let names = std::env::var(variable).unwrap_or_default();
        for entry in names.split(',').filter(|e| !e.is_empty()) {
            let Some((number, usage)) = entry.split_once(':') else {
                continue;
            };
            let Ok(fd) = number.parse::<i32>() else {
                continue;
            };
            // SAFETY: fcntl with F_GETFD only asks whether the number is an open descriptor.
            if fd <= 2 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
                continue;
            }
            // SAFETY: the descriptor is open, was left to us by our parent under this name, and
            // nobody else in this process knows of it: we are its only owner (Once).
            let listener = unsafe { TcpListener::from_raw_fd(fd) };
            taken.push((usage.to_owned(), listener));
        }
    });
    taken
}
