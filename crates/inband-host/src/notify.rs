//! Tells the service manager that this process is ready, makes progress, or stops: the protocol of systemd's
//! `sd_notify`. (The crate `sd-notify` does not know abstract sockets.)

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::time::{clock_gettime, ClockId};

/// The service manager's socket: a path, or `@` and the name of an abstract socket.
const SOCKET_ENV: &str = "NOTIFY_SOCKET";
/// How long the service manager waits for a sign of life, and of which process.
const WATCHDOG_USEC_ENV: &str = "WATCHDOG_USEC";
const WATCHDOG_PID_ENV: &str = "WATCHDOG_PID";

/// Time limit for one message, so that a service manager that hangs does not hold up this process.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The connection to the service manager. Without one, messages go nowhere. Copies are for other threads; one of them
/// reports the [turns](Notifier::turned) of the main loop.
#[derive(Debug, Clone)]
pub struct Notifier {
    manager: Option<Arc<(UnixDatagram, SocketAddr)>>,
    has_been_ready: Arc<AtomicBool>,
    watchdog: Option<Duration>,
    /// The last turn of the main loop that was reported.
    turned_at: Option<Instant>,
}

impl Notifier {
    /// Returns the connection that the environment names. An unusable socket is logged, and is no reason not to run.
    pub fn from_environment() -> Notifier {
        let variable = |name| std::env::var(name).unwrap_or_default();
        let watchdog = watchdog_of(
            std::process::id(),
            &variable(WATCHDOG_USEC_ENV),
            &variable(WATCHDOG_PID_ENV),
        );
        let manager = std::env::var_os(SOCKET_ENV).and_then(|name| {
            let manager = connect(&name);
            manager
                .inspect_err(|error| tracing::warn!("{SOCKET_ENV} {name:?}: {error}"))
                .ok()
        });
        Notifier {
            manager: manager.map(Arc::new),
            has_been_ready: Arc::default(),
            watchdog,
            turned_at: None,
        }
    }

    /// Returns whether a service manager listens.
    pub fn is_heard(&self) -> bool {
        self.manager.is_some()
    }

    /// The process does its work from now on.
    pub fn ready(&self, status: &str) {
        self.has_been_ready.store(true, Ordering::Release);
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// What `systemctl status` shows.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", one_line(status)));
    }

    /// Runs `reload` between the messages that it begins and that it is over. A process that has not been ready does not
    /// become so by it.
    pub fn reloading(&self, reload: impl FnOnce()) {
        if !self.has_been_ready.load(Ordering::Acquire) {
            return reload();
        }
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_usec()));
        reload();
        self.send("READY=1");
    }

    /// The process is going to end.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    /// The main loop turned at `turned_at`. Call this often: a sign of life is sent when the loop has turned for half of
    /// the watchdog's time since the last one, and never again for a loop that hangs.
    pub fn turned(&mut self, turned_at: Instant) {
        let Some(watchdog) = self.watchdog else {
            return;
        };
        if self
            .turned_at
            .is_none_or(|last| turned_at >= last + watchdog / 2)
        {
            self.turned_at = Some(turned_at);
            self.send("WATCHDOG=1");
        }
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = self.manager.as_deref() {
            if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
                tracing::warn!("telling the service manager {message:?}: {error}");
            }
        }
    }
}

fn connect(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }?;
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    Ok((socket, address))
}

/// The clock by which the service manager knows which reload is meant.
fn monotonic_usec() -> u128 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    now.unwrap_or_default().as_micros()
}

/// A message is lines, of which the status is one.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Returns the watchdog's time, if it is for the process `own_pid`: children inherit the variables.
fn watchdog_of(own_pid: u32, usec: &str, pid: &str) -> Option<Duration> {
    let is_own = pid.is_empty() || pid.parse() == Ok(own_pid);
    let usec = usec.parse().ok().filter(|usec| *usec > 0 && is_own)?;
    Some(Duration::from_micros(usec))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notifier(name: &OsStr) -> Notifier {
        Notifier {
            manager: Some(Arc::new(connect(name).expect("a socket"))),
            has_been_ready: Arc::default(),
            watchdog: Some(Duration::from_secs(10)),
            turned_at: None,
        }
    }

    fn received(manager: &UnixDatagram) -> Vec<String> {
        manager.set_nonblocking(true).expect("nonblocking");
        let mut buffer = [0; 1024];
        let messages = std::iter::from_fn(|| {
            let len_bytes = manager.recv(&mut buffer).ok()?;
            Some(String::from_utf8_lossy(&buffer[..len_bytes]).into_owned())
        });
        messages.collect()
    }

    #[test]
    fn messages_arrive_at_a_path() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("bound");
        let notifier = notifier(path.as_os_str());
        notifier.ready("serves\nall");
        notifier.status("is behind");
        notifier.stopping();
        let expected = [
            "READY=1\nSTATUS=serves all",
            "STATUS=is behind",
            "STOPPING=1\nSTATUS=stopping",
        ];
        assert_eq!(received(&manager), expected);
    }

    #[test]
    fn a_reload_is_announced_by_processes_that_are_ready() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("bound");
        let notifier = notifier(path.as_os_str());
        let mut reloads = 0;
        notifier.clone().reloading(|| reloads += 1);
        assert_eq!(received(&manager), [""; 0], "it is not ready");
        notifier.ready("serves");
        let before = monotonic_usec();
        notifier.clone().reloading(|| reloads += 1);
        let said = received(&manager);
        let [_, begins, ends] = &said[..] else {
            panic!("{said:?}");
        };
        let at = begins.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
        let at: u128 = at.and_then(|at| at.parse().ok()).expect("a time");
        assert!((before..=monotonic_usec()).contains(&at), "{begins}");
        assert_eq!((reloads, ends.as_str()), (2, "READY=1"));
    }

    #[test]
    fn messages_arrive_at_an_abstract_socket() {
        let name = format!("inband-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let manager = UnixDatagram::bind_addr(&address).expect("bound");
        notifier(format!("@{name}").as_ref()).status("starts");
        assert_eq!(received(&manager), ["STATUS=starts"]);
    }

    #[test]
    fn a_loop_that_hangs_gives_no_sign_of_life() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("bound");
        let mut notifier = notifier(path.as_os_str());
        let began = Instant::now();
        let at = |s| began + Duration::from_secs(s);
        // Half of the watchdog's time is 5 s.
        for (turned_s, expected) in [(0, 1), (0, 0), (4, 0), (5, 1), (9, 0), (10, 1)] {
            notifier.turned(at(turned_s));
            assert_eq!(received(&manager).len(), expected, "turned at {turned_s} s");
        }
        (0..100).for_each(|_| notifier.turned(at(10)));
        assert_eq!(received(&manager), [""; 0]);
    }

    #[test]
    fn the_watchdog_is_for_one_process() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(watchdog_of(7, "1000000", "7"), second);
        assert_eq!(watchdog_of(7, "1000000", ""), second);
        assert_eq!(watchdog_of(7, "1000000", "8"), None, "its parent's");
        assert_eq!(watchdog_of(7, "0", "7"), None);
        assert_eq!(watchdog_of(7, "", ""), None);
    }
}
