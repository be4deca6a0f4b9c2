//! Listening sockets inherited from the parent process.

use std::net::TcpListener;
use std::os::fd::FromRawFd;
use std::sync::Once;

/// The first descriptor passed by systemd (`man sd_listen_fds`).
const SYSTEMD_FIRST_FD: i32 = 3;

/// Takes over the inherited listening sockets: those named by the environment variable `variable`, as comma-separated
/// `NUMBER:USE`, and those passed by systemd (`LISTEN_FDS`), whose use is their name there. Returns each with its use.
/// A second call returns nothing, because each socket has one owner.
pub fn listeners(variable: &str) -> Vec<(String, TcpListener)> {
    static TAKEN: Once = Once::new();
    let mut taken = Vec::new();
    TAKEN.call_once(|| {
        let variable_of = |name: &str| std::env::var(name).unwrap_or_default();
        let mut named = named(&variable_of(variable));
        named.extend(named_by_systemd(
            std::process::id(),
            &variable_of("LISTEN_PID"),
            &variable_of("LISTEN_FDS"),
            &variable_of("LISTEN_FDNAMES"),
        ));
        let mut seen = Vec::new();
        for (fd, usage) in named {
            // SAFETY: fcntl with F_GETFD only asks whether the number is an open descriptor.
            if seen.contains(&fd) || fd <= 2 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
                continue;
            }
            seen.push(fd);
            // SAFETY: the descriptor is open, was left to us by our parent under this number, and
            // nobody else in this process knows of it: we are its only owner (Once, `seen`).
            let listener = unsafe { TcpListener::from_raw_fd(fd) };
            taken.push((usage, listener));
        }
    });
    taken
}

fn named(list: &str) -> Vec<(i32, String)> {
    let entries = list.split(',').filter_map(|entry| entry.split_once(':'));
    entries
        .filter_map(|(number, usage)| Some((number.parse().ok()?, usage.to_owned())))
        .collect()
}

/// Returns the sockets that systemd's variables name, if they are for the process `own_pid`.
fn named_by_systemd(own_pid: u32, pid: &str, count: &str, names: &str) -> Vec<(i32, String)> {
    let (Ok(pid), Ok(count)) = (pid.parse::<u32>(), count.parse::<i32>()) else {
        return Vec::new();
    };
    if pid != own_pid {
        return Vec::new(); // inherited from a parent, for which they are meant
    }
    let names: Vec<&str> = names.split(':').collect();
    (0..count)
        .map(|i| {
            let name = names.get(i as usize).copied().unwrap_or("");
            (SYSTEMD_FIRST_FD + i, name.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names() {
        let expected = [(5, "resp".to_owned()), (9, "metrics".to_owned())];
        assert_eq!(named("5:resp,9:metrics"), expected);
        assert_eq!(named(""), []);
        assert_eq!(named("x:resp,7"), []);
    }

    #[test]
    fn systemds_names() {
        let expected = [(3, "resp".to_owned()), (4, String::new())];
        assert_eq!(named_by_systemd(17, "17", "2", "resp"), expected);
        assert_eq!(named_by_systemd(17, "18", "2", "resp"), [], "of a parent");
        assert_eq!(named_by_systemd(17, "17", "", ""), []);
        assert_eq!(named_by_systemd(17, "17", "-1", ""), []);
    }
}
