//! Accepts connections in one thread and serves each in its own thread, up to a limit.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::socket::{shutdown, Shutdown};

/// Pause when the system has no connection or thread to give.
const PAUSE: Duration = Duration::from_millis(50);

/// Ends listening: a thread that waits in `accept` gets an error, also if the listener's address is gone from the host,
/// where a connection to it would not wake the thread.
pub fn stop_listening(listener: &TcpListener) {
    // It fails only if the socket does not listen.
    let _ = shutdown(listener.as_raw_fd(), Shutdown::Both);
}

/// Accepts connections until dropped; connections being served continue.
#[derive(Debug)]
pub struct Accepting {
    listener: Arc<TcpListener>,
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    refused: AtomicU64,
}

impl Accepting {
    /// Serves up to `connections_max` connections at a time; further ones are closed and counted. `serve` sets its own
    /// time limits. Threads are called `name`.
    pub fn start(
        listener: TcpListener,
        name: &'static str,
        connections_max: usize,
        serve: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> io::Result<Accepting> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        });
        let listener = Arc::new(listener);
        let for_thread = (Arc::clone(&listener), Arc::clone(&shared));
        let serve = Arc::new(serve);
        let taking = move || {
            let (listener, shared) = for_thread;
            accept(&listener, name, connections_max, &serve, &shared);
        };
        thread::Builder::new().name(name.into()).spawn(taking)?;
        Ok(Accepting {
            listener,
            address,
            shared,
        })
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of connections refused because of the limit.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        stop_listening(&self.listener);
    }
}

fn accept<S: Fn(TcpStream) + Send + Sync + 'static>(
    listener: &TcpListener,
    name: &str,
    connections_max: usize,
    serve: &Arc<S>,
    shared: &Shared,
) {
    let open = Arc::new(());
    for stream in listener.incoming() {
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            thread::sleep(PAUSE);
            continue;
        };
        // This thread holds one reference, too.
        let is_full = Arc::strong_count(&open) > connections_max;
        let (serve, place) = (Arc::clone(serve), Arc::clone(&open));
        let serving = move || {
            let _place = place;
            serve(stream);
        };
        let builder = thread::Builder::new().name(name.into());
        if is_full || builder.spawn(serving).is_err() {
            shared.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::time::Instant;

    /// Sends "x", and serves until the peer disconnects.
    fn serve(mut stream: TcpStream) {
        let _ = stream.write_all(b"x");
        let _ = stream.read_to_end(&mut Vec::new());
    }

    fn is_served(mut stream: &TcpStream) -> bool {
        let limit = Some(Duration::from_secs(10));
        stream.set_read_timeout(limit).expect("a limit");
        stream.read(&mut [0]).is_ok_and(|len| len == 1)
    }

    #[test]
    fn one_too_many_is_hung_up_on_and_a_place_is_free_again() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let accepting = Accepting::start(listener, "test", 2, serve).expect("a thread");
        let connect = || TcpStream::connect(accepting.address()).expect("it listens");
        let served = [connect(), connect()];
        assert!(served.iter().all(is_served));
        assert!(!is_served(&connect()));
        assert_eq!(accepting.refused(), 1);
        drop(served);
        let begun = Instant::now();
        while !is_served(&connect()) {
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "no place is free"
            );
        }
        let address = accepting.address();
        drop(accepting);
        while TcpListener::bind(address).is_err() {
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "it still listens"
            );
        }
    }
}
