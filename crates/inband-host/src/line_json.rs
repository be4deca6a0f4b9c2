//! One JSON object per line over a Unix socket: a request, then its answer.
//!
//! Used between supervisor and hosts, and between the command line and the supervisor.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::Serialize;

/// Maximum length of a request or answer; a status of many hosts with all counters is far below this.
pub const LINE_MAX_BYTES: u64 = 4 << 20;
/// Most connections served at once; further ones are closed.
pub const CONNECTIONS_MAX: usize = 64;
/// How soon a server notices that it must stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);

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
    write_line(&mut stream, request)?;
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

fn write_line<T: Serialize>(stream: &mut UnixStream, value: &T) -> io::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    stream.write_all(&text)
}

/// Answers requests until dropped.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at a path and answers with `handle`, each connection on a separate thread. The leftover socket of a
    /// crashed process is replaced: the caller must ensure that it is the only server. `explain` creates the answer to
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
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = Arc::clone(&stop);
            let handle = Arc::new(handle);
            std::thread::Builder::new()
                .name("control".into())
                .spawn(move || {
                    let mut connections: Vec<JoinHandle<()>> = Vec::new();
                    while !stop.load(Ordering::Acquire) {
                        connections.retain(|c| !c.is_finished());
                        let Ok((stream, _)) = listener.accept() else {
                            std::thread::sleep(STOP_POLL_INTERVAL);
                            continue;
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
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
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
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        // Endless input is not read forever: reading stops beyond the longest line.
        let room = (LINE_MAX_BYTES + 1).saturating_sub(line.len() as u64);
        match reader.by_ref().take(room).read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) if line.ends_with(b"\n") => {
                let answer = match serde_json::from_slice(&line) {
                    Ok(request) => handle(request),
                    Err(error) => explain(format!("request not understood: {error}")),
                };
                write_line(&mut writer, &answer)?;
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
}
