//! What a host of `inband run` tells the service manager.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::health::{wait_until_it_says, TwoHosts};
use crate::run::{start, start_with, TIMEOUT};

/// The service manager's end of the socket.
struct Manager(UnixDatagram);

impl Manager {
    /// Waits for a message with this line; returns all lines up to it.
    fn wait_for(&self, line: &str) -> Vec<String> {
        let deadline = Instant::now() + TIMEOUT;
        let mut lines = Vec::new();
        let mut buffer = [0; 4096];
        while !lines.iter().any(|said: &String| said.starts_with(line)) {
            assert!(Instant::now() < deadline, "no {line} in {lines:?}");
            let Ok(len_bytes) = self.0.recv(&mut buffer) else {
                continue;
            };
            let message = String::from_utf8_lossy(&buffer[..len_bytes]);
            lines.extend(message.lines().map(str::to_owned));
        }
        lines
    }
}

#[test]
fn the_service_manager_learns_that_a_host_is_ready_lives_and_stops() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("bound");
    let timeout = Some(Duration::from_millis(100));
    socket.set_read_timeout(timeout).expect("a timeout");
    let manager = Manager(socket);
    let hosts = TwoHosts::new();
    let environment = [
        ("NOTIFY_SOCKET", path.to_str().expect("text")),
        ("WATCHDOG_USEC", "2000000"),
    ];
    let mut store = start_with(&hosts.store, environment);

    // Without a majority it is alive and not ready.
    let lines = manager.wait_for("STATUS=not ready: no majority");
    assert!(!lines.contains(&"READY=1".to_owned()), "{lines:?}");
    let lines = manager.wait_for("WATCHDOG=1");
    assert!(!lines.contains(&"READY=1".to_owned()), "{lines:?}");

    let _acceptor = start(&hosts.acceptor);
    let lines = manager.wait_for("STATUS=ready");
    assert!(lines.contains(&"READY=1".to_owned()), "{lines:?}");
    wait_until_it_says(hosts.store_http, "/ready", 200, "");

    // A sign of life in each half of the 2 s. If the machine stalls they come later, or all at once.
    let three_signs = || {
        manager.wait_for("WATCHDOG=1");
        let began = Instant::now();
        (0..3).for_each(|_| drop(manager.wait_for("WATCHDOG=1")));
        began.elapsed()
    };
    let is_right =
        |passed: &Duration| (Duration::from_millis(2_500)..Duration::from_secs(6)).contains(passed);
    let trials: Vec<Duration> = (0..8)
        .map(|_| three_signs())
        .take_while(|t| !is_right(t))
        .collect();
    assert!(trials.len() < 8, "three signs of life in {trials:?}");

    store.signal(Signal::SIGHUP);
    let lines = manager.wait_for("RELOADING=1");
    assert!(!lines.contains(&"READY=1".to_owned()), "once: {lines:?}");
    assert!(
        lines
            .last()
            .is_some_and(|line| line.starts_with("MONOTONIC_USEC=")),
        "{lines:?}"
    );
    manager.wait_for("READY=1");

    assert!(store.terminate(), "SIGTERM ends it well");
    let lines = manager.wait_for("STOPPING=1");
    assert!(!lines.contains(&"READY=1".to_owned()), "once: {lines:?}");
}
