//! One JSON object per line over a Unix socket: a request, then its answer.
//!
//! Used between supervisor and hosts, and between the command line and the supervisor.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use serde::de::DeserializeOwned;
use serde::Serialize;

/// Maximum length of a request or answer; a status of many hosts with all counters is far below this.
pub const LINE_MAX_BYTES: u64 = 4 << 20;
/// Most connections served at once; further ones are closed.
pub const CONNECTIONS_MAX: usize = 64;
/// Maximum length of a socket's path: `sun_path` of the kernel has 108 bytes, with a zero at the end.
pub const SOCKET_PATH_MAX_BYTES: usize = 107;
/// Any client that can connect can stop the process.
const SOCKET_MODE: u32 = 0o600;
/// Time limit for the status of a process on this machine: one that takes longer is shown as silent.
pub const STATUS_TIMEOUT: Duration = Duration::from_millis(500);
/// How soon a connection's thread notices that the server stops; the pause after a connection that could not be accepted.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long to wait for the end of another process that has the socket.
const IN_USE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for a client to read an answer, and while the server stops.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// A socket's path is longer than [`SOCKET_PATH_MAX_BYTES`].
#[derive(Debug, thiserror::Error)]
#[error("{path} has {} bytes, and the path of a Unix socket at most {SOCKET_PATH_MAX_BYTES}; choose a shorter directory (--data)", .path.as_os_str().len())]
pub struct PathTooLong {
    path: PathBuf,
}

impl From<PathTooLong> for io::Error {
    fn from(error: PathTooLong) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}

/// Fails if a socket cannot have this path because of its length.
pub fn check_path(path: &Path) -> Result<(), PathTooLong> {
    match path.as_os_str().len() <= SOCKET_PATH_MAX_BYTES {
        true => Ok(()),
        false => Err(PathTooLong { path: path.into() }),
    }
}

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// There is no listener.
    #[error("nothing answers at {path}: {source}")]
    Unreachable {
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    #[error(transparent)]
    PathTooLong(#[from] PathTooLong),
    /// The peer did not answer in time, or closed the connection.
    #[error("no answer from {path} within {limit_ms} ms: {source}")]
    NoAnswer {
        path: PathBuf,
        limit_ms: u128,
        /// What the system said.
        source: io::Error,
    },
    /// The answer could not be parsed, most likely because of a different version.
    #[error("{path} answered something else: {source}; do both sides run the same version?")]
    NotUnderstood {
        path: PathBuf,
        source: serde_json::Error,
    },
}

impl CallError {
    /// Returns whether there is no listener at all, as before a start or after an exit.
    pub fn nobody_listens(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        matches!(self, Self::Unreachable { source, .. }
            if matches!(source.kind(), NotFound | ConnectionRefused))
    }
}

/// Sends one request and waits for its answer.
pub fn call<Q: Serialize, R: DeserializeOwned>(
    path: &Path,
    request: &Q,
    limit: Duration,
) -> Result<R, CallError> {
    check_path(path)?;
    let stream = UnixStream::connect(path).map_err(|source| CallError::Unreachable {
        path: path.into(),
        source,
    })?;
    let line = exchange(stream, request, limit).map_err(|source| CallError::NoAnswer {
        path: path.into(),
        limit_ms: limit.as_millis(),
        source,
    })?;
    serde_json::from_str(&line).map_err(|source| CallError::NotUnderstood {
        path: path.into(),
        source,
    })
}

fn exchange<Q: Serialize>(
    mut stream: UnixStream,
    request: &Q,
    limit: Duration,
) -> io::Result<String> {
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(&line_of(request)?)?;
    let mut line = String::new();
    let mut reader = BufReader::new(Read::take(&stream, LINE_MAX_BYTES));
    reader.read_line(&mut line)?;
    if line.ends_with('\n') {
        Ok(line)
    } else {
        Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the connection was closed",
        ))
    }
}

fn line_of(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    Ok(text)
}

/// Writes an answer to a client. Gives up on one that does not read it, so that it holds up neither its thread nor the end
/// of the process.
fn answer(mut client: &UnixStream, line: &[u8], stop: &AtomicBool) -> io::Result<()> {
    client.set_write_timeout(Some(STOP_POLL_INTERVAL))?;
    let began = Instant::now();
    let mut left = line;
    while !left.is_empty() {
        match client.write(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => left = &left[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) => {}
        }
        let limit = match stop.load(Ordering::Acquire) {
            true => LAST_ANSWER_TIMEOUT,
            false => ANSWER_TIMEOUT,
        };
        if !left.is_empty() && began.elapsed() >= limit {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}

/// Listens at a path, where only the owner of this process can connect, whatever the umask.
fn listen(path: &Path) -> io::Result<UnixListener> {
    check_path(path)?;
    // A process that was killed may still be ending.
    let deadline = Instant::now() + IN_USE_TIMEOUT;
    while UnixStream::connect(path).is_ok() {
        if Instant::now() >= deadline {
            let why = format!(
                "another process answers at {}; stop it first",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
        }
        std::thread::sleep(STOP_POLL_INTERVAL);
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    // Nobody can connect before it listens.
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
    socket::listen(&fd, Backlog::MAXCONN)?;
    Ok(UnixListener::from(fd))
}

/// Answers requests until dropped.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    /// Its other end becomes readable when this one is closed.
    ends: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at a path and answers with `handle`, each connection on a separate thread. The leftover socket of a
    /// crashed process is replaced; that of a running one is not. `explain` creates the answer to
    /// a request that cannot be parsed.
    pub fn start<Q, R>(
        path: &Path,
        handle: impl Fn(Q) -> R + Send + Sync + 'static,
        explain: fn(String) -> R,
    ) -> io::Result<Self>
    where
        Q: DeserializeOwned + 'static,
        R: Serialize + 'static,
    {
        let listener = listen(path)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (ends, ended) = UnixStream::pair()?;
        let thread = {
            let stop = Arc::clone(&stop);
            let handle = Arc::new(handle);
            std::thread::Builder::new()
                .name("control".into())
                .spawn(move || {
                    let mut connections: Vec<JoinHandle<()>> = Vec::new();
                    loop {
                        let mut fds = [listener.as_fd(), ended.as_fd()]
                            .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
                        // If a signal interrupts this, nothing can be accepted yet.
                        let _ = poll(&mut fds, PollTimeout::NONE);
                        if stop.load(Ordering::Acquire) {
                            break;
                        }
                        connections.retain(|c| !c.is_finished());
                        let stream = match listener.accept() {
                            Ok((stream, _)) => stream,
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                            // It is still there: without a pause this would spin.
                            Err(_) => {
                                std::thread::sleep(STOP_POLL_INTERVAL);
                                continue;
                            }
                        };
                        if connections.len() >= CONNECTIONS_MAX {
                            continue;
                        }
                        let (stop, handle) = (Arc::clone(&stop), Arc::clone(&handle));
                        let connection =
                            move || drop(serve_connection(stream, &stop, &*handle, explain));
                        let thread = std::thread::Builder::new().name("control-conn".into());
                        // If there is no thread the connection is closed, and the caller retries.
                        connections.extend(thread.spawn(connection).ok());
                    }
                    // An answer in progress (for example to "down") is still delivered.
                    connections.into_iter().for_each(|c| drop(c.join()));
                })?
        };
        Ok(Self {
            path: path.into(),
            stop,
            ends: Some(ends),
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        drop(self.ends.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn serve_connection<Q: DeserializeOwned, R: Serialize>(
    stream: UnixStream,
    stop: &AtomicBool,
    handle: &impl Fn(Q) -> R,
    explain: fn(String) -> R,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
    let mut reader = BufReader::new(&stream);
    let mut line = Vec::new();
    loop {
        // Endless input is not read forever: reading stops beyond the longest line.
        let room = (LINE_MAX_BYTES + 1).saturating_sub(line.len() as u64);
        match reader.by_ref().take(room).read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) if line.ends_with(b"\n") => {
                let reply = match serde_json::from_slice(&line) {
                    Ok(request) => handle(request),
                    Err(error) => explain(format!("request not understood: {error}")),
                };
                answer(&stream, &line_of(&reply)?, stop)?;
                line.clear();
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            // An incomplete line, or none within the interval: what was read stays in `line`.
            Ok(_) | Err(_) => {}
        }
        if stop.load(Ordering::Acquire) || line.len() as u64 > LINE_MAX_BYTES {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(path: &Path) -> Server {
        Server::start(path, |q: u64| q + 1, |_| 0).expect("it listens")
    }

    #[test]
    fn a_line_without_an_end_is_hung_up_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let _server = server(&path);
        let mut stream = UnixStream::connect(&path).expect("connects");
        stream
            .set_write_timeout(Some(Duration::from_secs(10)))
            .expect("set");
        let piece = vec![b'1'; 1 << 16];
        let mut sent = 0;
        while stream.write_all(&piece).is_ok() {
            sent += piece.len() as u64;
            assert!(sent < 4 * LINE_MAX_BYTES, "it takes everything");
        }
        assert!(sent >= LINE_MAX_BYTES - (1 << 16));
        let answer: u64 = call(&path, &1u64, Duration::from_secs(10)).expect("an answer");
        assert_eq!(answer, 2);
    }

    #[test]
    fn a_flood_of_connections_is_bounded_and_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let _server = server(&path);
        let mut open = Vec::new();
        let mut hung_up = 0;
        for _ in 0..CONNECTIONS_MAX + 20 {
            let mut stream = UnixStream::connect(&path).expect("connects");
            let limit = Some(Duration::from_secs(10));
            stream.set_read_timeout(limit).expect("set");
            let answered = writeln!(stream, "1").is_ok()
                && BufReader::new(&stream)
                    .read_line(&mut String::new())
                    .is_ok_and(|len| len > 0);
            hung_up += usize::from(!answered);
            open.push(stream);
        }
        assert_eq!(hung_up, 20);
        drop(open);
        let begun = std::time::Instant::now();
        while call::<u64, u64>(&path, &1, Duration::from_secs(10)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(10), "still full");
        }
    }

    #[test]
    fn a_client_that_does_not_read_holds_up_nobody() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let long = "x".repeat(1 << 16);
        let server = Server::start(&path, move |_: u64| long.clone(), |why| why);
        let server = server.expect("it listens");
        let deaf = UnixStream::connect(&path).expect("connects");
        deaf.set_nonblocking(true).expect("set");
        let begun = Instant::now();
        // Until the server reads no more requests, because it waits for its answers to be read.
        let mut refused = 0;
        while refused < 20 {
            assert!(begun.elapsed() < Duration::from_secs(10), "it takes all");
            match (&deaf).write_all(b"1\n") {
                Ok(()) => refused = 0,
                Err(_) => {
                    refused += 1;
                    std::thread::sleep(STOP_POLL_INTERVAL);
                }
            }
        }
        let (dropped, is_dropped) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(server);
            dropped.send(()).expect("the test waits");
        });
        is_dropped
            .recv_timeout(Duration::from_secs(5))
            .expect("the server ends although the client does not read");
    }

    #[test]
    fn a_second_server_leaves_the_first_its_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let first = server(&path);
        let refused = Server::start(&path, |q: u64| q, |_| 0).map(drop);
        let refused = refused.expect_err("it is in use").to_string();
        assert!(refused.contains("another process answers"), "{refused}");
        assert_eq!(
            call::<u64, u64>(&path, &1, ANSWER_TIMEOUT).expect("an answer"),
            2
        );
        drop(first);
        drop(UnixListener::bind(&path).expect("what a killed process leaves"));
        let _next = server(&path);
        assert_eq!(
            call::<u64, u64>(&path, &1, ANSWER_TIMEOUT).expect("an answer"),
            2
        );
    }

    #[test]
    fn others_cannot_connect() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let _server = server(&path);
        let mode = fs::metadata(&path).expect("it exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    }

    #[test]
    fn a_path_that_is_too_long_is_named_with_its_limit() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("d".repeat(100)).join("control.sock");
        let refused = [
            Server::start(&path, |q: u64| q, |_| 0)
                .map(drop)
                .map_err(|e| e.to_string()),
            call::<u64, u64>(&path, &1, Duration::ZERO)
                .map(drop)
                .map_err(|e| e.to_string()),
        ];
        for refused in refused {
            let refused = refused.expect_err("it is too long");
            assert!(refused.contains("at most 107"), "{refused}");
            assert!(refused.contains("--data"), "{refused}");
            assert!(refused.contains(&*path.display().to_string()), "{refused}");
        }
    }
}
